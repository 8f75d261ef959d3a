"""Whether EKS still supports the Kubernetes version, and offers every add-on of the templates for it."""

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from typing import Any

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Unknown, judge, unknown
from stacks.environment import Environment

AREA = "kubernetes"
HYPERPOD_VERSIONS = tuple(f"1.{minor}" for minor in range(30, 36))
"""SageMaker developer guide, HyperPod AMI and Kubernetes support, autumn 2026."""
_SOON_DAYS = 60


@dataclass(frozen=True)
class Support:
    """`status` is EKS's: STANDARD_SUPPORT, EXTENDED_SUPPORT or UNSUPPORTED."""

    status: str
    standard_until: date | None


def support(aws: Aws, version: str) -> Support | Unknown | None:
    """None when EKS does not know the version."""

    def question() -> Support | None:
        listed = aws.client("eks").describe_cluster_versions(clusterVersions=[version])["clusterVersions"]
        if not listed:
            return None
        until = listed[0].get("endOfStandardSupportDate")
        return Support(listed[0].get("versionStatus", ""), until.date() if until else None)

    return aws.ask("eks:DescribeClusterVersions", question)


def addons(templates: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Add-on name -> pinned version ("" where the template leaves it to EKS)."""
    properties = [
        resource["Properties"]
        for template in templates.values()
        for resource in template["Resources"].values()
        if resource["Type"] == "AWS::EKS::Addon"
    ]
    return {str(p["AddonName"]): str(p.get("AddonVersion", "")) for p in properties}


def addon_versions(aws: Aws, name: str, kubernetes: str) -> tuple[str, ...] | Unknown:
    """Versions of the add-on that run on this Kubernetes version, newest first; empty when there is none."""

    def question() -> tuple[str, ...]:
        listed = aws.pages(
            "eks", "describe_addon_versions", "addons", addonName=name, kubernetesVersion=kubernetes
        )
        return tuple(item["addonVersion"] for addon in listed for item in addon["addonVersions"])

    return aws.ask("eks:DescribeAddonVersions", question)


def check_support(
    environment: Environment, found: Support | Unknown | None, today: date | None = None
) -> Finding:
    check = f"Kubernetes {environment.eks.version}"
    if isinstance(found, Unknown):
        return unknown(AREA, check, found, "standard support")
    today = today or datetime.now(UTC).date()
    if found is None or found.status == "UNSUPPORTED":
        newest = HYPERPOD_VERSIONS[-1]
        return judge(
            AREA, check, False, "EKS does not offer it", remedy=f"set eks.version, for example to {newest}"
        )
    until = found.standard_until
    days = (until - today).days if until else _SOON_DAYS
    standard = found.status == "STANDARD_SUPPORT"
    return judge(
        AREA,
        check,
        standard and days >= _SOON_DAYS,
        f"{'standard' if standard else 'extended'} support" + (f", standard until {until}" if until else ""),
        needed=f"standard support for {_SOON_DAYS} days",
        remedy=f"raise eks.version (HyperPod took up to {HYPERPOD_VERSIONS[-1]} so far): extended support "
        "costs 0.60 instead of 0.10 USD an hour",
        warn=True,
    )


def check_addon(
    environment: Environment, name: str, pinned: str, found: tuple[str, ...] | Unknown
) -> Finding:
    check, needed = f"add-on {name}", pinned or f"any for {environment.eks.version}"
    if isinstance(found, Unknown):
        return unknown(AREA, check, found, needed)
    good = pinned in found if pinned else bool(found)
    listing = (
        f"aws eks describe-addon-versions --addon-name {name} --kubernetes-version {environment.eks.version}"
    )
    return judge(
        AREA,
        check,
        good,
        (pinned if good and pinned else found[0]) if found else "none",
        needed=needed,
        remedy=f"pin a version that `{listing}` lists"
        if found
        else f"change eks.version; `{listing}` is empty",
    )
