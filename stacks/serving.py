"""The RayService on the cluster, what its pods may do, and who may promote to it."""

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import pod_identity
from stacks.eks import EksStack
from stacks.endpoint import EndpointStack
from stacks.environment import Environment
from stacks.manifests import gateway, rayservice
from stacks.manifests.pods import PINNED
from stacks.names import ADAPTERS_PREFIX, INFERENCE_COMPONENT, SERVING_SERVICE_ACCOUNT, Names
from stacks.objects import kube_objects
from stacks.operators import OperatorsStack
from stacks.outputs import cloudformation_name
from stacks.storage import StorageStack

LINEAGE_PREFIX = "lineage"
# No quotes, spaces or steps upwards: the values go into JSON and paths.
_WORD = "[A-Za-z0-9_][A-Za-z0-9._-]*"
_ADAPTER = "[a-z][a-z0-9-]{0,40}-[0-9a-f]{12}"


class ServingStack(SkypodStack):
    """The RayService is there while the parameter `Adapter` names an adapter; the other parameters say of
    which base, by which image. A first deploy has none of them, and no GPU is taken. A deploy that does not
    name them leaves them as they are.

    Replicas read promoted adapters from one S3 prefix, and nothing else in the account. No role of ours may
    approve an adapter: whoever shall is given the managed policy for it.
    """

    part = "serving"
    summary = "RayService of promoted adapters, its pod identity, and the policy of those who may promote"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        eks_stack: EksStack,
        storage: StorageStack,
        operators: OperatorsStack,
        endpoint: EndpointStack | None,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(operators)
        if endpoint:  # Its controller makes the gateway's load balancer, and has to take it away.
            self.add_stack_dependency(endpoint)
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
            statements=[
                *_may_promote(names, bucket),
                *(_may_change_adapters(names) if environment.serving.endpoint else ()),
            ],
        )
        self._service(eks_stack, f"s3://{bucket.bucket_name}/{ADAPTERS_PREFIX}")
        self.emit(
            serving_service_account=SERVING_SERVICE_ACCOUNT,
            adapters_uri=f"s3://{bucket.bucket_name}/{ADAPTERS_PREFIX}",
        )

    def _service(self, eks_stack: EksStack, adapters_uri: str) -> None:
        text = {
            "adapter": (f"({_ADAPTER})?", "", "What was promoted last, by its name; empty for no service"),
            "base": (f"({_WORD}(/{_WORD})*)?", "", "The base model's path on the shared file system"),
            "model_id": (_WORD, "maze", "What requests call the base"),
            "image": (f"({PINNED})?", "", "The serve image by its digest, as `skypod images` lists it"),
        }
        values: dict[str, Any] = {
            field: cdk.CfnParameter(
                self,
                cloudformation_name(field),
                allowed_pattern=f"^{pattern}$",
                default=default,
                description=meaning,
            ).value_as_string
            for field, (pattern, default, meaning) in text.items()
        }
        values["max_lora_rank"] = cdk.CfnParameter(
            self,
            cloudformation_name("max_lora_rank"),
            type="Number",
            allowed_values=[str(rank) for rank in rayservice.LORA_RANKS],
            default="32",
            description="The largest rank of an adapter",
        ).value_as_number
        values["max_model_len"] = cdk.CfnParameter(
            self,
            cloudformation_name("max_model_len"),
            type="Number",
            min_value=1,
            default="8192",
            description="The longest request and answer, in tokens",
        ).value_as_number
        named = {
            field: cdk.Fn.condition_not(cdk.Fn.condition_equals(values[field], ""))
            for field in ("adapter", "base", "image")
        }
        cdk.CfnRule(
            self,
            "Whole",
            rule_condition=named["adapter"],
            assertions=[
                cdk.CfnRuleAssertion(
                    assert_=named[field],
                    assert_description=f"{cloudformation_name(field)} says what the adapter is served with",
                )
                for field in ("base", "image")
            ],
        )
        served = rayservice.Served(**values)
        service = rayservice.build(
            self.settings,
            served,
            region=self.names.region,
            adapters_uri=adapters_uri,
            to_text=self.to_json_string,
        )
        self._objects("Service", eks_stack, [service], named["adapter"])
        if settings := self.settings.serving.gateway:
            # It has an image from the first promotion on, and stays while nothing is served.
            objects = gateway.build(
                settings,
                namespace=self.settings.namespace,
                region=self.names.region,
                image=served.image,
                model_id=served.model_id,
                balanced=self.settings.domain is not None,
            )
            self._objects("Gateway", eks_stack, objects, named["image"])

    def _objects(
        self,
        construct_id: str,
        eks_stack: EksStack,
        manifests: list[dict[str, Any]],
        there: cdk.ICfnConditionExpression,
    ) -> None:
        """Objects that are there under a condition."""
        made = kube_objects(self, construct_id, eks_stack.objects, manifests)
        made.node.default_child.cfn_options.condition = cdk.CfnCondition(
            self, f"{construct_id}There", expression=there
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
    own role, so the condition keeps whoever may update the stack from changing anything else by it.

    The stack `serving` has no such statement: nothing keeps a caller to the previous template, and custom
    resources of another one would call any function in the account.
    """
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
