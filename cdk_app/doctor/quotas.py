"""Service quotas against what the settings need, beside what others in the account already use.

Most quotas "for cluster usage" and "for endpoint usage" are 0 in a new account. Quotas are found by code
where one is known, else by name; the codes of g7e and r5d are published nowhere that we know of.
"""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from cdk_app.doctor.aws import Aws
from cdk_app.doctor.finding import Finding, Status, Unknown, judge, unknown
from cdk_app.doctor.instances import groups
from cdk_app.names import Names
from cdk_app.residue import ENVIRONMENT_TAG
from stacks.environment import Environment

AREA = "quotas"


@dataclass(frozen=True)
class Need:
    """`amount` that a deploy of the settings takes of a quota; `code` may be unknown ("")."""

    service: str
    name: str
    code: str
    amount: float

    @property
    def key(self) -> str:
        return self.code or self.name


@dataclass(frozen=True)
class Quota:
    code: str
    name: str
    value: float


Quotas = Mapping[str, Mapping[str, Quota] | Unknown]
"""By service: its quotas by code and by name."""
Used = Mapping[str, float | Unknown]
"""By `Need.key`: what others than this environment use. A quota that nothing was asked about is not in it."""


def needs(environment: Environment) -> list[Need]:
    nodes: dict[str, int] = {}
    for group in groups(environment).values():
        nodes[group.instance_type] = nodes.get(group.instance_type, 0) + group.count
    volume_gib = max(group.extra_volume_gib for group in groups(environment).values())
    lustre_gib = environment.storage.lustre_capacity_gib
    endpoint = environment.serving.endpoint
    clusters = "instances allowed {} SageMaker HyperPod cluster"
    return [
        *(Need("sagemaker", f"{t} for cluster usage", "", count) for t, count in nodes.items() if count),
        *(
            [Need("sagemaker", f"{endpoint.instance_type} for endpoint usage", "", endpoint.max_copies)]
            if endpoint
            else []
        ),
        Need("sagemaker", f"Maximum number {clusters.format('per')}", "L-2CE978FC", sum(nodes.values())),
        Need("sagemaker", f"Total number of {clusters.format('across')}s", "L-3308CCC7", sum(nodes.values())),
        Need(
            "sagemaker",
            "Maximum size of EBS volume in GB for a SageMaker HyperPod cluster instance",
            "L-E13DF72A",
            volume_gib,
        ),
        Need("vpc", "VPCs per Region", "L-F678F1CE", 1),
        Need("ec2", "EC2-VPC Elastic IPs", "L-0263D0A3", 1),
        Need("fsx", "Lustre Persistent_2 storage capacity", "L-8F1B9C74", lustre_gib),
        Need("codebuild", "Concurrently running builds for Linux/Large environment", "L-4DDC4A99", 1),
    ]


def quotas(aws: Aws, wanted: Iterable[Need]) -> Quotas:
    """The quotas of every service needed: applied values, and defaults where none is applied."""
    wanted = list(wanted)
    found: dict[str, Mapping[str, Quota] | Unknown] = {}
    for service in dict.fromkeys(need.service for need in wanted):
        keys = {need.key for need in wanted if need.service == service}
        found[service] = _listed(aws, service, "list_service_quotas", "servicequotas:ListServiceQuotas")
        if not isinstance(found[service], Unknown) and not keys <= found[service].keys():
            defaults = _listed(
                aws, service, "list_aws_default_service_quotas", "servicequotas:ListAWSDefaultServiceQuotas"
            )
            if not isinstance(defaults, Unknown):
                found[service] = {**defaults, **found[service]}
    return found


def _listed(aws: Aws, service: str, operation: str, action: str) -> Mapping[str, Quota] | Unknown:
    def question() -> Mapping[str, Quota]:
        listed = [
            Quota(item["QuotaCode"], item["QuotaName"], item["Value"])
            for item in aws.pages("service-quotas", operation, "Quotas", ServiceCode=service)
        ]
        return {key: quota for quota in listed for key in (quota.code, quota.name)}

    return aws.ask(action, question)


def used_by_others(aws: Aws, environment: Environment, names: Names) -> Used:
    """What stands in the account besides this environment: a second deploy needs nothing twice."""

    def ours(tags: Iterable[Mapping[str, str]]) -> bool:
        return any(t["Key"] == ENVIRONMENT_TAG and t["Value"] == environment.name for t in tags)

    def others(service: str, operation: str, key: str) -> list[dict]:
        return [item for item in aws.pages(service, operation, key) if not ours(item.get("Tags", []))]

    def nodes() -> dict[str, int]:
        counts: dict[str, int] = {}
        for summary in aws.pages("sagemaker", "list_clusters", "ClusterSummaries"):
            if summary["ClusterName"] == names.cluster:
                continue
            cluster = aws.client("sagemaker").describe_cluster(ClusterName=summary["ClusterName"])
            for group in cluster.get("InstanceGroups", []):
                kind = group.get("InstanceType", "")
                counts[kind] = counts.get(kind, 0) + max(group.get("CurrentCount", 0), group["TargetCount"])
        return counts

    def lustre_gib() -> int:
        return sum(
            item["StorageCapacity"]
            for item in others("fsx", "describe_file_systems", "FileSystems")
            if item.get("LustreConfiguration", {}).get("DeploymentType") == "PERSISTENT_2"
        )

    counted = aws.ask("sagemaker:ListClusters, sagemaker:DescribeCluster", nodes)
    used: dict[str, float | Unknown] = {}
    for need in needs(environment):
        if need.name.endswith("for cluster usage"):
            kind = need.name.split()[0]
            used[need.key] = counted if isinstance(counted, Unknown) else counted.get(kind, 0)
    used["L-3308CCC7"] = counted if isinstance(counted, Unknown) else sum(counted.values())
    counts: dict[str, tuple[str, Callable[[], int]]] = {
        "L-F678F1CE": ("ec2:DescribeVpcs", lambda: len(others("ec2", "describe_vpcs", "Vpcs"))),
        "L-0263D0A3": (
            "ec2:DescribeAddresses",
            lambda: len(others("ec2", "describe_addresses", "Addresses")),
        ),
        "L-8F1B9C74": ("fsx:DescribeFileSystems", lustre_gib),
    }
    return used | {key: aws.ask(action, count) for key, (action, count) in counts.items()}


def check(environment: Environment, found: Quotas, used: Used) -> list[Finding]:
    return [_check(need, environment.region, found, used) for need in needs(environment)]


def _check(need: Need, region: str, found: Quotas, used: Used) -> Finding:
    wanted = f"{need.amount:g}"
    listed = found[need.service]
    if isinstance(listed, Unknown):
        return unknown(AREA, need.name, listed, wanted)
    quota = listed.get(need.key)
    look = f"aws service-quotas list-service-quotas --service-code {need.service} --region {region}"
    if quota is None:
        why = Unknown(
            f"{region} lists no such quota of {need.service}",
            f"{look} --query \"Quotas[?contains(QuotaName, '{need.name.split()[0]}')]\"",
        )
        return unknown(AREA, need.name, why, wanted)
    others = used.get(need.key, 0)
    known = 0 if isinstance(others, Unknown) else others
    if known:
        wanted = f"{need.amount:g} beside the {known:g} in use"
    finding = judge(
        AREA,
        need.name,
        quota.value >= need.amount + known,
        f"{quota.value:g}",
        needed=wanted,
        remedy=f"aws service-quotas request-service-quota-increase --service-code {need.service} "
        f"--quota-code {quota.code} --desired-value {need.amount + known:g} --region {region}",
    )
    if finding.status is Status.OK and isinstance(others, Unknown):
        why = Unknown(f"{quota.value:g}, but how much is in use: {others.reason}", others.remedy)
        return unknown(AREA, need.name, why, wanted)
    return finding
