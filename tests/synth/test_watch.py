"""Guardrails, the collector and the optional parts: what their templates must say."""

import json

import pytest

from stacks.names import KUBE_OBJECTS
from tests.synth.conftest import ROOT, Synthesized

# Types that CloudFormation cannot tag, or that have no cost of their own and no tags in CDK.
UNTAGGED = {
    "AWS::ApplicationAutoScaling::ScalingPolicy",
    "AWS::CDK::Metadata",
    "AWS::EC2::Route",
    "AWS::EC2::SecurityGroupEgress",
    "AWS::EC2::SecurityGroupIngress",
    "AWS::EC2::SubnetRouteTableAssociation",
    "AWS::EC2::VPCGatewayAttachment",
    "AWS::IAM::ManagedPolicy",
    "AWS::IAM::Policy",
    "AWS::KMS::Alias",
    "AWS::Lambda::Permission",
    "AWS::S3::BucketPolicy",
    "AWS::SNS::Subscription",
    "AWS::SNS::TopicPolicy",
}


def _list(value) -> list:
    return value if isinstance(value, list) else [value]


def _text(joined) -> str:
    """The literal text of an Fn::Join, with a word for each token."""
    if isinstance(joined, str):
        return joined
    return "".join(part if isinstance(part, str) else "token" for part in joined["Fn::Join"][1])


def test_everything_that_costs_money_is_tagged_for_the_bill(everything: Synthesized):
    for part, template in everything.templates.items():
        for logical_id, resource in template["Resources"].items():
            kind = resource["Type"]
            if kind in UNTAGGED or kind.startswith("Custom::"):
                continue
            found = resource["Properties"].get("Tags", resource["Properties"].get("ResourceTags", {}))
            tags = found if isinstance(found, dict) else {tag["Key"]: tag["Value"] for tag in found}
            assert tags.get("skypod:environment") == "everything", f"{part}/{logical_id} ({kind})"


def test_the_topics_key_lets_every_publisher_in_and_nobody_elses_account(paper: Synthesized):
    services = {"budgets.amazonaws.com", "aps.amazonaws.com", "cloudwatch.amazonaws.com"}
    topic = paper.one("AWS::SNS::Topic")["Properties"]
    key = next(r for part, _, r in paper.resources("AWS::KMS::Key") if part == "guardrails")
    assert "KmsMasterKeyId" in topic
    arn = "arn:aws:sns:us-west-2:123456789012:skypod-paper-alerts"
    allowed_for = {
        "key": {"kms:EncryptionContext:aws:sns:topicArn": arn},
        "topic": {"aws:SourceAccount": "123456789012"},
    }
    policies = {
        "key": key["Properties"]["KeyPolicy"]["Statement"],
        "topic": paper.one("AWS::SNS::TopicPolicy")["Properties"]["PolicyDocument"]["Statement"],
    }
    for name, statements in policies.items():
        given = {
            service: statement
            for statement in statements
            if isinstance(statement["Principal"], dict)
            for service in _list(statement["Principal"].get("Service", []))
        }
        assert given.keys() == services, name
        for statement in given.values():
            assert statement["Condition"] == {"StringEquals": allowed_for[name]}
    used = {a for s in policies["key"] if "Service" in s["Principal"] for a in s["Action"]}
    assert used == {"kms:Decrypt", "kms:GenerateDataKey*"}


def test_the_budget_counts_the_account_or_the_environments_tag(paper: Synthesized, everything: Synthesized):
    assert "CostFilters" not in paper.one("AWS::Budgets::Budget")["Properties"]["Budget"]
    filtered = everything.one("AWS::Budgets::Budget")["Properties"]["Budget"]["CostFilters"]
    assert filtered == {"TagKeyValue": ["user:skypod:environment$everything"]}


def test_idle_nodes_ring_without_prometheus(paper: Synthesized):
    alarms = {
        r["Properties"]["AlarmName"]: r["Properties"] for _, _, r in paper.resources("AWS::CloudWatch::Alarm")
    }
    idle = alarms["skypod-paper-idle-gpu-nodes"]
    assert (idle["Namespace"], idle["MetricName"], idle["Threshold"]) == ("Skypod", "IdleGpuNodes", 1)
    assert idle["Statistic"] == "Minimum"
    assert idle["Period"] * idle["EvaluationPeriods"] == 3600 * paper.environment.guardrails.idle_after_hours
    full = alarms["skypod-paper-lustre-full"]
    assert (full["Namespace"], full["ComparisonOperator"]) == ("AWS/FSx", "LessThanThreshold")
    assert full["Threshold"] == round(1200 * 1024**3 * 0.1)
    assert all(alarm["AlarmActions"] for alarm in alarms.values())
    (target,) = paper.one("AWS::Events::Rule")["Properties"]["Targets"]
    assert json.loads(target["Input"])["GpuGroups"] == ["gpu"]


def test_the_idle_watch_may_look_and_count_and_no_more(paper: Synthesized):
    statements = [
        s
        for _, logical_id, policy in paper.resources("AWS::IAM::Policy")
        if "IdleWatch" in logical_id
        for s in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    actions = {s["Action"] for s in statements}
    assert actions == {"eks:DescribeCluster", "sagemaker:ListClusterNodes", "cloudwatch:PutMetricData"}
    (put,) = [s for s in statements if s["Action"] == "cloudwatch:PutMetricData"]
    assert put["Condition"] == {"StringEquals": {"cloudwatch:namespace": "Skypod"}}
    entry = next(r for _, i, r in paper.resources("AWS::EKS::AccessEntry") if i == "IdleWatchEntry")
    (policy,) = entry["Properties"]["AccessPolicies"]
    assert policy["PolicyArn"].endswith("/AmazonEKSViewPolicy")


def test_the_collector_asks_for_rays_metrics(paper: Synthesized):
    addons = {r["Properties"]["AddonName"]: r["Properties"] for _, _, r in paper.resources("AWS::EKS::Addon")}
    addon = addons["amazon-sagemaker-hyperpod-observability"]
    configuration = json.loads(_text(addon["ConfigurationValues"]))
    assert configuration["metricsProvider"]["rayMetrics"] == {"level": "ADVANCED", "scrapeInterval": 30}
    assert not configuration["ampWorkspace"]["prometheusEndpoint"].endswith("/")


def test_metrics_and_dashboards_are_made_beside_the_cluster(paper: Synthesized):
    assert paper.after["observability"] == {"guardrails"}
    assert "observability" not in paper.after["hyperpod"]


def test_who_may_push_dashboards_may_make_short_lived_accounts_in_one_workspace(paper: Synthesized):
    (statement,) = [
        s
        for _, logical_id, policy in paper.resources("AWS::IAM::Policy")
        if "GrafanaPush" in logical_id
        for s in policy["Properties"]["PolicyDocument"]["Statement"]
    ]
    assert all("ServiceAccount" in action for action in statement["Action"])
    assert "workspaces/token" in _text(statement["Resource"])


def test_optional_parts_are_off_in_the_paper_environment(paper: Synthesized):
    assert {"studio", "governance"} & paper.templates.keys() == set()
    assert paper.names.stacks == tuple(f"skypod-paper-{part}" for part in paper.templates)


def test_studio_keeps_no_home_directories_and_opens_no_shell(everything: Synthesized):
    domain = everything.one("AWS::SageMaker::Domain")["Properties"]
    assert domain["HomeEfsFileSystemCreation"] == "Disabled"
    assert len(domain["SubnetIds"]) == 2
    document = json.dumps([r for part, _, r in everything.resources("AWS::IAM::Policy") if part == "studio"])
    for action in (
        "eks:AccessKubernetesApi",
        "eks:MutateViaKubernetesApi",
        "sagemaker:CreatePresignedDomainUrl",
    ):
        assert action in document
    for action in ("ssm:", "sagemaker:CreateApp", "sagemaker:CreateSpace", "iam:PassRole"):
        assert action not in document
    entry = next(r for _, i, r in everything.resources("AWS::EKS::AccessEntry") if i == "UsersEntry")
    for policy in entry["Properties"]["AccessPolicies"]:
        if not policy["PolicyArn"].endswith("UserClusterPolicy"):
            assert policy["AccessScope"]["Namespaces"] == ["hyperpod-ns-research"]


def test_studio_finds_the_dashboards_by_a_tag_of_the_cluster(paper: Synthesized, everything: Synthesized):
    def keys(environment: Synthesized) -> set[str]:
        return {tag["Key"] for tag in environment.one("AWS::SageMaker::Cluster")["Properties"]["Tags"]}

    assert keys(everything) - keys(paper) == {"grafana-workspace"}
    assert "observability" in everything.after["hyperpod"]


def test_quotas_come_last_and_go_first(everything: Synthesized):
    resources = everything.templates["governance"]["Resources"]
    by_type = {resource["Type"]: logical_id for logical_id, resource in resources.items()}
    quota = everything.one("Custom::ComputeQuota")
    assert by_type["AWS::SageMaker::ClusterSchedulerConfig"] in quota["DependsOn"]
    scheduler = everything.one("AWS::SageMaker::ClusterSchedulerConfig")
    assert by_type["AWS::EKS::Addon"] in scheduler["DependsOn"]
    assert "hyperpod" in everything.after["governance"]
    assert "governance" in everything.after["operators"]


def test_a_quota_holds_the_whole_ray_cluster_with_its_head(everything: Synthesized):
    settings = json.loads(everything.one("Custom::ComputeQuota")["Properties"]["Settings"])
    counts = {r["InstanceType"]: r["Count"] for r in settings["ComputeQuotaConfig"]["ComputeQuotaResources"]}
    assert counts == {"ml.r5d.16xlarge": 1, "ml.g7e.12xlarge": 3}
    assert settings["ComputeQuotaConfig"]["ResourceSharingConfig"] == {"Strategy": "Lend"}


def test_a_teams_namespace_is_left_to_its_quota(paper: Synthesized, everything: Synthesized):
    def kinds(environment: Synthesized) -> list[str]:
        (objects,) = [one for part, _, one in environment.resources(KUBE_OBJECTS) if part == "operators"]
        return [manifest["kind"] for manifest in json.loads(_text(objects["Properties"]["Manifests"]))]

    assert "Namespace" in kinds(paper)
    assert "Namespace" not in kinds(everything)


@pytest.mark.parametrize("part", ["studio", "governance", "collector", "observability"])
def test_roles_of_these_parts_name_what_they_act_on(everything: Synthesized, part: str):
    alone = {
        "aps:ListWorkspaces",
        "cloudwatch:GetMetricData",
        "cloudwatch:PutMetricData",
        "ecr:GetAuthorizationToken",
        "sagemaker:ListClusters",
        "sagemaker:ListDomains",
    }
    for owner, logical_id, policy in everything.resources("AWS::IAM::Policy"):
        if owner != part:
            continue
        for statement in policy["Properties"]["PolicyDocument"]["Statement"]:
            if statement["Resource"] == "*":
                actions = _list(statement["Action"])
                assert all(a in alone or a.startswith("ec2:Describe") for a in actions), logical_id


def test_the_order_in_the_documentation_is_that_of_the_stacks(everything: Synthesized):
    page = (ROOT / "docs" / "reference" / "stacks.md").read_text()
    rows = [
        line.split("|") for line in page.splitlines() if line.startswith("| `") and "Custom::" not in line
    ]
    said = {row[1].split("`")[1]: set(row[2].split("`")[1::2]) for row in rows}
    assert said == everything.after
