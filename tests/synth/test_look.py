"""What is left, and what differs from the settings, as commands; and neither in somebody else's account."""

import json
from types import SimpleNamespace

import boto3
import pytest
from click.testing import CliRunner
from moto import mock_aws

from cdk_app import look, names, outputs, readback, residue, settings
from stacks import scripts
from training.errors import SubstrateError

PAPER = settings.load("paper")
OTHER = PAPER.model_copy(update={"account": "999999999999"})
NAMES = names.of(PAPER, "123456789012")


@pytest.fixture
def session(monkeypatch):
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    with mock_aws():
        yield boto3.Session(region_name=PAPER.region)


@pytest.mark.parametrize("ask", [residue.sweep, outputs.read])
def test_another_account_than_that_of_the_settings_is_refused(session, ask):
    with pytest.raises(SubstrateError, match=r"account 123456789012 .* 999999999999\n.*AWS_PROFILE"):
        ask(session, OTHER)


@pytest.mark.parametrize("command", [look.residue, look.readback])
def test_a_command_does_not_look_there_either(session, monkeypatch, command):
    monkeypatch.setattr(settings, "load", lambda _: OTHER)
    raised = CliRunner().invoke(command, []).exception
    assert isinstance(raised, SubstrateError)
    assert "999999999999" in raised.problem


def test_residue_says_what_is_left_and_what_is_known_of_its_cost(session, monkeypatch):
    left = [
        residue.Residue("NAT gateway", "nat-1", "available"),
        residue.Residue("HyperPod cluster", NAMES.cluster),
        residue.Residue("log group", "/aws/lambda/skypod-paper-x"),
    ]
    monkeypatch.setattr(residue, "sweep", lambda *_: left)
    told = CliRunner().invoke(look.residue, [])
    assert told.exit_code == 1
    assert "nat-1  (available, about 33 USD a month)" in told.output
    assert "3 left of environment paper in account 123456789012, us-west-2, at least " in told.output
    answer = json.loads(CliRunner().invoke(look.residue, ["--json"]).output)
    assert [item["identifier"] for item in answer["left"]] == [item.identifier for item in left]
    months = [item["monthly_usd"] for item in answer["left"]]
    assert 20_000 < months[1] < 40_000
    assert months[2] is None
    monkeypatch.setattr(residue, "sweep", lambda *_: [])
    told = CliRunner().invoke(look.residue, [])
    assert (told.exit_code, told.output) == (
        0,
        "nothing left of environment paper in account 123456789012, us-west-2\n",
    )


def test_readback_says_what_is_not_as_set(session, monkeypatch):
    checks = [readback.Check("nodes", "3", "2"), readback.Check("VPC", "a", "a")]
    monkeypatch.setattr(outputs, "read", lambda *_: None)
    monkeypatch.setattr(readback, "compare", lambda *_: checks)
    told = CliRunner().invoke(look.readback, [])
    assert told.exit_code == 1
    assert told.output == "nodes: 2, and the settings ask for 3\n1 of 2 properties are as set\n"
    assert [c["ok"] for c in json.loads(CliRunner().invoke(look.readback, ["--json"]).output)["checks"]] == [
        False,
        True,
    ]


@pytest.mark.parametrize(
    ("state", "way_out"),
    [
        ("ROLLBACK_COMPLETE", "its first deploy failed"),
        ("UPDATE_ROLLBACK_FAILED", "cdk rollback skypod-paper-network"),
        ("CREATE_IN_PROGRESS", "wait"),
        ("REVIEW_IN_PROGRESS", "cdk deploy --all"),
        ("DELETE_FAILED", "cdk diagnose skypod-paper-network --unstable=diagnose"),
    ],
)
def test_a_stack_without_its_resources_is_named_with_the_way_out(state, way_out):
    client = SimpleNamespace(describe_stacks=lambda **_: {"Stacks": [{"StackStatus": state}]})
    with pytest.raises(SubstrateError) as raised:
        outputs._stack_outputs(client, "skypod-paper-network")
    assert state in raised.value.problem
    assert way_out in raised.value.remedy


def _subject(**clients) -> SimpleNamespace:
    found = SimpleNamespace(
        hyperpod_cluster_name="c",
        eks_cluster_arn="arn",
        artifacts_bucket=NAMES.artifacts_bucket,
        lifecycle_bucket=NAMES.lifecycle_bucket,
    )
    return SimpleNamespace(environment=PAPER, outputs=found, client=clients.__getitem__)


def _wrong(checks) -> dict[str, tuple[str, str]]:
    return {check.what: (check.expected, check.found) for check in checks if not check.ok}


def test_counts_that_were_changed_by_hand_and_nodes_that_are_missing_are_read_back():
    gpu = {"InstanceGroupName": "gpu", "InstanceType": "ml.g7e.12xlarge", "TargetCount": 2}
    cluster = {
        "ClusterStatus": "InService",
        "Orchestrator": {"Eks": {"ClusterArn": "arn"}},
        "InstanceGroups": [gpu],
    }
    nodes = [{"InstanceGroupName": "gpu", "InstanceStatus": {"Status": s}} for s in ("Running", "Pending")]
    pages = SimpleNamespace(paginate=lambda **_: [{"ClusterNodeSummaries": nodes}])
    client = SimpleNamespace(describe_cluster=lambda **_: cluster, get_paginator=lambda _: pages)
    wrong = _wrong(readback._hyperpod(_subject(sagemaker=client)))
    assert wrong["HyperPod group gpu"] == ("3 x ml.g7e.12xlarge", "2 x ml.g7e.12xlarge")
    assert wrong["HyperPod group gpu, nodes running"] == ("3", "1")
    assert wrong["HyperPod group head"] == ("1 x ml.r5d.16xlarge", "missing")


def test_a_lifecycle_script_that_was_changed_or_deleted_is_read_back(session):
    s3 = session.client("s3")
    closed = dict.fromkeys(
        ("BlockPublicAcls", "IgnorePublicAcls", "BlockPublicPolicy", "RestrictPublicBuckets"), True
    )
    for bucket in (NAMES.artifacts_bucket, NAMES.lifecycle_bucket):
        s3.create_bucket(Bucket=bucket, CreateBucketConfiguration={"LocationConstraint": PAPER.region})
        s3.put_public_access_block(Bucket=bucket, PublicAccessBlockConfiguration=closed)
        s3.put_bucket_versioning(Bucket=bucket, VersioningConfiguration={"Status": "Enabled"})
    ((key, text),) = scripts.lifecycle().items()
    for body, found in ((None, "missing"), ("exit 1", "another text"), (text, None)):
        if body is not None:
            s3.put_object(Bucket=NAMES.lifecycle_bucket, Key=key, Body=body.encode())
        wrong = _wrong(readback._storage(_subject(s3=s3)))
        assert [seen for _, seen in wrong.values()] == ([found] if found else [])


def test_what_keeps_the_vpc_is_named_though_it_carries_no_tag_of_ours(session):
    ec2 = session.client("ec2")
    ours, other = (ec2.create_vpc(CidrBlock=f"10.{i}.0.0/16")["Vpc"]["VpcId"] for i in (1, 2))
    ec2.create_tags(Resources=[ours], Tags=[{"Key": residue.ENVIRONMENT_TAG, "Value": PAPER.name}])
    keeping = set()
    for vpc, block in ((ours, "10.1.0.0/24"), (other, "10.2.0.0/24")):
        subnet = ec2.create_subnet(VpcId=vpc, CidrBlock=block)["Subnet"]["SubnetId"]
        made = ec2.create_network_interface(SubnetId=subnet, Description="ELB app/web")["NetworkInterface"]
        group = ec2.create_security_group(VpcId=vpc, GroupName="eks-cluster-sg-x", Description="EKS")
        if vpc == ours:
            keeping = {
                ("network interface", made["NetworkInterfaceId"], f"ELB app/web, available, in {ours}"),
                ("security group", group["GroupId"], f"eks-cluster-sg-x in {ours}"),
            }
    search = residue._Search(session, PAPER, NAMES)
    found = {(item.kind, item.identifier, item.detail) for item in residue._network(search)}
    assert found == keeping | {("VPC", ours, "available")}
