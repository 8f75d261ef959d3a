"""What AWS says about a deployed environment, set against what its settings ask for."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

import boto3
from botocore.exceptions import ClientError

from cdk_app import names
from cdk_app.outputs import Outputs
from cdk_app.paging import pages
from stacks import dashboards, scripts
from stacks.environment import Environment
from stacks.handlers.grafana_client import connect, leftover_accounts
from stacks.names import BASE


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
    for part in environment.parts:
        reader = _READERS.get(part)
        if reader is None:
            continue
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
    endpoints = client.describe_vpc_endpoints(Filters=in_vpc)["VpcEndpoints"]
    kinds = sorted({endpoint["VpcEndpointType"] for endpoint in endpoints})
    asked = ["Gateway", *(["Interface"] if subject.environment.network.interface_endpoints else [])]
    yield Check("VPC endpoints", _joined(asked), _joined(kinds))
    watching = [{"Name": "resource-id", "Values": [subject.outputs.vpc_id]}]
    flow_logs = client.describe_flow_logs(Filters=watching)["FlowLogs"]
    states = _joined(sorted(flow_log["FlowLogStatus"] for flow_log in flow_logs)) or "off"
    yield Check("VPC flow logs", "ACTIVE" if subject.environment.network.flow_logs else "off", states)


def _lustre(subject: _Subject) -> Iterator[Check]:
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


def _storage(subject: _Subject) -> Iterator[Check]:
    s3 = subject.client("s3")
    for bucket in (subject.outputs.artifacts_bucket, subject.outputs.lifecycle_bucket):
        block = s3.get_public_access_block(Bucket=bucket)["PublicAccessBlockConfiguration"]
        yield Check(f"bucket {bucket} public access", "blocked", "blocked" if all(block.values()) else "open")
        versioning = s3.get_bucket_versioning(Bucket=bucket).get("Status", "off")
        yield Check(f"bucket {bucket} versioning", "Enabled", versioning)
    for key, text in scripts.lifecycle().items():
        what = f"lifecycle script {key}, which new nodes run"
        yield Check(what, "as deployed from here", _script(s3, subject.outputs.lifecycle_bucket, key, text))


def _script(s3: Any, bucket: str, key: str, text: str) -> str:
    try:
        held = s3.get_object(Bucket=bucket, Key=key)["Body"].read()
    except s3.exceptions.NoSuchKey:
        return "missing"
    return "as deployed from here" if held == text.encode() else "another text"


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
    reached = cluster["resourcesVpcConfig"]
    asked = _joined(settings.public_access_cidrs) if settings.public_access else "nowhere"
    allowed = _joined(reached["publicAccessCidrs"]) if reached["endpointPublicAccess"] else "nowhere"
    yield Check("EKS public access from", asked, allowed)
    for name, version in settings.addon_versions.items():
        yield Check(f"version of add-on {name}", version, _addon(subject, name)["addonVersion"])
    yield Check("EKS address block", subject.outputs.vpc_id, cluster["resourcesVpcConfig"]["vpcId"])
    accounts = (subject.outputs.training_service_account, subject.outputs.serving_service_account)
    listed = client.list_pod_identity_associations(clusterName=subject.outputs.eks_cluster_name)[
        "associations"
    ]
    bound = {f"{entry['namespace']}/{entry['serviceAccount']}" for entry in listed}
    for account in accounts:
        name = f"{subject.environment.namespace}/{account}"
        yield Check(f"role of service account {name}", "bound", "bound" if name in bound else "missing")


def _addon(subject: _Subject, name: str) -> dict[str, Any]:
    named = subject.outputs.eks_cluster_name
    return subject.client("eks").describe_addon(clusterName=named, addonName=name)["addon"]


def _endpoint(subject: _Subject) -> Iterator[Check]:
    for name in ("cert-manager", "external-dns", "amazon-sagemaker-spaces"):
        yield Check(f"add-on {name}", "ACTIVE", _addon(subject, name)["status"])
    web = json.loads(_addon(subject, "amazon-sagemaker-spaces")["configurationValues"])
    web = web["jupyter-k8s-aws-hyperpod"]["clusterWebUI"]
    domain = subject.environment.domain
    yield Check("Ray links' domain", domain.name if domain else "none", web["domain"])
    yield Check("Ray links' load balancer", domain.scheme if domain else "none", web["alb"]["scheme"])


def _hyperpod(subject: _Subject) -> Iterator[Check]:
    client = subject.client("sagemaker")
    cluster = client.describe_cluster(ClusterName=subject.outputs.hyperpod_cluster_name)
    yield Check("HyperPod state", "InService", cluster["ClusterStatus"])
    yield Check(
        "HyperPod orchestrator", subject.outputs.eks_cluster_arn, cluster["Orchestrator"]["Eks"]["ClusterArn"]
    )
    expected = subject.environment.hyperpod.groups
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
        found = groups.get(name)
        asked = f"{group.count} x {group.instance_type}"
        wanted = f"{found['TargetCount']} x {found['InstanceType']}" if found else "missing"
        yield Check(f"HyperPod group {name}", asked, wanted)
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
    if subject.outputs.dashboards_folder:
        yield from _dashboards(subject)


def _dashboards(subject: _Subject) -> Iterator[Check]:
    """Read with a token of a minute's life, which Grafana's own API demands of everybody."""
    settings, outputs = subject.environment.observability, subject.outputs
    managed = bool(outputs.grafana_workspace_id)
    target = {"url": settings.grafana_url, "secretArn": settings.grafana_token_secret_arn}
    if managed:
        target = {"workspaceId": outputs.grafana_workspace_id, "endpoint": outputs.grafana_endpoint}
    uid = subject.names.prefix
    source = dashboards.data_source(
        uid=uid,
        title=uid,
        endpoint=outputs.prometheus_endpoint,
        region=subject.environment.region,
        grafana_version=settings.grafana_version,
        managed=managed,
    )
    with connect(target, subject.session, subject.environment.region) as grafana:
        found = grafana.get(f"/api/datasources/uid/{uid}") or {}
        yield Check("Grafana data source", source["url"], found.get("url", "missing"))
        listed = grafana.call("GET", f"/api/search?type=dash-db&folderUIDs={outputs.dashboards_folder}")
        expected = {dashboard["uid"]: dashboard for dashboard in dashboards.build(uid, source)}
        there = sorted(dashboard["uid"] for dashboard in listed)
        yield Check("Grafana dashboards", _joined(sorted(expected)), _joined(there))
        for name in sorted(expected.keys() & set(there)):
            held = grafana.call("GET", f"/api/dashboards/uid/{name}")["dashboard"]
            same = {key: held.get(key) for key in expected[name]} == expected[name]
            yield Check(f"dashboard {name}", "as built", "as built" if same else "edited")
    if managed:
        client = subject.client("grafana")
        left = leftover_accounts(client, outputs.grafana_workspace_id)
        yield Check("Grafana service accounts left by pushes", "0", str(len(left)))


def _collector(subject: _Subject) -> Iterator[Check]:
    addon = subject.client("eks").describe_addon(
        clusterName=subject.outputs.eks_cluster_name, addonName="amazon-sagemaker-hyperpod-observability"
    )["addon"]
    yield Check("metrics collector", "ACTIVE", addon["status"])
    configured = json.loads(addon["configurationValues"])
    ray = configured["metricsProvider"].get("rayMetrics", {}).get("level", "DISABLED")
    yield Check("Ray's metrics", "ADVANCED", ray)
    written = configured["ampWorkspace"]["prometheusEndpoint"]
    yield Check("metrics are written to", subject.outputs.prometheus_endpoint, written)
    alarms = subject.client("cloudwatch").describe_alarms(AlarmNamePrefix=subject.names.prefix)
    for alarm in alarms["MetricAlarms"]:
        to = _joined(alarm["AlarmActions"])
        yield Check(f"alarm {alarm['AlarmName']} goes to", subject.outputs.alerts_topic_arn, to)
    names_found = sorted(alarm["AlarmName"] for alarm in alarms["MetricAlarms"])
    expected = [subject.outputs.idle_alarm_name, f"{subject.names.prefix}-lustre-full"]
    yield Check("alarms", _joined(expected), _joined(names_found))


def _governance(subject: _Subject) -> Iterator[Check]:
    client = subject.client("sagemaker")
    cluster = subject.outputs.hyperpod_cluster_arn
    configs = client.list_cluster_scheduler_configs(ClusterArn=cluster)["ClusterSchedulerConfigSummaries"]
    yield Check("priorities", subject.names.prefix, _joined(config["Name"] for config in configs))
    listed = client.list_compute_quotas(ClusterArn=cluster)["ComputeQuotaSummaries"]
    found = {quota["ComputeQuotaTarget"]["TeamName"]: quota for quota in listed}
    teams = {team.name: team for team in subject.environment.governance.teams}
    yield Check("teams with a quota", _joined(sorted(teams)), _joined(sorted(found)))
    for name in sorted(teams.keys() & found.keys()):
        resources = found[name]["ComputeQuotaConfig"]["ComputeQuotaResources"]
        counts = {resource["InstanceType"]: resource["Count"] for resource in resources}
        gpu = subject.environment.hyperpod.gpu.instance_type
        asked = f"{teams[name].gpu_nodes} x {gpu}"
        yield Check(f"quota of team {name}", asked, f"{counts.get(gpu, 0)} x {gpu}")


def _studio(subject: _Subject) -> Iterator[Check]:
    client = subject.client("sagemaker")
    domain = client.describe_domain(DomainId=subject.outputs.studio_domain_id)
    yield Check("Studio domain", "InService", domain["Status"])
    yield Check("Studio home directories", "none", domain.get("HomeEfsFileSystemId", "none"))
    profiles = client.list_user_profiles(DomainIdEquals=subject.outputs.studio_domain_id)["UserProfiles"]
    users = sorted(profile["UserProfileName"] for profile in profiles)
    yield Check("Studio users", _joined(sorted(subject.environment.studio.users)), _joined(users))
    if subject.outputs.grafana_workspace_id:
        tags = client.list_tags(ResourceArn=subject.outputs.hyperpod_cluster_arn)["Tags"]
        linked = next((tag["Value"] for tag in tags if tag["Key"] == "grafana-workspace"), "")
        yield Check("Studio's link to Grafana", subject.outputs.grafana_workspace_id, linked)


def _guardrails(subject: _Subject) -> Iterator[Check]:
    topic = subject.client("sns").get_topic_attributes(TopicArn=subject.outputs.alerts_topic_arn)
    yield Check("alert topic", subject.outputs.alerts_topic_arn, topic["Attributes"]["TopicArn"])
    sealed = bool(topic["Attributes"].get("KmsMasterKeyId"))
    yield Check("alert topic encryption", "own key", "own key" if sealed else "none")
    client = subject.client("cloudformation")
    asked_for = subject.environment.guardrails.termination_protection
    for stack in subject.names.stacks:
        found = client.describe_stacks(StackName=stack)["Stacks"][0].get("EnableTerminationProtection", False)
        if found != asked_for:
            yield Check(f"termination protection of {stack}", str(asked_for), str(found))
    budget = subject.client("budgets").describe_budget(
        AccountId=subject.outputs.account, BudgetName=subject.outputs.budget_name
    )["Budget"]
    asked = subject.environment.guardrails.monthly_budget_usd
    yield Check("monthly budget, USD", f"{asked:g}", f"{float(budget['BudgetLimit']['Amount']):g}")


def _inference(subject: _Subject) -> Iterator[Check]:
    client, endpoint = subject.client("sagemaker"), subject.outputs.inference_endpoint_name
    settings, named = subject.environment.serving.endpoint, subject.names
    described = client.describe_endpoint(EndpointName=endpoint)
    yield Check("inference endpoint", "InService", described["EndpointStatus"])
    config = client.describe_endpoint_config(EndpointConfigName=described["EndpointConfigName"])
    yield Check(
        "inference instances", settings.instance_type, config["ProductionVariants"][0]["InstanceType"]
    )
    isolated = str(config.get("EnableNetworkIsolation", False))
    yield Check("inference containers cut off from networks", "True", isolated)
    base = client.describe_inference_component(InferenceComponentName=named.inference_component(BASE))
    yield Check("base inference component", "InService", base["InferenceComponentStatus"])
    model = client.describe_model(ModelName=base["Specification"]["ModelName"])["PrimaryContainer"]
    yield Check("inference image", settings.image, model["Image"])
    components = pages(
        client, "list_inference_components", "InferenceComponents", EndpointNameEquals=endpoint
    )
    for name in sorted(component["InferenceComponentName"] for component in components):
        adapter = name.removeprefix(named.inference_component(""))
        if adapter != BASE:
            found = client.describe_inference_component(InferenceComponentName=name)
            yield Check(f"adapter {adapter}", "InService", found["InferenceComponentStatus"])
            url = found["Specification"]["Container"]["ArtifactUrl"]
            yield Check(f"weights of {adapter}", f"{subject.outputs.adapters_uri}/{adapter}.tar.gz", url)


_READERS: dict[str, Callable[[_Subject], Iterator[Check]]] = {
    "network": _network,
    "guardrails": _guardrails,
    "storage": _storage,
    "lustre": _lustre,
    "images": _images,
    "eks": _eks,
    "hyperpod": _hyperpod,
    "endpoint": _endpoint,
    "access": _access,
    "observability": _observability,
    "collector": _collector,
    "governance": _governance,
    "studio": _studio,
    "inference": _inference,
}


def _joined(values: Any) -> str:
    return ", ".join(values)
