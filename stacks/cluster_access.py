"""How IAM roles get rights inside the cluster: access entries for people and tools, pod identity for pods."""

from collections.abc import Sequence

from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack


def cluster_admin_entry(
    scope: Construct, construct_id: str, *, cluster_name: str, principal_arn: str
) -> eks.CfnAccessEntry:
    """Full rights in the cluster for an IAM role; charts and persistent volumes need no less."""
    return eks.CfnAccessEntry(
        scope,
        construct_id,
        cluster_name=cluster_name,
        principal_arn=principal_arn,
        access_policies=[access_policy("AmazonEKSClusterAdminPolicy")],
    )


def access_policy(
    name: str, *, namespaces: list[str] | None = None
) -> eks.CfnAccessEntry.AccessPolicyProperty:
    """One of EKS's own cluster-access policies, for the whole cluster or for some namespaces."""
    scope = eks.CfnAccessEntry.AccessScopeProperty(
        type="namespace" if namespaces else "cluster", namespaces=namespaces
    )
    return eks.CfnAccessEntry.AccessPolicyProperty(
        policy_arn=f"arn:aws:eks::aws:cluster-access-policy/{name}", access_scope=scope
    )


def pod_role(stack: SkypodStack, construct_id: str, *, cluster_arn: str, description: str) -> iam.Role:
    """A role that only pods of this one cluster can have."""
    return iam.Role(
        stack,
        construct_id,
        description=description,
        assumed_by=iam.ServicePrincipal(
            "pods.eks.amazonaws.com",
            conditions={
                "StringEquals": {"aws:SourceAccount": stack.names.account},
                "ArnEquals": {"aws:SourceArn": cluster_arn},
            },
        ).with_session_tags(),
    )


def pod_identity(
    stack: SkypodStack,
    who: str,
    *,
    cluster: eks.CfnCluster,
    service_account: str,
    description: str,
    statements: Sequence[iam.PolicyStatement],
    namespace: str = "",
) -> eks.CfnPodIdentityAssociation:
    """AWS rights for the pods of a service account and for no others, by default in our own namespace."""
    role = pod_role(stack, f"{who}Role", cluster_arn=cluster.attr_arn, description=description)
    for statement in statements:
        role.add_to_policy(statement)
    return eks.CfnPodIdentityAssociation(
        stack,
        f"{who}Identity",
        cluster_name=cluster.ref,
        namespace=namespace or stack.settings.namespace,
        service_account=service_account,
        role_arn=role.role_arn,
    )
