"""Managed Prometheus with alerts, the collector add-on on the nodes, and Grafana where it can be had."""

import aws_cdk as cdk
from aws_cdk import aws_aps as aps
from aws_cdk import aws_eks as eks
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks import alerts
from stacks.base import SkypodStack
from stacks.cluster_access import pod_role
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.guardrails import GuardrailsStack
from stacks.hyperpod import HyperPodStack
from stacks.names import Names

_ADDON = "amazon-sagemaker-hyperpod-observability"
_ADDON_VERSION = "v1.3.0-eksbuild.1"
_COLLECTOR_ACCOUNT = "hyperpod-observability-operator-otel-collector"
_QUERY = (
    "aps:QueryMetrics",
    "aps:GetLabels",
    "aps:GetSeries",
    "aps:GetMetricMetadata",
    "aps:DescribeWorkspace",
)


class ObservabilityStack(SkypodStack):
    """The add-on needs a running node of at least 4xlarge size, so this stack comes after the nodes."""

    part = "observability"
    summary = "Managed Prometheus, alert rules, the metrics collector and Grafana"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        guardrails: GuardrailsStack,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(hyperpod)
        self.workspace = aps.CfnWorkspace(
            self,
            "Prometheus",
            alias=names.prefix,
            alert_manager_definition=alerts.alert_manager(names.region, guardrails.topic.topic_arn),
        )
        # Metrics of a destroyed cluster are worth no workspace; runs keep their own in metrics.jsonl.
        self.workspace.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        rules = aps.CfnRuleGroupsNamespace(
            self,
            "Alerts",
            name=names.prefix,
            workspace=self.workspace.attr_arn,
            data=alerts.rule_groups(environment.observability),
        )
        rules.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        endpoint = f"https://aps-workspaces.{names.region}.amazonaws.com/workspaces/{self.workspace.attr_workspace_id}"
        self._collector(eks_stack, endpoint)
        self.emit(prometheus_workspace_id=self.workspace.attr_workspace_id, prometheus_endpoint=endpoint)
        if environment.observability.grafana:
            workspace = self._grafana()
            self.emit(grafana_workspace_id=workspace.attr_id, grafana_endpoint=workspace.attr_endpoint)

    def _collector(self, eks_stack: EksStack, endpoint: str) -> None:
        role = pod_role(
            self,
            "CollectorRole",
            cluster_arn=eks_stack.cluster.attr_arn,
            description="Writes the cluster's metrics and logs",
        )
        role.add_to_policy(
            iam.PolicyStatement(actions=["aps:RemoteWrite"], resources=[self.workspace.attr_arn])
        )
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
            "ampWorkspace": {"prometheusEndpoint": endpoint, "arn": self.workspace.attr_arn},
            "metricsProvider": {
                "nodeMetrics": {"level": "BASIC", "scrapeInterval": 30},
                "acceleratedComputeMetrics": {"level": "BASIC", "scrapeInterval": 30},
                "networkMetrics": {"level": "BASIC", "scrapeInterval": 30},
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

    def _grafana(self) -> grafana.CfnWorkspace:
        role = iam.Role(
            self,
            "GrafanaRole",
            description="Grafana reads metrics",
            assumed_by=iam.ServicePrincipal(
                "grafana.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": self.names.account}},
            ),
        )
        role.add_to_policy(iam.PolicyStatement(actions=list(_QUERY), resources=[self.workspace.attr_arn]))
        role.add_to_policy(iam.PolicyStatement(actions=["aps:ListWorkspaces"], resources=["*"]))
        workspace = grafana.CfnWorkspace(
            self,
            "Grafana",
            name=self.names.prefix,
            account_access_type="CURRENT_ACCOUNT",
            authentication_providers=["AWS_SSO"],
            permission_type="CUSTOMER_MANAGED",
            data_sources=["PROMETHEUS"],
            grafana_version=self.settings.observability.grafana_version,
            plugin_admin_enabled=False,
            role_arn=role.role_arn,
        )
        workspace.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        return workspace
