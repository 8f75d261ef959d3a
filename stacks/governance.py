"""Task governance: Kueue as AWS's add-on, priorities, and a quota of the cluster for each team."""

import json
from collections import Counter

import aws_cdk as cdk
from aws_cdk import aws_eks as eks
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks.base import SkypodStack
from stacks.cluster_access import access_policy
from stacks.eks import EksStack
from stacks.environment import Environment
from stacks.hyperpod import HyperPodStack
from stacks.names import Names
from stacks.optional import Team
from stacks.queues import PRIORITIES

_ADDON = "amazon-sagemaker-hyperpod-taskgovernance"
_ADDON_VERSION = "v1.6.1-eksbuild.2"
_KUEUE_NAMESPACE = "kueue-system"


class GovernanceStack(SkypodStack):
    """Quotas, then priorities, then the add-on go on destroy, all before the cluster that they keep alive."""

    part = "governance"
    summary = "Task governance: Kueue, priorities, and compute quotas of teams"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(hyperpod)
        addon = eks.CfnAddon(
            self,
            "Kueue",
            addon_name=_ADDON,
            addon_version=_ADDON_VERSION,
            cluster_name=eks_stack.cluster.ref,
            resolve_conflicts="OVERWRITE",
        )
        cluster_arn = hyperpod.cluster.attr_cluster_arn
        scheduler = sagemaker.CfnClusterSchedulerConfig
        priorities = scheduler(
            self,
            "Priorities",
            name=names.prefix,
            cluster_arn=cluster_arn,
            description="Priorities of tasks, and sharing between teams",
            scheduler_config=scheduler.SchedulerConfigProperty(
                priority_classes=[
                    scheduler.PriorityClassProperty(name=name, weight=weight)
                    for name, weight in PRIORITIES.items()
                ],
                fair_share="Enabled",
            ),
        )
        priorities.node.add_dependency(addon)
        reason = "the validator's table has this type in other regions only; a deploy tells, before any quota"
        cdk.Validations.of(priorities).acknowledge(
            cdk.Acknowledgment(id="CloudFormation-Validate::F3006", reason=reason)
        )
        function = self._function(eks_stack)
        for team in environment.governance.teams:
            quota = cdk.CustomResource(
                self,
                f"Quota-{team.name}",
                service_token=function.function_arn,
                resource_type="Custom::ComputeQuota",
                properties={
                    "EksCluster": names.cluster,
                    "ClusterArn": cluster_arn,
                    "Name": f"{names.prefix}-{team.name}",
                    # As text, because CloudFormation would turn every number into a string.
                    "Settings": json.dumps(self._quota(team), sort_keys=True),
                    "Tags": json.dumps(names.tags, sort_keys=True),
                },
            )
            quota.node.add_dependency(priorities, function)

    def _quota(self, team: Team) -> dict[str, object]:
        """What CreateComputeQuota and UpdateComputeQuota share."""
        counts = Counter[str]()
        for name, group in self.settings.hyperpod.groups.items():
            counts[group.instance_type] += team.nodes(name)
        shared: dict[str, object] = {"Strategy": "Lend"}
        if team.borrow_percent:
            shared = {"Strategy": "LendAndBorrow", "BorrowLimit": team.borrow_percent}
        return {
            "ComputeQuotaConfig": {
                "ComputeQuotaResources": [
                    {"InstanceType": instance_type, "Count": count}
                    for instance_type, count in counts.items()
                    if count
                ],
                "ResourceSharingConfig": shared,
                # Preemption deletes a whole Ray cluster, head and all; a team decides that for itself.
                "PreemptTeamTasks": "Never",
            },
            "ComputeQuotaTarget": {"TeamName": team.name, "FairShareWeight": team.fair_share_weight},
            "ActivationState": "Enabled",
            "Description": f"Guaranteed share of team {team.name}",
        }

    def _function(self, eks_stack: EksStack) -> cdk.aws_lambda.Function:
        function = self.handler("compute_quota", timeout_s=840, reach=eks_stack.reach)
        region, account = self.names.region, self.names.account
        function.add_to_role_policy(
            iam.PolicyStatement(actions=["eks:DescribeCluster"], resources=[self.names.eks_cluster_arn])
        )
        function.add_to_role_policy(
            iam.PolicyStatement(
                actions=[
                    "sagemaker:CreateComputeQuota",
                    "sagemaker:UpdateComputeQuota",
                    "sagemaker:DescribeComputeQuota",
                    "sagemaker:DeleteComputeQuota",
                    "sagemaker:AddTags",
                ],
                resources=[f"arn:aws:sagemaker:{region}:{account}:compute-quota/*"],
            )
        )
        eks.CfnAccessEntry(
            self,
            "QuotaEntry",
            cluster_name=eks_stack.cluster.ref,
            principal_arn=function.role.role_arn,
            access_policies=[access_policy("AmazonEKSViewPolicy", namespaces=[_KUEUE_NAMESPACE])],
        )
        return function
