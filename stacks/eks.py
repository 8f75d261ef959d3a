"""The EKS control plane, and the two tools that work on it."""

import json
from typing import Any

from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.charts import ChartBuilds
from stacks.environment import Environment
from stacks.names import Names
from stacks.network import NetworkStack
from stacks.objects import KubeObjectTool

_LOG_TYPES = ("api", "audit", "authenticator", "controllerManager", "scheduler")


def addon(
    stack: SkypodStack,
    construct_id: str,
    name: str,
    cluster: eks.CfnCluster,
    *,
    values: dict[str, object] | None = None,
    roles: dict[str, iam.Role] | None = None,
) -> eks.CfnAddon:
    """An EKS add-on at the version of the settings, with `roles` for its service accounts by pod identity."""
    return eks.CfnAddon(
        stack,
        construct_id,
        addon_name=name,
        addon_version=stack.settings.eks.addon_versions.get(name),
        cluster_name=cluster.ref,
        resolve_conflicts="OVERWRITE",
        configuration_values=None if values is None else json.dumps(values),
        pod_identity_associations=[
            eks.CfnAddon.PodIdentityAssociationProperty(role_arn=role.role_arn, service_account=account)
            for account, role in (roles or {}).items()
        ]
        or None,
    )


class EksStack(SkypodStack):
    """Half an hour of work for AWS, so nothing that may lack capacity is in this stack."""

    part = "eks"
    summary = "EKS control plane, and the chart and object tools"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        network: NetworkStack,
    ):
        super().__init__(scope, environment, names)
        settings = environment.eks
        # Its own key, not that of the data: the control plane is then made beside Lustre, not after it.
        key = self.key("SecretsKey", "Kubernetes secrets")
        role = iam.Role(
            self,
            "ClusterRole",
            assumed_by=iam.ServicePrincipal("eks.amazonaws.com"),
            managed_policies=[iam.ManagedPolicy.from_aws_managed_policy_name("AmazonEKSClusterPolicy")],
        )
        role.add_to_policy(
            iam.PolicyStatement(
                actions=[
                    "kms:Encrypt",
                    "kms:Decrypt",
                    "kms:DescribeKey",
                    "kms:ListGrants",
                    "kms:CreateGrant",
                ],
                resources=[key.key_arn],
            )
        )
        log_group = self.log_group("ControlPlaneLog", names.eks_log_group)
        cluster = eks.CfnCluster
        self.cluster = cluster(
            self,
            "Cluster",
            name=names.cluster,
            version=settings.version,
            role_arn=role.role_arn,
            # The hyperpod stack brings the managed ones; EKS would install unmanaged copies first.
            bootstrap_self_managed_addons=False,
            access_config=cluster.AccessConfigProperty(
                authentication_mode="API", bootstrap_cluster_creator_admin_permissions=False
            ),
            encryption_config=[
                cluster.EncryptionConfigProperty(
                    provider=cluster.ProviderProperty(key_arn=key.key_arn), resources=["secrets"]
                )
            ],
            # Public as well by default, because the researcher's client comes from outside the VPC.
            resources_vpc_config=cluster.ResourcesVpcConfigProperty(
                subnet_ids=[subnet.subnet_id for subnet in network.control_plane_subnets],
                security_group_ids=[network.cluster_group.security_group_id],
                endpoint_private_access=True,
                endpoint_public_access=settings.public_access,
                public_access_cidrs=list(settings.public_access_cidrs) if settings.public_access else None,
            ),
            logging=cluster.LoggingProperty(
                cluster_logging=cluster.ClusterLoggingProperty(
                    enabled_types=[cluster.LoggingTypeConfigProperty(type=kind) for kind in _LOG_TYPES]
                )
            ),
        )
        # EKS makes the log group itself when there is none, and then it would outlive the stack.
        self.cluster.node.add_dependency(log_group)
        self.cluster.node.add_dependency(role)
        # Beside a private control plane, whatever talks to it must be where its address can be reached.
        self.reach: dict[str, Any] = {} if settings.public_access else network.cluster_placement
        self.charts = ChartBuilds(self, cluster=self.cluster, reach=self.reach)
        self.objects = KubeObjectTool(self, cluster=self.cluster, reach=self.reach)
        self.emit(
            eks_cluster_name=self.cluster.ref,
            eks_cluster_arn=self.cluster.attr_arn,
            chart_build_project=self.charts.project.project_name,
        )
