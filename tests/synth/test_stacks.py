"""The templates say what the settings say."""

import json
from dataclasses import fields
from ipaddress import IPv4Network

import yaml

from cdk_app.names import NO_ACCOUNT
from stacks.names import PARTS, Names
from stacks.outputs import Outputs, cloudformation_name
from tests.synth.conftest import Synthesized
from training.metrics import METRICS


def _properties(found: list) -> list[dict]:
    return [resource["Properties"] for _, _, resource in found]


def test_every_output_of_the_contract_is_in_its_stack(everything: Synthesized):
    for field in fields(Outputs):
        part = field.metadata.get("stack")
        if part:
            assert cloudformation_name(field.name) in everything.templates[part]["Outputs"], field.name


def test_the_instance_groups_are_those_of_the_settings(paper: Synthesized):
    cluster = paper.one("AWS::SageMaker::Cluster")["Properties"]
    groups = {group["InstanceGroupName"]: group for group in cluster["InstanceGroups"]}
    for name, expected in (
        ("head", paper.environment.hyperpod.head),
        ("gpu", paper.environment.hyperpod.gpu),
    ):
        group = groups[name]
        assert group["InstanceType"] == expected.instance_type
        assert group["InstanceCount"] == expected.count
        assert group["ThreadsPerCore"] == 2
        volume = group["InstanceStorageConfigs"][0]["EbsVolumeConfig"]
        assert volume["VolumeSizeInGB"] == expected.extra_volume_gib
    assert cluster["NodeRecovery"] == "Automatic"
    assert cluster["ClusterName"] == "skypod-paper"


def test_a_lack_of_nodes_cannot_roll_back_eks(paper: Synthesized):
    assert "AWS::SageMaker::Cluster" not in {
        resource["Type"] for resource in paper.templates["eks"]["Resources"].values()
    }
    assert paper.after["hyperpod"] >= {"eks", "storage", "network", "guardrails"}
    assert paper.after["operators"] >= {"hyperpod"}
    assert paper.after["collector"] >= {"hyperpod"}
    assert not paper.after["eks"] & {"hyperpod", "operators"}


def test_the_listed_order_of_the_stacks_can_be_deployed(everything: Synthesized):
    assert everything.environment.parts == PARTS
    for place, part in enumerate(PARTS):
        assert everything.after[part] <= set(PARTS[:place]), part


def test_the_wait_for_nodes_covers_every_group(paper: Synthesized):
    wait = paper.one("Custom::NodesJoined")
    cluster = next(i for _, i, _ in paper.resources("AWS::SageMaker::Cluster"))
    assert json.loads(wait["Properties"]["Groups"]) == {"head": 1, "gpu": 3}
    assert cluster in wait["DependsOn"]
    assert int(wait["Properties"]["TimeoutSeconds"]) < int(wait["Properties"]["ServiceTimeout"])


def test_health_agent_and_device_plugins_come_before_the_nodes(paper: Synthesized):
    cluster = paper.one("AWS::SageMaker::Cluster")
    charts = {i: r for part, i, r in paper.resources("Custom::Chart") if part == "hyperpod"}
    assert set(charts) <= set(cluster["DependsOn"])
    (chart,) = charts.values()
    variables = json.loads(chart["Properties"]["Variables"])
    assert (variables["SOURCE_KIND"], variables["VERSION"]) == ("git", "v3.10.0")


def test_nodes_and_lustre_share_one_large_subnet(paper: Synthesized):
    network = paper.templates["network"]["Resources"]
    blocks = {
        logical_id: IPv4Network(resource["Properties"]["CidrBlock"])
        for logical_id, resource in network.items()
        if resource["Type"] == "AWS::EC2::Subnet"
    }
    largest = max(blocks, key=lambda logical_id: blocks[logical_id].num_addresses)
    assert blocks[largest].prefixlen == 18
    assert all(not blocks[a].overlaps(blocks[b]) for a in blocks for b in blocks if a != b), "subnets overlap"
    lustre = paper.one("AWS::FSx::FileSystem")["Properties"]["SubnetIds"]
    nodes = paper.one("AWS::SageMaker::Cluster")["Properties"]["VpcConfig"]["Subnets"]
    assert lustre == nodes
    assert largest in json.dumps(lustre)


def test_the_control_plane_spans_two_zones_and_there_is_one_nat_gateway(paper: Synthesized):
    subnets = paper.one("AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]["SubnetIds"]
    assert len(subnets) == 2
    assert len(paper.resources("AWS::EC2::NatGateway")) == 1
    zones = {
        resource["Properties"]["AvailabilityZone"] for _, _, resource in paper.resources("AWS::EC2::Subnet")
    }
    assert zones == set(paper.environment.network.zones)


def test_nothing_reaches_the_cluster_from_outside_its_group(paper: Synthesized):
    for _, logical_id, group in paper.resources("AWS::EC2::SecurityGroup"):
        assert "SecurityGroupIngress" not in group["Properties"], logical_id
    rules = _properties(paper.resources("AWS::EC2::SecurityGroupIngress"))
    assert rules
    assert all(rule["SourceSecurityGroupId"] == rule["GroupId"] for rule in rules)
    assert {(rule.get("FromPort"), rule.get("ToPort")) for rule in rules} == {
        (None, None),
        (988, 988),
        (1018, 1023),
    }


def test_lustre_is_of_the_kind_that_can_export_to_s3(paper: Synthesized):
    file_system = paper.one("AWS::FSx::FileSystem")["Properties"]
    assert file_system["FileSystemTypeVersion"] == "2.15"
    assert file_system["StorageCapacity"] == 1200
    assert file_system["LustreConfiguration"]["DeploymentType"] == "PERSISTENT_2"
    association = paper.one("AWS::FSx::DataRepositoryAssociation")["Properties"]
    assert association["FileSystemPath"] == "/runs"


def test_repositories_are_immutable_scanned_and_emptied(paper: Synthesized):
    repositories = _properties(paper.resources("AWS::ECR::Repository"))
    assert len(repositories) == 2
    for repository in repositories:
        assert repository["ImageTagMutability"] == "IMMUTABLE"
        assert repository["ImageScanningConfiguration"] == {"ScanOnPush": True}
        assert repository["EmptyOnDelete"] is True


def test_kubernetes_objects_keep_their_types(paper: Synthesized):
    """CloudFormation makes strings of numbers and booleans, so manifests travel as text."""
    (objects,) = [one for part, _, one in paper.resources("Custom::KubeObjects") if part == "operators"]
    manifests = objects["Properties"]["Manifests"]
    literal = "".join(p if isinstance(p, str) else "token" for p in manifests["Fn::Join"][1])
    objects = json.loads(literal)
    kinds = [manifest["kind"] for manifest in objects]
    assert kinds[0] == "Namespace"
    assert {"PersistentVolume", "PersistentVolumeClaim", "ServiceAccount", "NetworkPolicy"} <= set(kinds)
    accounts = [m for m in objects if m["kind"] == "ServiceAccount"]
    assert all(m["automountServiceAccountToken"] is False for m in accounts)


def test_grafana_follows_its_setting(paper: Synthesized, dev: Synthesized):
    assert len(paper.resources("AWS::Grafana::Workspace")) == 1
    assert dev.resources("AWS::Grafana::Workspace") == []
    assert "GrafanaWorkspaceId" not in dev.templates["observability"]["Outputs"]


def test_alerts_ask_only_for_metrics_that_somebody_emits(paper: Synthesized):
    rules = yaml.safe_load(paper.one("AWS::APS::RuleGroupsNamespace")["Properties"]["Data"])
    names = [rule["alert"] for group in rules["groups"] for rule in group["rules"]]
    assert len(names) == len(set(names)) >= 5
    emitted = {metric.prometheus for metric in METRICS.values()}
    ours = {
        word.strip("()")
        for group in rules["groups"]
        for rule in group["rules"]
        for word in rule["expr"].replace("[", " ").replace("(", " ").split()
        if "skypod_" in word
    }
    assert ours
    assert ours <= emitted


def test_the_budget_warns_at_every_share_of_the_settings(paper: Synthesized):
    budget = paper.one("AWS::Budgets::Budget")["Properties"]
    notifications = [n["Notification"] for n in budget["NotificationsWithSubscribers"]]
    actual = [n["Threshold"] for n in notifications if n["NotificationType"] == "ACTUAL"]
    assert actual == list(paper.environment.guardrails.alert_at_percent)
    assert budget["Budget"]["BudgetLimit"] == {"Amount": 5000, "Unit": "USD"}


def test_every_resource_that_takes_tags_has_ours(paper: Synthesized):
    cluster = paper.one("AWS::SageMaker::Cluster")["Properties"]["Tags"]
    assert {"Key": "project", "Value": "skypod"} in cluster
    assert {"Key": "skypod:environment", "Value": "paper"} in cluster


def test_the_longest_environment_name_still_makes_valid_names():
    names = Names(environment="x" * 16, account=NO_ACCOUNT, region="ap-southeast-2")
    assert len(names.artifacts_bucket) <= 63
    assert len(names.lifecycle_bucket) <= 63
    assert names.lifecycle_bucket.startswith("sagemaker-")
    assert all(len(stack) <= 40 for stack in names.stacks)
