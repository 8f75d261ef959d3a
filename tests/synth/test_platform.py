"""The parts that a platform team turns on: private control plane, endpoints, flow logs, more node groups."""

import json
import re

import pytest

from cdk_app import settings
from stacks.names import PARTS
from tests.synth.conftest import ROOT, Synthesized, synthesize


@pytest.fixture(scope="module")
def production() -> Synthesized:
    return synthesize(
        settings.load(
            "production",
            {
                "hyperpod.serving": {"instance_type": "ml.g7e.12xlarge", "count": 2, "gpus": 2},
                "hyperpod.deep_health_checks": ["InstanceStress"],
                "namespace": "hyperpod-ns-research",
                "governance.enabled": True,
                "governance.teams": [{"name": "research", "gpu_nodes": 3}],
                "eks.addon_versions": {"vpc-cni": "v1.20.0-eksbuild.1"},
            },
        )
    )


def _group_ids(production: Synthesized, name: str) -> str:
    return next(i for _, i, _ in production.resources("AWS::EC2::SecurityGroup") if i.startswith(name))


def test_a_private_control_plane_has_its_tools_beside_it(production: Synthesized):
    control = production.one("AWS::EKS::Cluster")["Properties"]["ResourcesVpcConfig"]
    assert (control["EndpointPrivateAccess"], control["EndpointPublicAccess"]) == (True, False)
    assert "PublicAccessCidrs" not in control
    functions = {
        resource["Properties"]["Handler"].split(".")[1]: resource["Properties"].get("VpcConfig")
        for _, _, resource in production.resources("AWS::Lambda::Function")
    }
    (builds,) = [
        project["Properties"]["VpcConfig"]
        for _, _, project in production.resources("AWS::CodeBuild::Project")
        if "VpcConfig" in project["Properties"]
    ]
    for placement in (functions["kube_apply"], functions["idle_watch"], functions["compute_quota"], builds):
        groups = json.dumps(placement["SecurityGroupIds"])
        assert "ClusterGroup" in groups
        assert "EgressGroup" in groups
        subnets = placement.get("SubnetIds") or placement["Subnets"]
        assert subnets == control["SubnetIds"]
    assert functions["bucket_objects"] is None


def test_a_public_control_plane_needs_no_function_in_the_vpc(paper: Synthesized):
    for kind in ("AWS::Lambda::Function", "AWS::CodeBuild::Project"):
        assert not [i for _, i, r in paper.resources(kind) if "VpcConfig" in r["Properties"]]
    assert paper.resources("AWS::EC2::FlowLog") == []
    endpoints = [r["Properties"]["VpcEndpointType"] for _, _, r in paper.resources("AWS::EC2::VPCEndpoint")]
    assert endpoints == ["Gateway"]


def test_endpoints_admit_only_who_may_go_out(production: Synthesized):
    group, egress = _group_ids(production, "EndpointGroup"), _group_ids(production, "EgressGroup")
    rules = [
        rule["Properties"]
        for _, _, rule in production.resources("AWS::EC2::SecurityGroupIngress")
        if group in json.dumps(rule["Properties"]["GroupId"])
    ]
    assert [(r["IpProtocol"], r["FromPort"], r["ToPort"]) for r in rules] == [("tcp", 443, 443)]
    assert egress in json.dumps(rules[0]["SourceSecurityGroupId"])
    interfaces = [
        r["Properties"]
        for _, _, r in production.resources("AWS::EC2::VPCEndpoint")
        if r["Properties"]["VpcEndpointType"] == "Interface"
    ]
    services = {endpoint["ServiceName"].removeprefix("com.amazonaws.us-west-2.") for endpoint in interfaces}
    assert {"ecr.api", "ecr.dkr", "sts", "eks", "eks-auth", "sagemaker.api"} <= services
    assert all(endpoint["PrivateDnsEnabled"] for endpoint in interfaces)


def test_flow_logs_cover_the_vpc_and_expire(production: Synthesized):
    flow = production.one("AWS::EC2::FlowLog")["Properties"]
    assert (flow["ResourceType"], flow["TrafficType"]) == ("VPC", "ALL")
    group = production.templates["network"]["Resources"][flow["LogGroupName"]["Ref"]]
    assert group["Properties"]["RetentionInDays"] == 365
    assert group["DeletionPolicy"] == "Delete"


def test_production_keeps_data_and_every_stack(production: Synthesized):
    assert production.environment.guardrails.termination_protection
    assert production.one("AWS::FSx::FileSystem")["DeletionPolicy"] == "Retain"
    assert all(r["DeletionPolicy"] == "Retain" for _, _, r in production.resources("AWS::S3::Bucket"))


def test_a_serving_group_has_its_own_nodes_and_label(production: Synthesized):
    cluster = production.one("AWS::SageMaker::Cluster")["Properties"]
    groups = {group["InstanceGroupName"]: group for group in cluster["InstanceGroups"]}
    assert list(groups) == ["head", "gpu", "serving"]
    for name, group in groups.items():
        assert group["KubernetesConfig"] == {"Labels": {"skypod/group": name}}
        # The CPU head knows no such checks, and AWS refuses them there.
        tested = group.get("OnStartDeepHealthChecks")
        assert tested == (None if name == "head" else ["InstanceStress"])
        # These make later deploys fail, or cannot be changed once a group exists.
        assert not group.keys() & {"ScheduledUpdateConfig", "OverrideVpcConfig", "CurrentCount"}
    wait = production.one("Custom::NodesJoined")["Properties"]
    assert json.loads(wait["Groups"]) == {"head": 1, "gpu": 3, "serving": 2}


def test_addons_are_pinned_where_the_settings_say_so(production: Synthesized):
    versions = {
        addon["Properties"]["AddonName"]: addon["Properties"].get("AddonVersion")
        for _, _, addon in production.resources("AWS::EKS::Addon")
    }
    assert versions["vpc-cni"] == "v1.20.0-eksbuild.1"
    assert versions["kube-proxy"] is None


def test_ray_links_come_up_in_the_order_that_they_need_each_other(everything: Synthesized):
    resources = everything.templates["endpoint"]["Resources"]
    addons = {r["Properties"]["AddonName"]: i for i, r in resources.items() if r["Type"] == "AWS::EKS::Addon"}
    charts = {
        json.dumps(r["Properties"]["Variables"]).split("RELEASE")[1].split('\\"')[2]: i
        for i, r in resources.items()
        if r["Type"] == "Custom::Chart"
    }
    spaces = set(resources[addons["amazon-sagemaker-spaces"]]["DependsOn"])
    assert {addons["cert-manager"], addons["external-dns"], charts["aws-load-balancer-controller"]} <= spaces
    endpoints = resources[charts["hyperpod-ray-endpoint-operator"]]["DependsOn"]
    assert addons["amazon-sagemaker-spaces"] in endpoints
    assert "operators" in everything.after["endpoint"]
    for release in charts.values():
        assert any(
            resources[i]["Type"] == "AWS::EKS::PodIdentityAssociation"
            for i in resources[release]["DependsOn"]
        )


def test_links_stay_inside_the_vpc_unless_the_settings_say_otherwise(everything: Synthesized):
    (spaces,) = [
        r["Properties"]["ConfigurationValues"]
        for part, _, r in everything.resources("AWS::EKS::Addon")
        if r["Properties"]["AddonName"] == "amazon-sagemaker-spaces"
    ]
    assert '"scheme": "internal"' in json.dumps(spaces).replace("\\", "")
    assert "kubernetes.io/role/elb" not in json.dumps(everything.templates["network"])


def test_the_load_balancer_controller_changes_only_what_it_made(everything: Synthesized):
    (policy,) = [
        r["Properties"]["PolicyDocument"]["Statement"]
        for part, i, r in everything.resources("AWS::IAM::Policy")
        if i.startswith("LoadBalancing")
    ]
    for statement in policy:
        actions = statement["Action"] if isinstance(statement["Action"], list) else [statement["Action"]]
        if any(
            ("Delete" in action and "SecurityGroup" in action) or "DeleteLoad" in action for action in actions
        ):
            assert "aws:ResourceTag/elbv2.k8s.aws/cluster" in statement["Condition"]["Null"], actions
        assert statement["Resource"] != "*" or all("Describe" in action for action in actions), actions


def test_a_build_has_what_its_image_copies_and_is_tagged_by_all_of_its_sources(
    paper: Synthesized,
):
    for image, packages in (("train", ["training"]), ("serve", ["training", "serving"])):
        dockerfile = (ROOT / "docker" / image / "Dockerfile").read_text()
        assert re.findall(r"^COPY --from=(\w+) \. /opt/skypod/src/\1$", dockerfile, re.M) == packages
        (project,) = [
            r["Properties"]
            for _, i, r in paper.resources("AWS::CodeBuild::Project")
            if i.startswith(image.capitalize())
        ]
        variables = {v["Name"]: v["Value"] for v in project["Environment"]["EnvironmentVariables"]}
        tag = paper.templates["images"]["Outputs"][f"{image.capitalize()}ImageTag"]["Value"]
        assert variables["IMAGE_TAG"] == tag
        assert re.fullmatch("-".join(["[0-9a-f]{16}"] * (1 + len(packages))), tag)
        assert variables["PACKAGES"].split() == packages
        assert [source["SourceIdentifier"] for source in project["SecondarySources"]] == packages


STATELESS = ("AWS::Budgets", "AWS::CloudWatch", "AWS::CodeBuild", "AWS::EC2", "AWS::EKS", "AWS::Events")
STATELESS += (
    "AWS::ApplicationAutoScaling",
    "AWS::IAM",
    "AWS::Lambda",
    "AWS::S3::BucketPolicy",
    "AWS::SNS",
    "AWS::SageMaker",
    "Custom::",
)
"""Types that hold nothing beyond their templates: disks of nodes are scratch, and Studio has no homes."""


def test_the_documentation_says_what_happens_to_every_type_that_holds_data(everything: Synthesized):
    page = (ROOT / "docs" / "reference" / "stacks.md").read_text().partition("## What happens to data")[2]
    rows = [line.split("|")[1] for line in page.splitlines() if "`AWS::" in line]
    stated = {name for row in rows for name in row.split("`")[1::2]}
    held = {
        resource["Type"]
        for template in everything.templates.values()
        for resource in template["Resources"].values()
        if not resource["Type"].startswith(STATELESS)
    }
    assert held == stated
    for resource_type in stated:
        for part, logical_id, resource in everything.resources(resource_type):
            assert resource["DeletionPolicy"] == resource["UpdateReplacePolicy"], f"{part}/{logical_id}"


def test_every_stack_has_its_section_in_the_documentation():
    page = (ROOT / "docs" / "reference" / "stacks.md").read_text()
    for part in PARTS:
        section = page.partition(f"\n## {part}\n")[2].partition("\n## ")[0]
        rows = ("What", "Why", "Costs", "Can fail", "After destroy")
        assert [row for row in rows if f"\n| {row} | " not in section] == [], part
