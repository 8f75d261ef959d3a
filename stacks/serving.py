"""What the serving pods may do. The RayService itself is applied by a promotion, not by a deploy."""

from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import pod_identity
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.names import ADAPTERS_PREFIX, SERVING_SERVICE_ACCOUNT, Names
from stacks.operators import OperatorsStack
from stacks.storage import StorageStack


class ServingStack(SkypodStack):
    """Replicas read promoted adapters from one S3 prefix, and nothing else in the account."""

    part = "serving"
    summary = "Pod identity of the serving replicas, scoped to the prefix of promoted adapters"

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
        self.emit(
            serving_service_account=SERVING_SERVICE_ACCOUNT,
            adapters_uri=f"s3://{bucket.bucket_name}/{ADAPTERS_PREFIX}",
        )
