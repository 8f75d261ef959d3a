"""What watches the running cluster: the metrics collector on its nodes, and the alarm on idle GPU nodes."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_cloudwatch_actions as actions
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import pod_role
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.guardrails import GuardrailsStack
from stacks.hyperpod import HyperPodStack
from stacks.idle import idle_alarm
from stacks.lustre import LustreStack
from stacks.names import Names
from stacks.observability import ObservabilityStack

_ADDON = "amazon-sagemaker-hyperpod-observability"
_ADDON_VERSION = "v1.3.0-eksbuild.1"
_COLLECTOR_ACCOUNT = "hyperpod-observability-operator-otel-collector"
# Group names and levels as AWS's own cluster set-up passes them. Ray's are off unless they are named.
_METRICS = {
    "clusterMetrics": "BASIC",
    "nodeMetrics": "BASIC",
    "acceleratedComputeMetrics": "BASIC",
    "rayMetrics": "ADVANCED",
}
_SCRAPE_INTERVAL_S = 30
_LUSTRE_FREE_SHARE = 0.1
_GIB = 1024**3


class CollectorStack(SkypodStack):
    """The add-on needs a running node of at least 4xlarge size, so this stack comes after the nodes."""

    part = "collector"
    summary = "Metrics collector add-on, and alarms on idle GPU nodes and a full file system"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        guardrails: GuardrailsStack,
        lustre: LustreStack,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
        observability: ObservabilityStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(hyperpod)
        self._addon(eks_stack, observability)
        alarms = (
            idle_alarm(self, eks_stack=eks_stack, hyperpod=hyperpod),
            self._lustre_alarm(lustre),
        )
        for alarm in alarms:
            alarm.add_alarm_action(actions.SnsAction(guardrails.topic))
            alarm.add_ok_action(actions.SnsAction(guardrails.topic))
        self.emit(idle_alarm_name=names.idle_alarm)

    def _addon(self, eks_stack: EksStack, observability: ObservabilityStack) -> None:
        role = pod_role(
            self,
            "CollectorRole",
            cluster_arn=eks_stack.cluster.attr_arn,
            description="Writes the cluster's metrics and logs",
        )
        prometheus = observability.workspace
        role.add_to_policy(iam.PolicyStatement(actions=["aps:RemoteWrite"], resources=[prometheus.attr_arn]))
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "logs:CreateLogGroup",
                    "logs:CreateLogStream",
                    "logs:DescribeLogGroups",
                    "logs:DescribeLogStreams",
                    "logs:PutLogEvents",
                ],
                resources=[
                    f"arn:aws:logs:{self.names.region}:{self.names.account}:log-group:/aws/sagemaker/Clusters/*"
                ],
            )
        )
        configuration = {
            "ampWorkspace": {"prometheusEndpoint": observability.endpoint, "arn": prometheus.attr_arn},
            "metricsProvider": {
                group: {"level": level, "scrapeInterval": _SCRAPE_INTERVAL_S}
                for group, level in _METRICS.items()
            },
        }
        addon = eks.CfnAddon(
            self,
            "Collector",
            addon_name=_ADDON,
            addon_version=_ADDON_VERSION,
            cluster_name=eks_stack.cluster.ref,
            resolve_conflicts="OVERWRITE",
            configuration_values=self.to_json_string(configuration),
            pod_identity_associations=[
                eks.CfnAddon.PodIdentityAssociationProperty(
                    role_arn=role.role_arn, service_account=_COLLECTOR_ACCOUNT
                )
            ],
        )
        addon.node.add_dependency(role)

    def _lustre_alarm(self, lustre: LustreStack) -> cloudwatch.Alarm:
        """A checkpoint that finds no room ends the run. Lustre reports once a minute and storage target."""
        capacity_bytes = self.settings.storage.lustre_capacity_gib * _GIB
        return cloudwatch.Alarm(
            self,
            "LustreFull",
            alarm_name=f"{self.names.prefix}-lustre-full",
            alarm_description=f"Less than {_LUSTRE_FREE_SHARE:.0%} of the Lustre file system is free",
            metric=cloudwatch.Metric(
                namespace="AWS/FSx",
                metric_name="FreeDataStorageCapacity",
                dimensions_map={"FileSystemId": lustre.file_system.ref},
                statistic="Sum",
                period=cdk.Duration.minutes(1),
            ),
            comparison_operator=cloudwatch.ComparisonOperator.LESS_THAN_THRESHOLD,
            threshold=round(capacity_bytes * _LUSTRE_FREE_SHARE),
            evaluation_periods=5,
        )
