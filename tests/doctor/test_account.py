"""The checks that ask an account, against moto and against refusals."""

import tomllib

import pytest

from cdk_app import names, settings
from cdk_app.doctor import account, kubernetes, quotas, signin, zones
from cdk_app.doctor.finding import Status, Unknown
from cdk_app.residue import ENVIRONMENT_TAG
from tests.doctor.accounts import ACCOUNT, DENIED, EVERY_QUOTA, MANAGEMENT, Account, good, refused
from tests.synth.conftest import ENDPOINT

pytestmark = pytest.mark.usefixtures("moto")
OK, WARNING, FAILED, UNKNOWN = Status


def zone_check(asked: Account, environment):
    types = ("ml.g7e.12xlarge", "ml.r5d.16xlarge")
    return {
        f.check: f for f in zones.check(environment, zones.zones(asked.aws), zones.offers(asked.aws, types))
    }


def quota_check(asked: Account, environment):
    found = quotas.quotas(asked.aws, quotas.needs(environment))
    used = quotas.used_by_others(asked.aws, environment, names.of(environment, ACCOUNT))
    return {f.check: f for f in quotas.check(environment, found, used)}


def test_another_account_than_that_of_the_settings_fails(environment):
    who = account.identity(good().aws)
    assert who == account.Identity(ACCOUNT, f"arn:aws:sts::{ACCOUNT}:user/moto")
    other = environment.model_copy(update={"account": "999999999999"})
    found = account.check_identity(other, who, emulated=False)[-1]
    assert (found.status, found.found, found.needed) == (FAILED, ACCOUNT, "999999999999")
    assert found.remedy.endswith("`account` in the settings file")  # which may be any file
    assert account.check_identity(environment, who, emulated=False)[-1].status is OK


def test_the_root_user_is_warned_about_but_not_an_emulators(environment):
    root = account.Identity(ACCOUNT, f"arn:aws:iam::{ACCOUNT}:root")
    assert account.check_identity(environment, root, emulated=False)[0].status is WARNING
    assert account.check_identity(environment, root, emulated=True)[0].status is OK


def test_expired_credentials_are_unknown_with_the_way_to_sign_in(environment):
    asked = Account()
    asked.answer("sts.GetCallerIdentity", refused("ExpiredToken", "the token has expired"))
    (found,) = account.check_identity(environment, account.identity(asked.aws), emulated=False)
    assert found.status is UNKNOWN
    assert "ExpiredToken" in found.found
    assert "aws sso login" in found.remedy


def test_an_account_without_bootstrap_is_told_the_command(environment):
    asked = Account()
    found = account.check_bootstrap(environment, ACCOUNT, account.bootstrap_version(asked.aws))
    assert found.status is FAILED
    assert found.remedy == f"cdk bootstrap aws://{ACCOUNT}/us-west-2"
    assert account.check_bootstrap(environment, ACCOUNT, account.bootstrap_version(good().aws)).status is OK


def test_zones_are_named_by_id_and_offers_are_looked_up_there(environment):
    found = zone_check(good(), environment)
    assert {f.status for f in found.values()} == {OK}
    ids = {zone.name: zone.zone_id for zone in zones.zones(good().aws)}
    assert f"us-west-2a = {ids['us-west-2a']}" in found["zones"].found


def test_a_type_that_the_node_zone_lacks_names_the_zones_that_have_it():
    east = settings.load("paper", {"region": "us-east-1", "network.zones": ["us-east-1b", "us-east-1c"]})
    found = zone_check(Account("us-east-1"), east)
    assert found["ml.r5d.16xlarge offered"].status is OK
    lacking = found["ml.g7e.12xlarge offered"]
    assert lacking.status is FAILED
    assert "us-east-1a or us-east-1c first in network.zones" in lacking.remedy


def test_a_zone_that_is_not_there_and_one_without_control_plane_fail():
    gone = settings.load("paper", {"network.zones": ["us-west-2a", "us-west-2z"]})
    found = zone_check(Account(), gone)["zones"]
    assert found.status is FAILED
    assert "instead of us-west-2z" in found.remedy
    listed = (zones.Zone("us-east-1e", "use1-az3"), zones.Zone("us-east-1a", "use1-az6"))
    east = settings.load("paper", {"region": "us-east-1", "network.zones": ["us-east-1a", "us-east-1e"]})
    assert zones.check(east, listed, frozenset())[0].status is FAILED


def test_all_quotas_of_a_good_account_are_enough(environment):
    assert {f.status for f in quota_check(good(), environment).values()} == {OK}


def test_a_quota_of_zero_is_told_the_request(environment):
    asked = Account()
    asked.quotas(
        EVERY_QUOTA
        | {"sagemaker": EVERY_QUOTA["sagemaker"] | {"L-00000001": ("ml.g7e.12xlarge for cluster usage", 0)}}
    )
    found = quota_check(asked, environment)["ml.g7e.12xlarge for cluster usage"]
    assert (found.status, found.found, found.needed) == (FAILED, "0", "3")
    assert found.remedy == (
        "aws service-quotas request-service-quota-increase --service-code sagemaker --quota-code L-00000001 "
        "--desired-value 3 --region us-west-2"
    )


def test_an_endpoint_wants_room_for_all_its_copies():
    with_endpoint = settings.load("paper", tomllib.loads(ENDPOINT))
    name = "ml.g6e.4xlarge for endpoint usage"
    for value, status in ((1, FAILED), (2, OK)):
        asked = Account()
        asked.quotas(EVERY_QUOTA | {"sagemaker": EVERY_QUOTA["sagemaker"] | {"L-00000003": (name, value)}})
        assert quota_check(asked, with_endpoint)[name].status is status


def test_quotas_that_nothing_is_applied_to_are_read_from_the_defaults(environment):
    asked = Account()
    asked.quotas(EVERY_QUOTA, applied=False)
    assert {f.status for f in quota_check(asked, environment).values()} == {OK}


def test_a_quota_that_no_list_has_is_unknown_not_ok(environment):
    asked = Account()
    asked.quotas({**EVERY_QUOTA, "sagemaker": {}})
    found = quota_check(asked, environment)["ml.g7e.12xlarge for cluster usage"]
    assert found.status is UNKNOWN
    assert "contains(QuotaName, 'ml.g7e.12xlarge')" in found.remedy


def test_what_others_use_of_a_quota_is_counted_and_our_own_is_not(environment):
    asked = good()
    ec2 = asked.session.client("ec2")
    tag = {"Key": ENVIRONMENT_TAG, "Value": "paper"}
    ec2.create_vpc(CidrBlock="10.1.0.0/16", TagSpecifications=[{"ResourceType": "vpc", "Tags": [tag]}])
    for number in range(4):
        ec2.create_vpc(CidrBlock=f"10.{number + 2}.0.0/16")
    found = quota_check(asked, environment)["VPCs per Region"]
    assert found.status is FAILED  # four of these, and the default VPC
    assert found.needed == "1 beside the 5 in use"
    assert "--desired-value 6" in found.remedy


def test_nodes_of_another_cluster_count_against_the_same_quota(environment):
    asked = good()
    groups = [{"InstanceType": "ml.g7e.12xlarge", "CurrentCount": 2, "TargetCount": 2}]
    asked.answer("sagemaker.ListClusters", {"ClusterSummaries": [{"ClusterName": "theirs"}]})
    asked.answer("sagemaker.DescribeCluster", {"InstanceGroups": groups})
    found = quota_check(asked, environment)["ml.g7e.12xlarge for cluster usage"]
    assert (found.status, found.needed) == (FAILED, "3 beside the 2 in use")


def test_what_may_not_be_asked_is_unknown_and_names_the_action(environment):
    asked = good()
    asked.answer("sagemaker.ListClusters", DENIED)
    asked.answer("service-quotas.ListServiceQuotas", DENIED)
    asked.answer("ec2.DescribeInstanceTypeOfferings", refused("UnauthorizedOperation"))
    asked.answer("eks.DescribeClusterVersions", DENIED)
    found = [
        *quota_check(asked, environment).values(),
        zone_check(asked, environment)["ml.g7e.12xlarge offered"],
        kubernetes.check_support(environment, kubernetes.support(asked.aws, "1.35")),
    ]
    assert {f.status for f in found} == {UNKNOWN}
    said = " ".join(f.found + f.remedy for f in found)
    for action in (
        "servicequotas:ListServiceQuotas",
        "ec2:DescribeInstanceTypeOfferings",
        "eks:DescribeClusterVersions",
    ):
        assert f"allow {action}" in said


def test_a_quota_that_is_enough_only_if_nobody_uses_it_is_unknown(environment):
    asked = good()
    asked.answer("sagemaker.ListClusters", DENIED)
    found = quota_check(asked, environment)["ml.g7e.12xlarge for cluster usage"]
    assert found.status is UNKNOWN
    assert "sagemaker:ListClusters" in found.found


@pytest.mark.parametrize(
    "answer",
    [
        refused("InvalidAction", "Unknown EC2 action"),
        refused("400"),
        refused("InvalidRequestException", "No route for GET /cluster-versions"),
    ],
)
def test_an_endpoint_without_the_api_says_so(answer):
    asked = Account()
    asked.answer("eks.DescribeClusterVersions", answer)
    found = kubernetes.support(asked.aws, "1.35")
    assert isinstance(found, Unknown)
    assert found.reason == "the endpoint does not offer eks:DescribeClusterVersions"


def test_addons_are_asked_for_this_kubernetes(environment):
    asked = Account()
    listed = [{"addonVersion": "v2.0"}, {"addonVersion": "v1.0"}]
    asked.answer("eks.DescribeAddonVersions", {"addons": [{"addonVersions": listed}]})
    found = kubernetes.addon_versions(asked.aws, "vpc-cni", "1.35")
    assert found == ("v2.0", "v1.0")
    assert kubernetes.check_addon(environment, "vpc-cni", "v1.0", found).status is OK
    assert kubernetes.check_addon(environment, "vpc-cni", "", found).found == "v2.0"
    assert kubernetes.check_addon(environment, "vpc-cni", "v3.0", found).status is FAILED
    assert kubernetes.check_addon(environment, "vpc-cni", "", ()).status is FAILED


def test_grafana_wants_an_identity_center_of_the_organization(environment):
    asked = good()
    management = signin.management_account(asked.aws)
    found = signin.identity_centers(asked.aws)
    assert management == MANAGEMENT
    assert signin.check_identity_center(environment, found, management).status is OK
    own = (signin.IdentityCenter("arn:aws:sso:::instance/ssoins-2", ACCOUNT, "us-west-2"),)
    for wrong in ((), own):
        refusal = signin.check_identity_center(environment, wrong, management)
        assert refusal.status is FAILED
        assert "observability.grafana = false" in refusal.remedy


def test_an_identity_center_of_unknown_owner_is_unknown(environment):
    asked = Account()  # moto's account is in no organization
    management = signin.management_account(asked.aws)
    assert isinstance(management, Unknown)
    found = signin.check_identity_center(environment, signin.identity_centers(asked.aws), management)
    assert found.status is UNKNOWN


def test_the_token_of_ones_own_grafana_has_to_be_there(environment):
    asked = Account()
    made = asked.session.client("secretsmanager").create_secret(Name="grafana", SecretString="text")
    assert signin.secret_exists(asked.aws, made["ARN"]) is True
    gone = signin.secret_exists(asked.aws, made["ARN"] + "gone")
    assert signin.check_token(environment, gone).status is FAILED
