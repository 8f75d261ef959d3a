"""A SageMaker endpoint: the base as an inference component, and every adapter as one on top of it.

It needs nothing of the cluster, and is one of the places that adapters are promoted to.
"""

import aws_cdk as cdk
from aws_cdk import aws_applicationautoscaling as scaling
from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.names import ADAPTER_SLOT, ADAPTERS_PREFIX, BASE, Names
from stacks.optional import InferenceEndpoint
from stacks.storage import StorageStack

_VARIANT = "all"
_LONGEST_NAME = 63
# A digest's digits and the hyphen before them, as in an adapter's name.
_DIGITS = 13
_DOWNLOAD_S, _START_S = 1800, 1800


class InferenceStack(SkypodStack):
    """Adapters come in as parameters `Adapter1`, `Adapter2`, ..., which each name one or are empty.

    A deploy that does not name them leaves them as they are. One that is named has to stay in its place:
    CloudFormation renames no inference component, and another adapter's weights would come under its name.
    """

    part = "inference"
    summary = "SageMaker endpoint that serves the base and promoted adapters"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        settings: InferenceEndpoint,
        storage: StorageStack,
    ):
        super().__init__(scope, environment, names)
        base_name = names.inference_component(BASE)
        self.log_group("EndpointLog", f"/aws/sagemaker/Endpoints/{names.inference_endpoint}")
        self.log_group("BaseLog", f"/aws/sagemaker/InferenceComponents/{base_name}")
        role = self._role(settings, storage.artifacts)
        endpoint = self._endpoint(settings, role)
        base = self._base(settings, role, endpoint)
        if settings.max_copies > settings.min_copies:
            self._scale(settings, base)
        for number in range(1, environment.serving.max_adapters + 1):
            self._adapter(number, storage.artifacts, endpoint, base)
        self.emit(inference_endpoint_name=endpoint.attr_endpoint_name)

    def _role(self, settings: InferenceEndpoint, artifacts: s3.IBucket) -> iam.Role:
        """SageMaker takes it to fetch image, base and adapters, and to write logs; the containers are cut off
        from every network and can do nothing with it."""
        names = self.names
        bucket, _, folder = settings.base_uri.removeprefix("s3://").partition("/")
        logs = f"arn:aws:logs:{names.region}:{names.account}:log-group:/aws/sagemaker"
        groups = [
            f"{logs}/Endpoints/{names.inference_endpoint}",
            f"{logs}/InferenceComponents/{names.inference_component('*')}",
        ]
        role = iam.Role(self, "Role", assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"))
        for actions, resources in (
            (
                ["s3:GetObject"],
                [
                    f"arn:aws:s3:::{bucket}/{folder}/*",
                    artifacts.arn_for_objects(f"{ADAPTERS_PREFIX}/*.tar.gz"),
                ],
            ),
            (["s3:ListBucket"], [f"arn:aws:s3:::{bucket}", artifacts.bucket_arn]),
            (
                ["ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer"],
                [settings.repository_arn],
            ),
            (["ecr:GetAuthorizationToken", "cloudwatch:PutMetricData"], ["*"]),
            (["logs:CreateLogGroup", "logs:DescribeLogStreams"], groups),
            (["logs:CreateLogStream", "logs:PutLogEvents"], [f"{group}:log-stream:*" for group in groups]),
        ):
            role.add_to_policy(iam.PolicyStatement(actions=actions, resources=resources))
        return role

    def _endpoint(self, settings: InferenceEndpoint, role: iam.Role) -> sagemaker.CfnEndpoint:
        """Without a key of ours: GPU instances keep models on disks that encrypt themselves, and a key would
        not reach those."""
        config = sagemaker.CfnEndpointConfig
        made = config(
            self,
            "EndpointConfig",
            execution_role_arn=role.role_arn,
            enable_network_isolation=True,
            production_variants=[
                config.ProductionVariantProperty(
                    variant_name=_VARIANT,
                    instance_type=settings.instance_type,
                    initial_instance_count=settings.min_copies,
                    managed_instance_scaling=config.ManagedInstanceScalingProperty(
                        status="ENABLED",
                        min_instance_count=settings.min_copies,
                        max_instance_count=settings.max_copies,
                    ),
                    routing_config=config.RoutingConfigProperty(
                        routing_strategy="LEAST_OUTSTANDING_REQUESTS"
                    ),
                )
            ],
        )
        # SageMaker takes the role at once, and its rights are another resource.
        made.node.add_dependency(role)
        return sagemaker.CfnEndpoint(
            self,
            "Endpoint",
            endpoint_name=self.names.inference_endpoint,
            endpoint_config_name=made.attr_endpoint_config_name,
        )

    def _base(
        self, settings: InferenceEndpoint, role: iam.Role, endpoint: sagemaker.CfnEndpoint
    ) -> sagemaker.CfnInferenceComponent:
        model = sagemaker.CfnModel
        made = model(
            self,
            "Model",
            execution_role_arn=role.role_arn,
            primary_container=model.ContainerDefinitionProperty(
                image=settings.image,
                environment=self._variables(settings),
                model_data_source=model.ModelDataSourceProperty(
                    s3_data_source=model.S3DataSourceProperty(
                        s3_uri=f"{settings.base_uri}/", s3_data_type="S3Prefix", compression_type="None"
                    )
                ),
            ),
        )
        made.node.add_dependency(role)
        component = sagemaker.CfnInferenceComponent
        return component(
            self,
            "Base",
            inference_component_name=self.names.inference_component(BASE),
            endpoint_name=endpoint.attr_endpoint_name,
            variant_name=_VARIANT,
            specification=component.InferenceComponentSpecificationProperty(
                model_name=made.attr_model_name,
                compute_resource_requirements=component.InferenceComponentComputeResourceRequirementsProperty(
                    number_of_accelerator_devices_required=settings.gpus,
                    min_memory_required_in_mb=settings.memory_gib * 1024,
                ),
                startup_parameters=component.InferenceComponentStartupParametersProperty(
                    model_data_download_timeout_in_seconds=_DOWNLOAD_S,
                    container_startup_health_check_timeout_in_seconds=_START_S,
                ),
            ),
            runtime_config=component.InferenceComponentRuntimeConfigProperty(copy_count=settings.min_copies),
        )

    def _variables(self, settings: InferenceEndpoint) -> dict[str, str]:
        """vLLM's arguments, as its image for SageMaker takes them."""
        adapters = str(self.settings.serving.max_adapters)
        return {
            "SM_VLLM_MODEL": "/opt/ml/model",
            "SM_VLLM_SERVED_MODEL_NAME": settings.model_id,
            "SM_VLLM_TENSOR_PARALLEL_SIZE": str(settings.gpus),
            "SM_VLLM_MAX_MODEL_LEN": str(settings.max_model_len_tokens),
            "SM_VLLM_ENABLE_LORA": "true",
            "SM_VLLM_MAX_LORA_RANK": str(settings.max_lora_rank),
            "SM_VLLM_MAX_LORAS": adapters,
            "SM_VLLM_MAX_CPU_LORAS": adapters,
            # SageMaker has it load and unload adapters; nobody else reaches the container.
            "VLLM_ALLOW_RUNTIME_LORA_UPDATING": "true",
        }

    def _scale(self, settings: InferenceEndpoint, base: sagemaker.CfnInferenceComponent) -> None:
        """Adapters are on every copy of the base, so copies of the base are all that is counted."""
        target = scaling.CfnScalableTarget(
            self,
            "Copies",
            service_namespace="sagemaker",
            scalable_dimension="sagemaker:inference-component:DesiredCopyCount",
            resource_id=f"inference-component/{self.names.inference_component(BASE)}",
            min_capacity=settings.min_copies,
            max_capacity=settings.max_copies,
        )
        target.node.add_dependency(base)
        policy = scaling.CfnScalingPolicy
        policy(
            self,
            "CopiesByLoad",
            policy_name=self.names.inference_component("copies"),
            policy_type="TargetTrackingScaling",
            scaling_target_id=target.ref,
            target_tracking_scaling_policy_configuration=policy.TargetTrackingScalingPolicyConfigurationProperty(
                target_value=settings.requests_per_copy,
                predefined_metric_specification=policy.PredefinedMetricSpecificationProperty(
                    predefined_metric_type="SageMakerInferenceComponentConcurrentRequestsPerCopyHighResolution"
                ),
            ),
        )

    def _adapter(
        self,
        number: int,
        artifacts: s3.IBucket,
        endpoint: sagemaker.CfnEndpoint,
        base: sagemaker.CfnInferenceComponent,
    ) -> None:
        slot = f"{ADAPTER_SLOT}{number}"
        longest = _LONGEST_NAME - len(self.names.inference_component("")) - _DIGITS
        adapter = cdk.CfnParameter(
            self,
            slot,
            default="",
            allowed_pattern=f"^([a-z][a-z0-9-]{{0,{longest - 1}}}-[0-9a-f]{{12}})?$",
            description="An adapter by its name, which ends with its digest's digits; empty for none",
        )
        there = cdk.CfnCondition(
            self,
            f"Has{slot}",
            expression=cdk.Fn.condition_not(cdk.Fn.condition_equals(adapter.value_as_string, "")),
        )
        component = sagemaker.CfnInferenceComponent
        made = component(
            self,
            f"{slot}Component",
            inference_component_name=self.names.inference_component(adapter.value_as_string),
            endpoint_name=endpoint.attr_endpoint_name,
            specification=component.InferenceComponentSpecificationProperty(
                base_inference_component_name=self.names.inference_component(BASE),
                container=component.InferenceComponentContainerSpecificationProperty(
                    artifact_url=artifacts.s3_url_for_object(
                        f"{ADAPTERS_PREFIX}/{adapter.value_as_string}.tar.gz"
                    )
                ),
            ),
        )
        made.cfn_options.condition = there
        made.node.add_dependency(base)
