"""SageMaker Studio as a view of the cluster: its tasks and Ray clusters, and a link to Grafana."""

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.access import AccessStack
from stacks.base import SkypodStack
from stacks.cluster_access import access_policy
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.hyperpod import HyperPodStack
from stacks.images import ImagesStack
from stacks.names import Names
from stacks.network import NetworkStack
from stacks.observability import ObservabilityStack

# What AWS's page on Studio with EKS asks for, by action, where AWS knows a resource narrower than all.
_CLUSTER = ("eks:DescribeCluster", "eks:AccessKubernetesApi", "eks:MutateViaKubernetesApi")
_PUSH = (
    "ecr:BatchCheckLayerAvailability",
    "ecr:InitiateLayerUpload",
    "ecr:UploadLayerPart",
    "ecr:CompleteLayerUpload",
    "ecr:PutImage",
)
# The same where it knows none. Of ec2:Describe* those that a domain's network page shows.
_EVERYWHERE = (
    "sagemaker:ListClusters",
    "sagemaker:ListDomains",
    "ecr:GetAuthorizationToken",
    "cloudwatch:GetMetricData",
    "cloudwatch:PutMetricData",
    "ec2:DescribeInstances",
    "ec2:DescribeNetworkInterfaces",
    "ec2:DescribeSecurityGroups",
    "ec2:DescribeSubnets",
    "ec2:DescribeVpcs",
)


class StudioStack(SkypodStack):
    """Users see and run tasks in the one namespace. They cannot open shells on nodes or start paid spaces."""

    part = "studio"
    summary = "SageMaker Studio domain and user profiles, as a view of the cluster"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        network: NetworkStack,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
        images: ImagesStack,
        access: AccessStack,
        observability: ObservabilityStack,
    ):
        super().__init__(scope, environment, names)
        if observability.grafana is not None:
            # How Studio finds the dashboards of a cluster.
            cdk.Tags.of(hyperpod.cluster).add("grafana-workspace", observability.grafana.attr_id)
        role = self._execution_role(eks_stack, hyperpod, images)
        eks.CfnAccessEntry(
            self,
            "UsersEntry",
            cluster_name=eks_stack.cluster.ref,
            principal_arn=role.role_arn,
            access_policies=[
                *(
                    access_policy(name, namespaces=[environment.namespace])
                    for name in (
                        "AmazonSagemakerHyperpodTrainingPolicy",
                        "AmazonSagemakerHyperpodInferencePolicy",
                    )
                ),
                access_policy("AmazonSagemakerHyperpodUserClusterPolicy"),
            ],
        )
        domain = sagemaker.CfnDomain
        self.domain = domain(
            self,
            "Domain",
            domain_name=names.prefix,
            auth_mode="IAM",
            vpc_id=network.vpc.vpc_id,
            # Not the nodes' subnet, whose addresses are for pods.
            subnet_ids=[subnet.subnet_id for subnet in network.control_plane_subnets],
            app_network_access_type="PublicInternetOnly",
            # Home directories would outlive the domain, and their network interfaces would keep the VPC.
            home_efs_file_system_creation="Disabled",
            tag_propagation="ENABLED",
            default_user_settings=domain.UserSettingsProperty(
                execution_role=role.role_arn, auto_mount_home_efs="Disabled", studio_web_portal="ENABLED"
            ),
        )
        self.domain.node.add_dependency(role)
        self.domain.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        for user in environment.studio.users:
            profile = sagemaker.CfnUserProfile(
                self, f"User-{user}", domain_id=self.domain.attr_domain_id, user_profile_name=user
            )
            profile.apply_removal_policy(cdk.RemovalPolicy.DESTROY)
        profiles = self._arn(f"user-profile/{self.domain.attr_domain_id}/*")
        iam.Policy(
            self,
            "OpenStudio",
            roles=[access.admin, access.researcher],
            statements=[
                iam.PolicyStatement(actions=["sagemaker:CreatePresignedDomainUrl"], resources=[profiles])
            ],
        )
        self.emit(studio_domain_id=self.domain.attr_domain_id)

    def _execution_role(self, eks_stack: EksStack, hyperpod: HyperPodStack, images: ImagesStack) -> iam.Role:
        role = iam.Role(
            self,
            "Users",
            description="What Studio's users may do",
            assumed_by=iam.ServicePrincipal(
                "sagemaker.amazonaws.com",
                conditions={"StringEquals": {"aws:SourceAccount": self.names.account}},
            ),
        )
        cluster_arn = eks_stack.cluster.attr_arn
        addons = f"arn:aws:eks:{self.names.region}:{self.names.account}:addon/{self.names.cluster}/*/*"
        repositories = [repository.repository_arn for repository in images.repositories.values()]
        domains = [self._arn(f"{kind}/*") for kind in ("domain", "user-profile", "space", "app")]
        look = [
            f"sagemaker:{verb}"
            for verb in (
                "DescribeDomain",
                "ListUserProfiles",
                "DescribeUserProfile",
                "ListSpaces",
                "DescribeSpace",
                "ListApps",
                "DescribeApp",
            )
        ]
        for actions, resources in (
            (_CLUSTER, [cluster_arn]),
            # The documented statement names both forms of the add-on's owner.
            (["eks:DescribeAddon"], [cluster_arn, addons]),
            (
                ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes", "sagemaker:DescribeClusterNode"],
                [hyperpod.cluster.attr_cluster_arn],
            ),
            (_PUSH, repositories),
            (look, domains),
            (_EVERYWHERE, ["*"]),
        ):
            role.add_to_policy(iam.PolicyStatement(actions=list(actions), resources=resources))
        return role

    def _arn(self, resource: str) -> str:
        return f"arn:aws:sagemaker:{self.names.region}:{self.names.account}:{resource}"
