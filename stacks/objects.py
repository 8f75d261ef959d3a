"""Kubernetes objects as resources of a stack: applied on create and update, gone again after a delete."""

from typing import Any

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import cluster_admin_entry
from stacks.names import KUBE_OBJECTS


class KubeObjectTool(Construct):
    """The function behind `Custom::KubeObjects` resources of any stack, with its rights in the cluster."""

    def __init__(self, stack: SkypodStack, *, cluster: eks.CfnCluster, reach: dict[str, Any]):
        super().__init__(stack, "Objects")
        self.cluster_name = cluster.ref
        function = stack.handler("kube_apply", timeout_s=870, reach=reach)
        function.add_to_role_policy(
            iam.PolicyStatement(actions=["eks:DescribeCluster"], resources=[stack.names.eks_cluster_arn])
        )
        cluster_admin_entry(self, "Entry", cluster_name=cluster.ref, principal_arn=function.role.role_arn)
        self.service_token = function.function_arn


def kube_objects(
    stack: SkypodStack, construct_id: str, tool: KubeObjectTool, manifests: list[dict[str, Any]]
) -> cdk.CustomResource:
    """Apply `manifests` in their order."""
    return cdk.CustomResource(
        stack,
        construct_id,
        service_token=tool.service_token,
        resource_type=KUBE_OBJECTS,
        properties={
            "Cluster": tool.cluster_name,
            # As text, because CloudFormation would turn every number and boolean into a string.
            "Manifests": stack.to_json_string(manifests),
        },
    )
