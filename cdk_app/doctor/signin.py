"""What Grafana needs outside of the stacks: Identity Center, or a token for a Grafana of yours."""

from dataclasses import dataclass

from botocore.exceptions import ClientError

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from stacks.environment import Environment

AREA = "sign-in"
_OFF = "set observability.grafana = false: metrics and alerts do not need it"


@dataclass(frozen=True)
class IdentityCenter:
    """One instance: an organization's is owned by the management account, an account's by the account."""

    arn: str
    owner: str
    region: str


def identity_centers(aws: Aws) -> tuple[IdentityCenter, ...] | Unknown:
    """Those that can be seen from the environment's region and from us-east-1, where most of them live."""

    def question() -> tuple[IdentityCenter, ...]:
        regions = dict.fromkeys((aws.region, "us-east-1"))
        return tuple(
            IdentityCenter(item["InstanceArn"], item["OwnerAccountId"], region)
            for region in regions
            for item in aws.client("sso-admin", region).list_instances()["Instances"]
        )

    return aws.ask("sso:ListInstances", question)


def management_account(aws: Aws) -> str | Unknown:
    """The organization's management account."""
    return aws.ask(
        "organizations:DescribeOrganization",
        lambda: aws.client("organizations").describe_organization()["Organization"]["MasterAccountId"],
    )


def secret_exists(aws: Aws, arn: str) -> bool | Unknown:
    def question() -> bool:
        try:
            aws.client("secretsmanager").describe_secret(SecretId=arn)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ResourceNotFoundException":
                return False
            raise
        return True

    return aws.ask("secretsmanager:DescribeSecret", question)


def check_identity_center(
    environment: Environment, found: tuple[IdentityCenter, ...] | Unknown, management: str | Unknown
) -> Finding:
    """Managed Grafana signs in through an *organization* instance; an account instance is refused."""
    needed = "an organization instance"
    check = "Identity Center for Grafana"
    if isinstance(found, Unknown):
        return unknown(AREA, check, found, needed)
    if not found:
        return judge(
            AREA,
            check,
            False,
            f"no instance seen from {environment.region} or us-east-1",
            needed=needed,
            remedy="enable it in the management account (one of another region is shown by `aws sso-admin "
            f"list-instances --region <region>`), or {_OFF}",
        )
    if isinstance(management, Unknown):
        why = Unknown(
            f"{found[0].arn}, but whose it is cannot be told: {management.reason}", management.remedy
        )
        return unknown(AREA, check, why, needed)
    organization = next((instance for instance in found if instance.owner == management), None)
    if organization is None:
        return judge(
            AREA,
            check,
            False,
            f"{found[0].arn} is an account instance of {found[0].owner}",
            needed=needed,
            remedy=f"enable Identity Center in the management account {management}, or {_OFF}",
        )
    return Finding(AREA, check, Status.OK, f"{organization.arn} in {organization.region}", needed)


def check_token(environment: Environment, found: bool | Unknown) -> Finding:
    """The secret with the token of the Grafana that `observability.grafana_url` names."""
    url, arn = environment.observability.grafana_url, environment.observability.grafana_token_secret_arn
    if isinstance(found, Unknown):
        return unknown(AREA, f"token for {url}", found, arn)
    return judge(
        AREA,
        f"token for {url}",
        found,
        arn if found else "there is no such secret",
        needed=arn,
        remedy="make a service account token in that Grafana, and then `aws secretsmanager create-secret`",
    )
