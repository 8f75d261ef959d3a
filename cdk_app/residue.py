"""What is left of an environment: everything of ours that still exists, in every service of the stacks."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3

from cdk_app import caller, names
from cdk_app.paging import pages
from stacks.environment import Environment
from stacks.handlers.grafana_client import connect
from stacks.names import ENVIRONMENT_TAG


@dataclass(frozen=True, order=True)
class Residue:
    """One thing that exists although its environment should be gone."""

    kind: str
    identifier: str
    detail: str = ""


@dataclass(frozen=True)
class _Search:
    session: boto3.Session
    environment: Environment
    names: names.Names

    def client(self, service: str) -> Any:
        return self.session.client(service, region_name=self.environment.region)

    def pages(self, service: str, operation: str, key: str, **params: Any) -> Iterator[Any]:
        """All items of a listing."""
        yield from pages(self.client(service), operation, key, **params)

    def ours(self, name: str) -> bool:
        """Whether this environment's stacks gave the name, or CloudFormation derived it from one of them."""
        if name in (self.names.prefix, self.names.artifacts_bucket, self.names.lifecycle_bucket):
            return True
        heads = (*self.names.stacks, *(f"{self.names.prefix}-{made}" for made in _OTHER_NAMES))
        return name.startswith((f"{self.names.prefix}/", *heads))

    def tagged(self, tags: list[dict[str, str]], key: str = "Key", value: str = "Value") -> bool:
        return any(tag[key] == ENVIRONMENT_TAG and tag[value] == self.environment.name for tag in tags)


_OTHER_NAMES = (
    "idle-gpu-nodes",
    "lustre-full",
    "admin",
    "researcher",
    "promote",
    "base-",
    "charts",
    "train-image",
    "serve-image",
    "alerts",
    "monthly",
    "artifacts",
)


def sweep(session: boto3.Session, environment: Environment) -> list[Residue]:
    """Everything of `environment` in the session's account, sorted; an empty list after a complete destroy.

    The CDK's own bootstrap stack is the account's and not counted. A KMS key that waits for its deletion is
    not counted either, because AWS deletes none at once. Raises SubstrateError where the credentials are of
    another account than the settings, in which there is nothing of ours to see.
    """
    account = caller.account(session, environment)
    # Also stacks that the settings have since switched off.
    everything = names.Names(environment.name, account, environment.region)
    search = _Search(session, environment, everything)
    return sorted({residue for finder in _FINDERS for residue in finder(search)})


def _stacks(search: _Search) -> Iterator[Residue]:
    for stack in search.pages("cloudformation", "describe_stacks", "Stacks"):
        if stack["StackName"] in search.names.stacks:
            yield Residue("CloudFormation stack", stack["StackName"], stack["StackStatus"])


def _clusters(search: _Search) -> Iterator[Residue]:
    for cluster in search.pages("sagemaker", "list_clusters", "ClusterSummaries"):
        if cluster["ClusterName"] == search.names.cluster:
            yield Residue("HyperPod cluster", cluster["ClusterName"], cluster["ClusterStatus"])
    for name in search.pages("eks", "list_clusters", "clusters"):
        if name == search.names.cluster:
            yield Residue("EKS cluster", name)


def _file_systems(search: _Search) -> Iterator[Residue]:
    for file_system in search.pages("fsx", "describe_file_systems", "FileSystems"):
        if search.tagged(file_system.get("Tags", [])):
            detail = f"{file_system['StorageCapacity']} GiB, {file_system['Lifecycle']}"
            yield Residue("FSx file system", file_system["FileSystemId"], detail)


_NETWORK = (
    ("VPC", "describe_vpcs", "Vpcs", "VpcId"),
    ("subnet", "describe_subnets", "Subnets", "SubnetId"),
    ("security group", "describe_security_groups", "SecurityGroups", "GroupId"),
    ("route table", "describe_route_tables", "RouteTables", "RouteTableId"),
    ("internet gateway", "describe_internet_gateways", "InternetGateways", "InternetGatewayId"),
    ("NAT gateway", "describe_nat_gateways", "NatGateways", "NatGatewayId"),
    ("elastic IP address", "describe_addresses", "Addresses", "AllocationId"),
    ("VPC endpoint", "describe_vpc_endpoints", "VpcEndpoints", "VpcEndpointId"),
    ("VPC flow log", "describe_flow_logs", "FlowLogs", "FlowLogId"),
)


def _network(search: _Search) -> Iterator[Residue]:
    vpcs = set()
    for kind, operation, key, identifier in _NETWORK:
        for item in search.pages("ec2", operation, key):
            if search.tagged(item.get("Tags", [])) and item.get("State") != "deleted":
                vpcs |= {item[identifier]} if kind == "VPC" else set()
                yield Residue(kind, item[identifier], str(item.get("State", "")))
    for vpc in sorted(vpcs):
        yield from _foreign_in(search, vpc)


def _foreign_in(search: _Search, vpc: str) -> Iterator[Residue]:
    """What AWS or a person made in the VPC of ours: it carries no tag of ours, and keeps the VPC."""
    inside = [{"Name": "vpc-id", "Values": [vpc]}]
    for group in search.pages("ec2", "describe_security_groups", "SecurityGroups", Filters=inside):
        if group["GroupName"] != "default" and not search.tagged(group.get("Tags", [])):
            yield Residue("security group", group["GroupId"], f"{group['GroupName']} in {vpc}")
    for interface in search.pages("ec2", "describe_network_interfaces", "NetworkInterfaces", Filters=inside):
        if interface["VpcId"] == vpc:
            said = [interface.get("Description", ""), interface["Status"], f"in {vpc}"]
            yield Residue("network interface", interface["NetworkInterfaceId"], ", ".join(filter(None, said)))


def _buckets(search: _Search) -> Iterator[Residue]:
    for bucket in search.client("s3").list_buckets()["Buckets"]:
        if search.ours(bucket["Name"]):
            yield Residue("S3 bucket", bucket["Name"])


def _builds(search: _Search) -> Iterator[Residue]:
    for repository in search.pages("ecr", "describe_repositories", "repositories"):
        if search.ours(repository["repositoryName"]):
            yield Residue("ECR repository", repository["repositoryName"])
    for project in search.pages("codebuild", "list_projects", "projects"):
        if search.ours(project):
            yield Residue("CodeBuild project", project)


def _functions(search: _Search) -> Iterator[Residue]:
    for function in search.pages("lambda", "list_functions", "Functions"):
        if search.ours(function["FunctionName"]):
            yield Residue("Lambda function", function["FunctionName"])


_LOG_FOLDERS = (
    "/aws/lambda/",
    "/aws/codebuild/",
    "/aws/eks/",
    "/aws/sagemaker/Clusters/",
    "/aws/sagemaker/Endpoints/",
    "/aws/sagemaker/InferenceComponents/",
    "/",
)


def _logs(search: _Search) -> Iterator[Residue]:
    for group in search.pages("logs", "describe_log_groups", "logGroups"):
        name = group["logGroupName"]
        folder = next((folder for folder in _LOG_FOLDERS if name.startswith(folder)), "")
        if search.ours(name.removeprefix(folder)):
            yield Residue("log group", name, f"{group.get('storedBytes', 0)} bytes")


def _keys(search: _Search) -> Iterator[Residue]:
    kms = search.client("kms")
    for listed in search.pages("kms", "list_keys", "Keys"):
        key = kms.describe_key(KeyId=listed["KeyId"])["KeyMetadata"]
        if key["KeyManager"] != "CUSTOMER" or key["KeyState"] == "PendingDeletion":
            continue
        if search.tagged(kms.list_resource_tags(KeyId=key["KeyId"])["Tags"], "TagKey", "TagValue"):
            yield Residue("KMS key", key["KeyId"], key["KeyState"])


def _roles(search: _Search) -> Iterator[Residue]:
    for role in search.pages("iam", "list_roles", "Roles"):
        if search.ours(role["RoleName"]):
            yield Residue("IAM role", role["RoleName"])


def _serving(search: _Search) -> Iterator[Residue]:
    """Promotions make the groups, and no stack takes them away."""
    for policy in search.pages("iam", "list_policies", "Policies", Scope="Local"):
        if search.ours(policy["PolicyName"]):
            yield Residue("IAM policy", policy["Arn"])
    for group in search.pages("sagemaker", "list_model_package_groups", "ModelPackageGroupSummaryList"):
        if search.ours(group["ModelPackageGroupName"]):
            yield Residue("model package group", group["ModelPackageGroupName"])


def _inference(search: _Search) -> Iterator[Residue]:
    """Models and configurations bear CloudFormation's names, so all are found by their tags."""
    client = search.client("sagemaker")
    for kind, operation, key, thing in (
        ("inference component", "list_inference_components", "InferenceComponents", "InferenceComponent"),
        ("endpoint", "list_endpoints", "Endpoints", "Endpoint"),
        ("endpoint configuration", "list_endpoint_configs", "EndpointConfigs", "EndpointConfig"),
        ("model", "list_models", "Models", "Model"),
    ):
        for item in search.pages("sagemaker", operation, key):
            if search.tagged(client.list_tags(ResourceArn=item[f"{thing}Arn"])["Tags"]):
                yield Residue(kind, item[f"{thing}Name"], item.get(f"{thing}Status", ""))
    targets = search.pages(
        "application-autoscaling",
        "describe_scalable_targets",
        "ScalableTargets",
        ServiceNamespace="sagemaker",
    )
    for target in targets:
        if search.ours(target["ResourceId"].rpartition("/")[2]):
            yield Residue("scalable target", target["ResourceId"])


def _observability(search: _Search) -> Iterator[Residue]:
    for workspace in search.pages("amp", "list_workspaces", "workspaces"):
        if search.ours(workspace.get("alias", "")):
            yield Residue("Prometheus workspace", workspace["workspaceId"], workspace["status"]["statusCode"])
    for workspace in search.pages("grafana", "list_workspaces", "workspaces"):
        if search.ours(workspace.get("name", "")):
            yield Residue("Grafana workspace", workspace["id"], workspace["status"])


def _governance(search: _Search) -> Iterator[Residue]:
    """Found by tag: names may be those of teams that the settings no longer know."""
    for kind, operation, key, arn in (
        ("compute quota", "list_compute_quotas", "ComputeQuotaSummaries", "ComputeQuotaArn"),
        (
            "scheduler configuration",
            "list_cluster_scheduler_configs",
            "ClusterSchedulerConfigSummaries",
            "ClusterSchedulerConfigArn",
        ),
    ):
        for item in search.pages("sagemaker", operation, key):
            if search.tagged(search.client("sagemaker").list_tags(ResourceArn=item[arn])["Tags"]):
                yield Residue(kind, item["Name"], item["Status"])


def _studio(search: _Search) -> Iterator[Residue]:
    for domain in search.pages("sagemaker", "list_domains", "Domains"):
        if domain["DomainName"] == search.names.prefix:
            yield Residue("Studio domain", domain["DomainId"], domain["Status"])
            for profile in search.pages(
                "sagemaker", "list_user_profiles", "UserProfiles", DomainIdEquals=domain["DomainId"]
            ):
                yield Residue("Studio user profile", profile["UserProfileName"], profile["Status"])


def _watches(search: _Search) -> Iterator[Residue]:
    for alarm in search.pages("cloudwatch", "describe_alarms", "MetricAlarms"):
        if search.ours(alarm["AlarmName"]):
            yield Residue("alarm", alarm["AlarmName"], alarm["StateValue"])
    for rule in search.pages("events", "list_rules", "Rules"):
        if search.ours(rule["Name"]):
            yield Residue("schedule", rule["Name"], rule["State"])


def _foreign_dashboards(search: _Search) -> Iterator[Residue]:
    settings = search.environment.observability
    if not settings.grafana_url:
        return
    target = {"url": settings.grafana_url, "secretArn": settings.grafana_token_secret_arn}
    with connect(target, search.session, search.environment.region) as grafana:
        for kind, path in (("folder", "/api/folders"), ("data source", "/api/datasources/uid")):
            if grafana.get(f"{path}/{search.names.prefix}") is not None:
                yield Residue(f"Grafana {kind}", search.names.prefix, settings.grafana_url)


def _guardrails(search: _Search) -> Iterator[Residue]:
    for topic in search.pages("sns", "list_topics", "Topics"):
        if search.ours(topic["TopicArn"].rpartition(":")[2]):
            yield Residue("SNS topic", topic["TopicArn"])
    for budget in search.pages("budgets", "describe_budgets", "Budgets", AccountId=search.names.account):
        if search.ours(budget["BudgetName"]):
            yield Residue("budget", budget["BudgetName"])


_FINDERS: tuple[Callable[[_Search], Iterator[Residue]], ...] = (
    _stacks,
    _clusters,
    _file_systems,
    _network,
    _buckets,
    _builds,
    _functions,
    _logs,
    _keys,
    _roles,
    _serving,
    _inference,
    _observability,
    _governance,
    _studio,
    _watches,
    _foreign_dashboards,
    _guardrails,
)

SWEPT: dict[str, Callable[[_Search], Iterator[Residue]]] = {
    "AWS::APS::Workspace": _observability,
    "AWS::ApplicationAutoScaling::ScalableTarget": _inference,
    "AWS::Budgets::Budget": _guardrails,
    "AWS::CloudWatch::Alarm": _watches,
    "AWS::CodeBuild::Project": _builds,
    "AWS::EC2::EIP": _network,
    "AWS::EC2::FlowLog": _network,
    "AWS::EC2::InternetGateway": _network,
    "AWS::EC2::NatGateway": _network,
    "AWS::EC2::RouteTable": _network,
    "AWS::EC2::SecurityGroup": _network,
    "AWS::EC2::Subnet": _network,
    "AWS::EC2::VPC": _network,
    "AWS::EC2::VPCEndpoint": _network,
    "AWS::ECR::Repository": _builds,
    "AWS::EKS::Cluster": _clusters,
    "AWS::Events::Rule": _watches,
    "AWS::FSx::FileSystem": _file_systems,
    "AWS::Grafana::Workspace": _observability,
    "AWS::IAM::ManagedPolicy": _serving,
    "AWS::IAM::Role": _roles,
    "AWS::KMS::Key": _keys,
    "AWS::Lambda::Function": _functions,
    "AWS::Logs::LogGroup": _logs,
    "AWS::S3::Bucket": _buckets,
    "AWS::SNS::Topic": _guardrails,
    "AWS::SageMaker::Cluster": _clusters,
    "AWS::SageMaker::ClusterSchedulerConfig": _governance,
    "AWS::SageMaker::Domain": _studio,
    "AWS::SageMaker::Endpoint": _inference,
    "AWS::SageMaker::EndpointConfig": _inference,
    "AWS::SageMaker::InferenceComponent": _inference,
    "AWS::SageMaker::Model": _inference,
    "AWS::SageMaker::UserProfile": _studio,
    "Custom::ComputeQuota": _governance,
}
"""Which finder looks for each resource type; a test holds it against the templates."""
