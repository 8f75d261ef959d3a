"""What AWS says about a deployed environment, set against what its settings ask for."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

from cdk_app import names
from cdk_app.outputs import Outputs
from stacks.environment import Environment


@dataclass(frozen=True)
class Check:
    """One comparison. `expected` comes from the settings, `found` from the service's own API."""

    what: str
    expected: str
    found: str

    @property
    def ok(self) -> bool:
        return self.expected == self.found


@dataclass(frozen=True)
class _Subject:
    session: boto3.Session
    environment: Environment
    outputs: Outputs

    def client(self, service: str) -> Any:
        return self.session.client(service, region_name=self.environment.region)

    @property
    def names(self) -> names.Names:
        return names.of(self.environment, self.outputs.account)


def compare(session: boto3.Session, environment: Environment, outputs: Outputs) -> list[Check]:
    """Every comparison, in the order of the stacks. A resource that cannot be read is a failed check."""
    subject = _Subject(session, environment, outputs)
    checks: list[Check] = []
    for part, reader in _READERS.items():
        try:
            checks += reader(subject)
        except (ClientError, LookupError) as error:
            checks.append(Check(part, "readable", f"{type(error).__name__}: {error}"))
    return checks


def _network(subject: _Subject) -> Iterator[Check]:
    client = subject.client("ec2")
    vpc = client.describe_vpcs(VpcIds=[subject.outputs.vpc_id])["Vpcs"][0]
    yield Check("VPC address block", subject.environment.network.cidr, vpc["CidrBlock"])
    in_vpc = [{"Name": "vpc-id", "Values": [subject.outputs.vpc_id]}]
    subnets = client.describe_subnets(Filters=in_vpc)["Subnets"]
    zones = sorted({subnet["AvailabilityZone"] for subnet in subnets})
    yield Check("subnet zones", _joined(sorted(subject.environment.network.zones)), _joined(zones))


def _storage(subject: _Subject) -> Iterator[Check]:
    settings = subject.environment.storage
    fsx = subject.client("fsx")
    file_system = fsx.describe_file_systems(FileSystemIds=[subject.outputs.file_system_id])["FileSystems"][0]
    lustre = file_system["LustreConfiguration"]
    yield Check("Lustre state", "AVAILABLE", file_system["Lifecycle"])
    yield Check(
        "Lustre capacity, GiB", str(settings.lustre_capacity_gib), str(file_system["StorageCapacity"])
    )
    throughput = settings.lustre_throughput_mib_s_per_tib
    yield Check("Lustre throughput, MiB/s per TiB", str(throughput), str(lustre["PerUnitStorageThroughput"]))
    yield Check("Lustre address", subject.outputs.file_system_dns, file_system["DNSName"])
    yield Check("Lustre mount name", subject.outputs.file_system_mount_name, lustre["MountName"])
    wanted = [{"Name": "file-system-id", "Values": [subject.outputs.file_system_id]}]
    links = fsx.describe_data_repository_associations(Filters=wanted)["Associations"]
    linked = _joined(link["DataRepositoryPath"].removeprefix("s3://").partition("/")[0] for link in links)
    yield Check("Lustre exports to", subject.outputs.artifacts_bucket, linked)
    s3 = subject.client("s3")
    for bucket in (subject.outputs.artifacts_bucket, subject.outputs.lifecycle_bucket):
        block = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
        yield Check(f"bucket {bucket} public access", "blocked", "blocked" if all(block.values()) else "open")
        versioning = s3.get_bucket_versioning(Bucket=bucket).get("Status", "off")
        yield Check(f"bucket {bucket} versioning", "Enabled", versioning)


def _images(subject: _Subject) -> Iterator[Check]:
    ecr = subject.client("ecr")
    codebuild = subject.client("codebuild")
    for image in ("train", "serve"):
        name = subject.names.repository(image)
        repository = ecr.describe_repositories(repositoryNames=[name])["repositories"][0]
        yield Check(
            f"image repository {name}",
            getattr(subject.outputs, f"{image}_repository_uri"),
            repository["repositoryUri"],
        )
    projects = [subject.outputs.train_build_project, subject.outputs.serve_build_project]
    projects.append(subject.outputs.chart_build_project)
    found = [project["name"] for project in codebuild.batch_get_projects(names=projects)["projects"]]
    yield Check("build projects", _joined(sorted(projects)), _joined(sorted(found)))


def _eks(subject: _Subject) -> Iterator[Check]:
    settings = subject.environment.eks
    client = subject.client("eks")
    cluster = client.describe_cluster(name=subject.outputs.eks_cluster_name)["cluster"]
    yield Check("EKS state", "ACTIVE", cluster["status"])
    yield Check("EKS version", settings.version, cluster["version"])
    allowed = cluster["resourcesVpcConfig"]["publicAccessCidrs"]
    yield Check("EKS public access from", _joined(settings.public_access_cidrs), _joined(allowed))
    yield Check("EKS address block", subject.outputs.vpc_id, cluster["resourcesVpcConfig"]["vpcId"])
    accounts = (subject.outputs.training_service_account, subject.outputs.serving_service_account)
    listed = client.list_pod_identity_associations(clusterName=subject.outputs.eks_cluster_name)[
        "associations"
    ]
    bound = {f"{entry['namespace']}/{entry['serviceAccount']}" for entry in listed}
    for account in accounts:
        name = f"{subject.environment.namespace}/{account}"
        yield Check(f"role of service account {name}", "bound", "bound" if name in bound else "missing")


def _hyperpod(subject: _Subject) -> Iterator[Check]:
    client = subject.client("sagemaker")
    cluster = client.describe_cluster(ClusterName=subject.outputs.hyperpod_cluster_name)
    yield Check("HyperPod state", "InService", cluster["ClusterStatus"])
    yield Check(
        "HyperPod orchestrator", subject.outputs.eks_cluster_arn, cluster["Orchestrator"]["Eks"]["ClusterArn"]
    )
    settings = subject.environment.hyperpod
    expected = {"head": settings.head, "gpu": settings.gpu}
    groups = {group["InstanceGroupName"]: group for group in cluster["InstanceGroups"]}
    yield Check("HyperPod groups", _joined(sorted(expected)), _joined(sorted(groups)))
    pages = client.get_paginator("list_cluster_nodes").paginate(
        ClusterName=subject.outputs.hyperpod_cluster_name
    )
    running = Counter(
        node["InstanceGroupName"]
        for page in pages
        for node in page["ClusterNodeSummaries"]
        if node["InstanceStatus"]["Status"] == "Running"
    )
    for name, group in expected.items():
        found = groups[name]
        asked = f"{group.count} x {group.instance_type}"
        yield Check(f"HyperPod group {name}", asked, f"{found['TargetCount']} x {found['InstanceType']}")
        yield Check(f"HyperPod group {name}, nodes running", str(group.count), str(running[name]))


def _access(subject: _Subject) -> Iterator[Check]:
    iam = subject.client("iam")
    for who, arn in (
        ("admin", subject.outputs.admin_role_arn),
        ("researcher", subject.outputs.researcher_role_arn),
    ):
        role = iam.get_role(RoleName=subject.names.role(who))["Role"]
        yield Check(f"{who} role", arn, role["Arn"])


def _observability(subject: _Subject) -> Iterator[Check]:
    amp = subject.client("amp")
    workspace = amp.describe_workspace(workspaceId=subject.outputs.prometheus_workspace_id)["workspace"]
    yield Check("Prometheus state", "ACTIVE", workspace["status"]["statusCode"])
    address = workspace["prometheusEndpoint"].rstrip("/")
    yield Check("Prometheus address", subject.outputs.prometheus_endpoint.rstrip("/"), address)
    rules = amp.list_rule_groups_namespaces(workspaceId=subject.outputs.prometheus_workspace_id)
    loaded = {namespace["status"]["statusCode"] for namespace in rules["ruleGroupsNamespaces"]}
    yield Check("alert rules", "ACTIVE", _joined(sorted(loaded)))
    found = "off"
    if subject.outputs.grafana_workspace_id:
        grafana = subject.client("grafana")
        found = grafana.describe_workspace(workspaceId=subject.outputs.grafana_workspace_id)["workspace"][
            "status"
        ]
    yield Check("Grafana", "ACTIVE" if subject.environment.observability.grafana else "off", found)


def _guardrails(subject: _Subject) -> Iterator[Check]:
    topic = subject.client("sns").get_topic_attributes(TopicArn=subject.outputs.alerts_topic_arn)
    yield Check("alert topic", subject.outputs.alerts_topic_arn, topic["Attributes"]["TopicArn"])
    budget = subject.client("budgets").describe_budget(
        AccountId=subject.outputs.account, BudgetName=subject.outputs.budget_name
    )["Budget"]
    asked = subject.environment.guardrails.monthly_budget_usd
    yield Check("monthly budget, USD", f"{asked:g}", f"{float(budget['BudgetLimit']['Amount']):g}")


_READERS: dict[str, Callable[[_Subject], Iterator[Check]]] = {
    "network": _network,
    "guardrails": _guardrails,
    "storage": _storage,
    "images": _images,
    "eks": _eks,
    "hyperpod": _hyperpod,
    "access": _access,
    "observability": _observability,
}


def _joined(values: Any) -> str:
    return ", ".join(values)
