"""What the serving pods may do, and who may promote. A promotion applies the RayService, not a deploy."""

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import pod_identity
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.names import ADAPTERS_PREFIX, INFERENCE_COMPONENT, SERVING_SERVICE_ACCOUNT, Names
from stacks.operators import OperatorsStack
from stacks.storage import StorageStack

LINEAGE_PREFIX = "lineage"


class ServingStack(SkypodStack):
    """Replicas read promoted adapters from one S3 prefix, and nothing else in the account.

    No role of ours may approve an adapter: whoever shall is given the managed policy for it.
    """

    part = "serving"
    summary = "Pod identity of the serving replicas, and the policy of those who may promote adapters"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        eks_stack: EksStack,
        storage: StorageStack,
        operators: OperatorsStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(operators)
        bucket = storage.artifacts
        pod_identity(
            self,
            "Replica",
            cluster=eks_stack.cluster,
            service_account=SERVING_SERVICE_ACCOUNT,
            description="Serving replicas: read promoted adapters",
            statements=(
                iam.PolicyStatement(
                    actions=["s3:GetObject"], resources=[bucket.arn_for_objects(f"{ADAPTERS_PREFIX}/*")]
                ),
                iam.PolicyStatement(
                    actions=["s3:ListBucket"],
                    resources=[bucket.bucket_arn],
                    conditions={"StringLike": {"s3:prefix": [ADAPTERS_PREFIX, f"{ADAPTERS_PREFIX}/*"]}},
                ),
            ),
        )
        iam.ManagedPolicy(
            self,
            "Promote",
            managed_policy_name=names.role("promote"),
            description="Register, approve and reject adapters, and publish them to the replicas",
            statements=_may_promote(names, bucket)
            + (_may_change_adapters(names) if environment.serving.endpoint else []),
        )
        self.emit(
            serving_service_account=SERVING_SERVICE_ACCOUNT,
            adapters_uri=f"s3://{bucket.bucket_name}/{ADAPTERS_PREFIX}",
        )


def _may_promote(names: Names, bucket: s3.IBucket) -> list[iam.PolicyStatement]:
    """Of one environment: the groups of its bases, their packages, and what lies beside them in S3."""
    sagemaker = f"arn:aws:sagemaker:{names.region}:{names.account}"
    group = f"{sagemaker}:model-package-group/{names.prefix}-base-*"
    package = f"{sagemaker}:model-package/{names.prefix}-base-*/*"
    return [
        iam.PolicyStatement(actions=["sagemaker:CreateModelPackageGroup"], resources=[group]),
        iam.PolicyStatement(actions=["sagemaker:CreateModelPackage"], resources=[group, package]),
        iam.PolicyStatement(
            actions=[f"sagemaker:{verb}" for verb in ("ListModelPackages", "DescribeModelPackage")],
            resources=[package],
        ),
        # This is the right to approve: the gate's decision sets the status, and a person may take it back.
        iam.PolicyStatement(actions=["sagemaker:UpdateModelPackage"], resources=[package]),
        iam.PolicyStatement(
            actions=["s3:GetObject", "s3:PutObject"],
            resources=[bucket.arn_for_objects(f"{prefix}/*") for prefix in (ADAPTERS_PREFIX, LINEAGE_PREFIX)],
        ),
    ]


def _may_change_adapters(names: Names) -> list[iam.PolicyStatement]:
    """Name adapters to the stack of the endpoint, and ask them. CloudFormation makes the components, by its
    own role, so the condition keeps whoever may update the stack from changing anything else by it."""
    sagemaker = f"arn:aws:sagemaker:{names.region}:{names.account}"
    component = f"{sagemaker}:inference-component/{names.inference_component('*')}"
    stack = f"arn:aws:cloudformation:{names.region}:{names.account}:stack/{names.stack('inference')}/*"
    return [
        iam.PolicyStatement(
            actions=["cloudformation:UpdateStack"],
            resources=[stack],
            conditions={
                "ForAllValues:StringEquals": {"cloudformation:ResourceTypes": [INFERENCE_COMPONENT]},
                # For no value at all the line above holds as well.
                "Null": {"cloudformation:ResourceTypes": "false"},
            },
        ),
        iam.PolicyStatement(
            actions=["cloudformation:DescribeStacks", "cloudformation:DescribeStackEvents"], resources=[stack]
        ),
        iam.PolicyStatement(actions=["sagemaker:ListInferenceComponents"], resources=["*"]),
        iam.PolicyStatement(actions=["sagemaker:DescribeInferenceComponent"], resources=[component]),
        iam.PolicyStatement(
            actions=["sagemaker:InvokeEndpoint"],
            resources=[f"{sagemaker}:endpoint/{names.inference_endpoint}", component],
        ),
    ]
