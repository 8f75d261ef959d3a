"""The role of HyperPod nodes. Every pod on the host network has it, so it can do little."""

from aws_cdk import aws_iam as iam
from aws_cdk import aws_s3 as s3

from stacks.base import SkypodStack
from stacks.network import NetworkStack

_DESCRIBE = (
    "ec2:DescribeDhcpOptions",
    "ec2:DescribeInstances",
    "ec2:DescribeInstanceTypes",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeTags",
    "ec2:DescribeVpcs",
)
_INTERFACES = (
    "ec2:AssignPrivateIpAddresses",
    "ec2:CreateNetworkInterface",
    "ec2:CreateNetworkInterfacePermission",
    "ec2:DeleteNetworkInterface",
    "ec2:DeleteNetworkInterfacePermission",
    "ec2:ModifyNetworkInterfaceAttribute",
    "ec2:UnassignPrivateIpAddresses",
)
_PULL = ("ecr:BatchCheckLayerAvailability", "ecr:BatchGetImage", "ecr:GetDownloadUrlForLayer")


def node_role(stack: SkypodStack, *, network: NetworkStack, lifecycle_bucket: s3.IBucket) -> iam.Role:
    """AWS's managed policy for cluster instances, plus what the CNI, image pulls and pod identity need."""
    region, account = stack.names.region, stack.names.account
    ec2_arn = f"arn:aws:ec2:{region}:{account}"
    role = iam.Role(
        stack,
        "NodeRole",
        description="HyperPod nodes",
        assumed_by=iam.ServicePrincipal("sagemaker.amazonaws.com"),
        managed_policies=[
            iam.ManagedPolicy.from_aws_managed_policy_name("AmazonSageMakerClusterInstanceRolePolicy")
        ],
    )
    statements = [
        # Describe calls and the registry's login know no resources.
        (_DESCRIBE, ["*"]),
        (["ecr:GetAuthorizationToken"], ["*"]),
        (
            ["ec2:AttachNetworkInterface", "ec2:DetachNetworkInterface"],
            [f"{ec2_arn}:instance/*", f"{ec2_arn}:network-interface/*"],
        ),
        (["ec2:CreateTags"], [f"{ec2_arn}:network-interface/*"]),
        (
            _INTERFACES,
            [
                f"{ec2_arn}:instance/*",
                f"{ec2_arn}:network-interface/*",
                f"{ec2_arn}:vpc/{network.vpc.vpc_id}",
                f"{ec2_arn}:subnet/{network.node_subnet.subnet_id}",
                f"{ec2_arn}:security-group/{network.cluster_group.security_group_id}",
                f"{ec2_arn}:security-group/{network.egress_group.security_group_id}",
            ],
        ),
        # AWS's own images (health agent, device plugins) come from its accounts, ours from this one.
        (_PULL, [f"arn:aws:ecr:{region}:*:repository/*"]),
        (["eks-auth:AssumeRoleForPodIdentity"], [stack.names.eks_cluster_arn]),
        (["s3:ListBucket"], [lifecycle_bucket.bucket_arn]),
        (["s3:GetObject"], [lifecycle_bucket.arn_for_objects("*")]),
    ]
    for actions, resources in statements:
        role.add_to_policy(iam.PolicyStatement(actions=list(actions), resources=resources))
    return role
