"""Grafana: a workspace of our own, or somebody's Grafana that is given, and the dashboards pushed to it."""

import json
from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_grafana as grafana
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks import dashboards
from stacks.base import SkypodStack

_QUERY = (
    "aps:QueryMetrics",
    "aps:GetLabels",
    "aps:GetSeries",
    "aps:GetMetricMetadata",
    "aps:DescribeWorkspace",
    # Managed Prometheus' own alerts, shown beside the panels.
    "aps:ListRules",
    "aps:ListAlertManagerAlerts",
    "aps:ListAlertManagerAlertGroups",
    "aps:ListAlertManagerSilences",
    "aps:GetAlertManagerStatus",
)


class GrafanaWorkspace(Construct):
    """A workspace that may read one Prometheus workspace. Who may sign in is set in IAM Identity Center."""

    def __init__(self, stack: SkypodStack, *, prometheus_arn: str):
        super().__init__(stack, "GrafanaWorkspace")
        role = iam.Role(
            self,
            "Role",
            description="Grafana reads metrics",
            assumed_by=iam.ServicePrincipal(
                "grafana.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": stack.names.account}},
            ),
        )
        role.add_to_policy(iam.PolicyStatement(actions=list(_QUERY), resources=[prometheus_arn]))
        role.add_to_policy(iam.PolicyStatement(actions=["aps:ListWorkspaces"], resources=["*"]))
        self.workspace = grafana.CfnWorkspace(
            self,
            "Workspace",
            name=stack.names.prefix,
            account_access_type="CURRENT_ACCOUNT",
            authentication_providers=["AWS_SSO"],
            permission_type="CUSTOMER_MANAGED",
            data_sources=["PROMETHEUS"],
            grafana_version=stack.settings.observability.grafana_version,
            plugin_admin_enabled=False,
            role_arn=role.role_arn,
        )
        self.workspace.apply_removal_policy(cdk.RemovalPolicy.DESTROY)


def push_dashboards(
    stack: SkypodStack, *, prometheus_endpoint: str, own: grafana.CfnWorkspace | None
) -> cdk.CustomResource:
    """Dashboards on our own workspace, or on the Grafana that the settings name."""
    settings = stack.settings.observability
    function = stack.handler("grafana_push", timeout_s=600)
    if own is not None:
        target = {"workspaceId": own.attr_id, "endpoint": own.attr_endpoint}
        statement = iam.PolicyStatement(
            actions=[
                "grafana:ListWorkspaceServiceAccounts",
                "grafana:CreateWorkspaceServiceAccount",
                "grafana:CreateWorkspaceServiceAccountToken",
                "grafana:DeleteWorkspaceServiceAccount",
            ],
            resources=[
                f"arn:aws:grafana:{stack.names.region}:{stack.names.account}:/workspaces/{own.attr_id}"
            ],
        )
    else:
        target = {"url": settings.grafana_url, "secretArn": settings.grafana_token_secret_arn}
        statement = iam.PolicyStatement(
            actions=["secretsmanager:GetSecretValue"], resources=[settings.grafana_token_secret_arn]
        )
    function.add_to_role_policy(statement)
    prefix = stack.names.prefix
    source = dashboards.data_source(
        uid=prefix,
        title=prefix,
        endpoint=prometheus_endpoint,
        region=stack.names.region,
        grafana_version=settings.grafana_version,
        managed=own is not None,
    )
    pushed = cdk.CustomResource(
        stack,
        "Dashboards",
        service_token=function.function_arn,
        resource_type="Custom::GrafanaDashboards",
        properties={
            "Target": stack.to_json_string(target),
            "DataSource": stack.to_json_string(source),
            "Folder": json.dumps({"uid": prefix, "title": f"Skypod {stack.settings.name}"}),
            "Dashboards": _compact(dashboards.build(prefix, source)),
        },
    )
    # The role's policy must be there before the first push, and for as long as one may be undone.
    pushed.node.add_dependency(function)
    return pushed


def _compact(document: Any) -> str:
    return json.dumps(document, separators=(",", ":"), sort_keys=True)
