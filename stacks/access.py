"""The two roles that people take: administrators, and researchers who run jobs and nothing else."""

from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import access_policy, cluster_admin_entry
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.hyperpod import HyperPodStack
from stacks.images import ImagesStack
from stacks.names import Names
from stacks.storage import StorageStack

# In the namespace: pods, logs, port-forward and secrets; Ray clusters and jobs; Ray services.
_RESEARCHER_NAMESPACE_POLICIES = (
    "AmazonEKSEditPolicy",
    "AmazonSagemakerHyperpodTrainingPolicy",
    "AmazonSagemakerHyperpodInferencePolicy",
)


class AccessStack(SkypodStack):
    """A role's trust names the principals of the settings, or the whole account when there are none.

    With the whole account, IAM policies of the account decide who may take the role.
    """

    part = "access"
    summary = "Administrator and researcher roles with their rights in AWS and in the cluster"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
        storage: StorageStack,
        images: ImagesStack,
    ):
        super().__init__(scope, environment, names)
        cluster_name = eks_stack.cluster.ref
        self.admin = admin = self._role("admin", environment.access.admin_principal_arns)
        self.researcher = researcher = self._role("researcher", environment.access.researcher_principal_arns)
        cluster_admin_entry(self, "AdminEntry", cluster_name=cluster_name, principal_arn=admin.role_arn)
        eks.CfnAccessEntry(
            self,
            "ResearcherEntry",
            cluster_name=cluster_name,
            principal_arn=researcher.role_arn,
            access_policies=[
                *(
                    access_policy(name, namespaces=[environment.namespace])
                    for name in _RESEARCHER_NAMESPACE_POLICIES
                ),
                access_policy("AmazonSagemakerHyperpodUserClusterPolicy"),
            ],
        )
        see_clusters = [
            (["eks:DescribeCluster", "eks:AccessKubernetesApi"], [eks_stack.cluster.attr_arn]),
            (
                ["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes", "sagemaker:DescribeClusterNode"],
                [hyperpod.cluster.attr_cluster_arn],
            ),
            (
                ["cloudformation:DescribeStacks"],
                [
                    f"arn:aws:cloudformation:{names.region}:{names.account}:stack/{stack}/*"
                    for stack in names.stacks
                ],
            ),
        ]
        bucket = storage.artifacts
        run_jobs = [
            (["s3:GetObject", "s3:PutObject"], [bucket.arn_for_objects("*")]),
            (["s3:ListBucket"], [bucket.bucket_arn]),
            (
                ["codebuild:StartBuild", "codebuild:BatchGetBuilds"],
                [project.project_arn for project in images.projects.values()],
            ),
            (
                ["ecr:DescribeImages", "ecr:ListImages"],
                [repository.repository_arn for repository in images.repositories.values()],
            ),
        ]
        repair_nodes = [
            (
                ["sagemaker:BatchRebootClusterNodes", "sagemaker:BatchReplaceClusterNodes"],
                [hyperpod.cluster.attr_cluster_arn],
            ),
        ]
        for role, statements in (
            (admin, see_clusters + run_jobs + repair_nodes),
            (researcher, see_clusters + run_jobs),
        ):
            for actions, resources in statements:
                role.add_to_policy(iam.PolicyStatement(actions=actions, resources=resources))
        self.emit(admin_role_arn=admin.role_arn, researcher_role_arn=researcher.role_arn)

    def _role(self, who: str, principal_arns: tuple[str, ...]) -> iam.Role:
        trusted: iam.IPrincipal = iam.AccountPrincipal(self.names.account)
        if principal_arns:
            trusted = iam.CompositePrincipal(*(iam.ArnPrincipal(arn) for arn in principal_arns))
        return iam.Role(self, who.capitalize(), role_name=self.names.role(who), assumed_by=trusted)
