"""Settings that work, and that a platform team would still want to have been asked about."""

from cdk_app.doctor.finding import Finding, Status, judge
from stacks.environment import Environment

AREA = "settings"


def check(environment: Environment) -> list[Finding]:
    public, cidrs = environment.eks.public_access, environment.eks.public_access_cidrs
    email = environment.observability.alert_email
    return [
        judge(
            AREA,
            "cluster endpoint",
            not public or "0.0.0.0/0" not in cidrs,
            f"open to {', '.join(cidrs)}" if public else "answers inside the VPC only",
            needed="the networks that deploy and submit",
            remedy="set eks.public_access_cidrs to your own, for example that of "
            "`curl -s https://checkip.amazonaws.com`, as a.b.c.d/32",
            warn=True,
        ),
        judge(
            AREA,
            "alerts",
            bool(email),
            f"to {email}" if email else "reach nobody",
            needed="an address",
            remedy="set observability.alert_email; AWS then asks that address to confirm",
            warn=True,
        ),
        Finding(
            AREA,
            "data after destroy",
            Status.OK,
            "kept"
            if environment.storage.keep_data
            else "deleted: adapters and checkpoints must be copied first",
        ),
    ]
