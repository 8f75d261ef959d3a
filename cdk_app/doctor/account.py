"""Who asks, in which account, and whether `cdk` can deploy there."""

from dataclasses import dataclass

from botocore.exceptions import ClientError

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from stacks.environment import Environment

AREA = "account"
BOOTSTRAP_PARAMETER = "/cdk-bootstrap/hnb659fds/version"
BOOTSTRAP_VERSION = 6
"""What the default synthesizer of the CDK asks of the bootstrap stack."""
_SIGN_IN = (
    "sign in: `aws configure sso`, then `aws sso login`, or export AWS_PROFILE; without AWS use --offline"
)


@dataclass(frozen=True)
class Identity:
    account: str
    arn: str


def identity(aws: Aws) -> Identity | Unknown:
    """Unknown when AWS cannot be asked at all: no credentials, expired ones, or no network."""

    def question() -> Identity:
        answer = aws.client("sts").get_caller_identity()
        return Identity(answer["Account"], answer["Arn"])

    found = aws.ask("sts:GetCallerIdentity", question)
    return Unknown(found.reason, _SIGN_IN) if isinstance(found, Unknown) else found


def bootstrap_version(aws: Aws) -> int | Unknown:
    """The version of the CDK's bootstrap stack; 0 when there is none."""

    def question() -> int:
        try:
            answer = aws.client("ssm").get_parameter(Name=BOOTSTRAP_PARAMETER)
        except ClientError as error:
            if error.response["Error"]["Code"] == "ParameterNotFound":
                return 0
            raise
        return int(answer["Parameter"]["Value"])

    return aws.ask("ssm:GetParameter", question)


def check_identity(environment: Environment, found: Identity | Unknown, *, emulated: bool) -> list[Finding]:
    """Credentials, and that they are those of the account that the settings name."""
    if isinstance(found, Unknown):
        return [unknown(AREA, "credentials", found)]
    root = found.arn.endswith(":root") and not emulated
    findings = [
        judge(
            AREA,
            "credentials",
            not root,
            found.arn,
            remedy="take a role of your own: Kubernetes access and Ray clusters belong to who made them",
            warn=True,
        )
    ]
    if environment.account is None:
        said = f"{found.account}, from the credentials: the settings name none"
        findings.append(Finding(AREA, "account", Status.OK, said))
    else:
        findings.append(
            judge(
                AREA,
                "account",
                found.account == environment.account,
                found.account,
                needed=environment.account,
                remedy=f"take credentials of account {environment.account}, or correct `account` in "
                "the settings file",
            )
        )
    return findings


def check_bootstrap(environment: Environment, account: str, found: int | Unknown) -> Finding:
    needed = f"version {BOOTSTRAP_VERSION} or newer"
    if isinstance(found, Unknown):
        return unknown(AREA, "cdk bootstrap", found, needed)
    return judge(
        AREA,
        "cdk bootstrap",
        found >= BOOTSTRAP_VERSION,
        f"version {found}" if found else f"not done in {environment.region}",
        needed=needed,
        remedy=f"cdk bootstrap aws://{account}/{environment.region}",
    )
