"""What each role may and may not do, by a small evaluator of the statements in the templates.

It leaves conditions out, so it allows more than IAM does: what it refuses, IAM refuses. AWS's managed
policies are not in the templates, nor in here.
"""

from fnmatch import fnmatchcase
from typing import Any

import pytest

from tests.policies.conftest import as_list

ARTIFACTS, LIFECYCLE = "arn:aws:s3:::artifacts", "arn:aws:s3:::lifecycle"
CLUSTER = "arn:aws:eks:us-west-2:123456789012:cluster/skypod-everything"
OTHER = "arn:aws:eks:us-west-2:123456789012:cluster/other"
STACKS = "arn:aws:cloudformation:us-west-2:123456789012:stack"
COMPONENTS = "arn:aws:sagemaker:us-west-2:123456789012:inference-component"
PACKAGE = "arn:aws:sagemaker:us-west-2:123456789012:model-package/skypod-everything-base-0123456789abcdef/1"

# role (stack/start of its logical id), action, resource, may it
TABLE = (
    ("operators/TrainingRole", "s3:PutObject", f"{ARTIFACTS}/adapters/run/adapter.safetensors", True),
    ("operators/TrainingRole", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", True),
    ("operators/TrainingRole", "s3:PutObject", f"{ARTIFACTS}/elsewhere", False),
    ("operators/TrainingRole", "s3:DeleteObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("operators/TrainingRole", "s3:PutObject", f"{LIFECYCLE}/lifecycle/on_create.sh", False),
    ("operators/TrainingRole", "eks:DescribeCluster", CLUSTER, False),
    ("serving/ReplicaRole", "s3:GetObject", f"{ARTIFACTS}/adapters/run/adapter.safetensors", True),
    ("serving/ReplicaRole", "s3:PutObject", f"{ARTIFACTS}/adapters/run/adapter.safetensors", False),
    ("serving/ReplicaRole", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("serving/ReplicaRole", "sagemaker:UpdateModelPackage", PACKAGE, False),
    ("serving/Promote", "sagemaker:UpdateModelPackage", PACKAGE, True),
    ("serving/Promote", "sagemaker:UpdateModelPackage", PACKAGE.replace("skypod-everything", "other"), False),
    ("serving/Promote", "sagemaker:DeleteModelPackage", PACKAGE, False),
    ("serving/Promote", "s3:PutObject", f"{ARTIFACTS}/adapters/run/adapter.safetensors", True),
    ("serving/Promote", "s3:PutObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("serving/Promote", "cloudformation:UpdateStack", f"{STACKS}/skypod-everything-inference/1", True),
    ("serving/Promote", "cloudformation:UpdateStack", f"{STACKS}/skypod-everything-access/1", False),
    ("serving/Promote", "sagemaker:InvokeEndpoint", f"{COMPONENTS}/skypod-everything-inference-base", True),
    ("serving/Promote", "sagemaker:InvokeEndpoint", f"{COMPONENTS}/skypod-other-inference-base", False),
    ("serving/Promote", "sagemaker:CreateInferenceComponent", f"{COMPONENTS}/any", False),
    ("serving/Promote", "iam:PassRole", "arn:aws:iam::123456789012:role/any", False),
    ("inference/Role", "s3:GetObject", "arn:aws:s3:::models/qwen3-vl-8b/config.json", True),
    ("inference/Role", "s3:GetObject", "arn:aws:s3:::models/other/config.json", False),
    ("inference/Role", "s3:GetObject", f"{ARTIFACTS}/adapters/maze-6c576434edc8.tar.gz", True),
    ("inference/Role", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("inference/Role", "s3:PutObject", f"{ARTIFACTS}/adapters/maze-6c576434edc8.tar.gz", False),
    ("inference/Role", "ecr:BatchGetImage", "arn:aws:ecr:us-west-2:763104351884:repository/vllm", True),
    ("inference/Role", "ecr:BatchGetImage", "arn:aws:ecr:us-west-2:763104351884:repository/other", False),
    ("access/Researcher", "sagemaker:UpdateModelPackage", PACKAGE, False),
    ("access/Admin", "sagemaker:UpdateModelPackage", PACKAGE, False),
    ("operators/TrainingRole", "sagemaker:CreateModelPackage", PACKAGE, False),
    ("hyperpod/NodeRole", "s3:GetObject", f"{LIFECYCLE}/lifecycle/on_create.sh", True),
    ("hyperpod/NodeRole", "s3:PutObject", f"{LIFECYCLE}/lifecycle/on_create.sh", False),
    ("hyperpod/NodeRole", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("hyperpod/NodeRole", "eks-auth:AssumeRoleForPodIdentity", CLUSTER, True),
    ("hyperpod/NodeRole", "eks-auth:AssumeRoleForPodIdentity", OTHER, False),
    ("hyperpod/NodeRole", "ecr:PutImage", "arn:aws:ecr:us-west-2:123456789012:repository/train", False),
    ("hyperpod/NodeRole", "ec2:RunInstances", "arn:aws:ec2:us-west-2:123456789012:instance/i-1", False),
    ("access/Researcher", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", True),
    ("access/Researcher", "s3:DeleteObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("access/Researcher", "sagemaker:BatchReplaceClusterNodes", "Cluster", False),
    ("access/Researcher", "sagemaker:DeleteCluster", "Cluster", False),
    ("access/Researcher", "iam:PassRole", "arn:aws:iam::123456789012:role/any", False),
    ("access/Admin", "sagemaker:DeleteCluster", "Cluster", False),
    ("access/Admin", "iam:CreateRole", "arn:aws:iam::123456789012:role/any", False),
    ("images/TrainBuildRole", "ecr:PutImage", "TrainRepository", True),
    ("images/TrainBuildRole", "ecr:PutImage", "ServeRepository", False),
    ("images/TrainBuildRole", "ecr:BatchDeleteImage", "TrainRepository", False),
    ("eks/ChartsBuildRole", "eks:DescribeCluster", CLUSTER, True),
    ("eks/ChartsBuildRole", "eks:DeleteCluster", CLUSTER, False),
    ("eks/ChartsBuildRole", "s3:GetObject", f"{ARTIFACTS}/runs/run/run.json", False),
    ("eks/KubeApply", "eks:DescribeCluster", CLUSTER, True),
    ("eks/KubeApply", "eks:DescribeCluster", OTHER, False),
    ("eks/ChartBuildServiceRole", "codebuild:StartBuild", "ChartsProject", True),
    ("eks/ChartBuildServiceRole", "codebuild:StartBuild", "TrainBuild", False),
    ("storage/BucketObjects", "s3:DeleteObjectVersion", f"{ARTIFACTS}/runs/run/run.json", True),
    ("storage/BucketObjects", "s3:DeleteBucket", ARTIFACTS, False),
    ("hyperpod/NodeWait", "sagemaker:DeleteCluster", "Cluster", False),
    ("governance/ComputeQuota", "sagemaker:UpdateCluster", "Cluster", False),
    ("collector/IdleWatch", "sagemaker:DeleteCluster", "Cluster", False),
    ("observability/GrafanaPush", "grafana:DeleteWorkspace", "Workspace", False),
    ("studio/Users", "sagemaker:CreateApp", "arn:aws:sagemaker:us-west-2:123456789012:app/x", False),
)


def text(value: Any) -> str:
    """A resource of a statement as one string; what only AWS knows is the logical id that stands for it."""
    if isinstance(value, str):
        return value
    ((function, inner),) = value.items()
    if function == "Fn::Join":
        return inner[0].join(map(text, inner[1]))
    named = inner if isinstance(inner, str) else inner[0]
    for bucket, arn in (("Artifacts", ARTIFACTS), ("Lifecycle", LIFECYCLE)):
        if bucket in named:
            return arn
    return named


def fits(resource: str, wanted: str) -> bool:
    """A pattern against an ARN; against a logical id, by its start."""
    if wanted.startswith("arn:"):
        return fnmatchcase(wanted, resource)
    return resource == "*" or resource.startswith(wanted) or f"FnGetAtt{wanted}" in resource


@pytest.fixture(scope="module")
def granted(everything) -> dict[str, list[tuple[list[str], list[str]]]]:
    """(actions, resources) of every statement that allows, by stack/logical id of the role."""
    found: dict[str, list[tuple[list[str], list[str]]]] = {}
    for part, template in everything.templates.items():
        for logical_id, resource in template["Resources"].items():
            if resource["Type"] in ("AWS::IAM::Policy", "AWS::IAM::ManagedPolicy"):
                for statement in resource["Properties"]["PolicyDocument"]["Statement"]:
                    assert statement["Effect"] == "Allow"
                    pair = (as_list(statement["Action"]), [text(r) for r in as_list(statement["Resource"])])
                    found.setdefault(f"{part}/{logical_id}", []).append(pair)
    return found


@pytest.mark.parametrize(("role", "action", "resource", "may"), TABLE)
def test_a_role_may_what_its_work_needs_and_no_more(granted, role, action, resource, may):
    policies = [statements for where, statements in granted.items() if where.startswith(role)]
    assert policies, f"{role} is gone"
    allowed = any(
        any(fnmatchcase(action, pattern) for pattern in actions) and any(fits(r, resource) for r in resources)
        for statements in policies
        for actions, resources in statements
    )
    assert allowed is may
