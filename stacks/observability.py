"""Managed Prometheus with alerts, and Grafana with dashboards. Needs no cluster, so it is made beside it."""

import aws_cdk as cdk
from aws_cdk import aws_aps as aps
from constructs import Construct

from stacks import alerts
from stacks.base import SkypodStack
from stacks.environment import Environment
from stacks.grafana import GrafanaWorkspace, push_dashboards
from stacks.guardrails import GuardrailsStack
from stacks.names import Names


class ObservabilityStack(SkypodStack):
    """`grafana` is the workspace when the settings ask for one."""

    part = "observability"
    summary = "Managed Prometheus, alert rules, Grafana and its dashboards"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        guardrails: GuardrailsStack,
    ):
        super().__init__(scope, environment, names)
        settings = environment.observability
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
            data=alerts.rule_groups(settings),
        )
        rules.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        host = f"aps-workspaces.{names.region}.amazonaws.com"
        self.endpoint = f"https://{host}/workspaces/{self.workspace.attr_workspace_id}"
        self.emit(prometheus_workspace_id=self.workspace.attr_workspace_id, prometheus_endpoint=self.endpoint)
        self.grafana = None
        if settings.grafana:
            self.grafana = GrafanaWorkspace(self, prometheus_arn=self.workspace.attr_arn).workspace
            self.emit(grafana_workspace_id=self.grafana.attr_id, grafana_endpoint=self.grafana.attr_endpoint)
        if settings.grafana or settings.grafana_url:
            pushed = push_dashboards(self, prometheus_endpoint=self.endpoint, own=self.grafana)
            self.emit(dashboards_folder=pushed.get_att_string("Folder"))
