"""The alarm on GPU nodes that run while no pod uses them. It needs neither Prometheus nor the collector."""

import aws_cdk as cdk
from aws_cdk import aws_cloudwatch as cloudwatch
from aws_cdk import aws_eks as eks
from aws_cdk import aws_events as events
from aws_cdk import aws_events_targets as targets
from aws_cdk import aws_iam as iam

from stacks.base import SkypodStack
from stacks.cluster_access import access_policy
from stacks.eks import EksStack
from stacks.hyperpod import HyperPodStack

NAMESPACE = "Skypod"
_LOOK_EVERY_MINUTES = 15


def idle_alarm(stack: SkypodStack, *, eks_stack: EksStack, hyperpod: HyperPodStack) -> cloudwatch.Alarm:
    """A function counts idle GPU nodes; the alarm rings when one has been idle for the settings' hours.

    A Ray cluster that holds its GPUs and computes nothing is not idle here; the alert GpusIdle sees that.
    """
    names, hours = stack.names, stack.settings.guardrails.idle_after_hours
    function = stack.handler("idle_watch", timeout_s=60, reach=eks_stack.reach)
    for allowed in (
        iam.PolicyStatement(actions=["eks:DescribeCluster"], resources=[names.eks_cluster_arn]),
        iam.PolicyStatement(
            actions=["sagemaker:ListClusterNodes"], resources=[hyperpod.cluster.attr_cluster_arn]
        ),
        # CloudWatch knows no resources for this action; the condition is the narrower form.
        iam.PolicyStatement(
            actions=["cloudwatch:PutMetricData"],
            resources=["*"],
            conditions={"StringEquals": {"cloudwatch:namespace": NAMESPACE}},
        ),
    ):
        function.add_to_role_policy(allowed)
    eks.CfnAccessEntry(
        stack,
        "IdleWatchEntry",
        cluster_name=eks_stack.cluster.ref,
        principal_arn=function.role.role_arn,
        # Reads pods of all namespaces, and no secret in any.
        access_policies=[access_policy("AmazonEKSViewPolicy")],
    )
    gpu_groups = [name for name, group in stack.settings.hyperpod.groups.items() if group.gpus]
    cluster = {"HyperPodCluster": names.cluster, "EksCluster": names.cluster, "GpuGroups": gpu_groups}
    events.Rule(
        stack,
        "IdleLook",
        description="Counts GPU nodes that nothing runs on",
        schedule=events.Schedule.rate(cdk.Duration.minutes(_LOOK_EVERY_MINUTES)),
        targets=[targets.LambdaFunction(function, event=events.RuleTargetInput.from_object(cluster))],
    )
    return cloudwatch.Alarm(
        stack,
        "IdleGpuNodes",
        alarm_name=names.idle_alarm,
        alarm_description=(
            f"GPU nodes of {names.cluster} have run for {hours} h without a pod that uses them. Take them "
            "down: cdk destroy, or hyperpod.gpu.count in the settings file"
        ),
        metric=cloudwatch.Metric(
            namespace=NAMESPACE,
            metric_name="IdleGpuNodes",
            dimensions_map={"Cluster": names.cluster},
            statistic="Minimum",
            period=cdk.Duration.hours(1),
        ),
        comparison_operator=cloudwatch.ComparisonOperator.GREATER_THAN_OR_EQUAL_TO_THRESHOLD,
        threshold=1,
        evaluation_periods=hours,
    )
