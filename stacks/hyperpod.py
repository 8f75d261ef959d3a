"""The HyperPod cluster: the nodes that cost the money, in a stack of their own."""

import json

import aws_cdk as cdk
from aws_cdk import aws_iam as iam
from aws_cdk import aws_sagemaker as sagemaker
from constructs import Construct

from stacks import scripts
from stacks.base import SkypodStack
from stacks.charts import chart
from stacks.eks import EksStack, addon
from stacks.environment import Environment, InstanceGroup
from stacks.manifests.pods import GROUP_LABEL
from stacks.names import Names
from stacks.network import NetworkStack
from stacks.node_role import node_role
from stacks.storage import StorageStack

# The trainers of other frameworks and other chips stay out, and so does a KubeRay that some releases bring:
# two releases of it cannot share a cluster. The health agent and its checks stay in.
_DEPENDENCY_VALUES = {
    "trainingOperators": {"enabled": False},
    "mpi-operator": {"enabled": False},
    "neuron-device-plugin": {"devicePlugin": {"enabled": False}},
    "kuberay": {"enabled": False},
}
# coredns stays degraded until nodes come; nodes need the other three to join.
_ADDONS: dict[str, dict[str, object] | None] = {
    "vpc-cni": {"enableNetworkPolicy": "true"},
    "kube-proxy": None,
    "coredns": None,
    "eks-pod-identity-agent": None,
}


class HyperPodStack(SkypodStack):
    """No capacity means that this stack fails and rolls back, and that EKS stays as it is."""

    part = "hyperpod"
    summary = "HyperPod nodes on EKS with what they need to join, and the wait until they have"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        network: NetworkStack,
        storage: StorageStack,
        eks: EksStack,
    ):
        super().__init__(scope, environment, names)
        groups = environment.hyperpod.groups
        # Health agent and device plugins must be there before the nodes, or these never become healthy.
        dependencies = chart(
            self,
            "NodeDependencies",
            eks.charts,
            release="dependencies",
            namespace="kube-system",
            source=environment.charts.hyperpod_repository,
            chart_path="helm_chart/HyperPodHelmChart",
            version=environment.charts.hyperpod_revision,
            values={**_DEPENDENCY_VALUES, "health-monitoring-agent": {"region": names.region}},
        )
        # Here, where they are made beside the chart, and not in the stack that the chart waits for.
        addons = [
            addon(self, f"Addon-{name}", name, eks.cluster, values=values) for name, values in _ADDONS.items()
        ]
        role = node_role(self, network=network, lifecycle_bucket=storage.lifecycle)
        cluster = sagemaker.CfnCluster
        self.cluster = cluster(
            self,
            "Cluster",
            cluster_name=names.cluster,
            node_recovery="Automatic",
            # Capacity is sought in the background; NodesJoined below is what fails when there is none.
            node_provisioning_mode="Continuous",
            orchestrator=cluster.OrchestratorProperty(
                eks=cluster.ClusterOrchestratorEksConfigProperty(cluster_arn=eks.cluster.attr_arn)
            ),
            vpc_config=cluster.VpcConfigProperty(
                subnets=[network.node_subnet.subnet_id],
                security_group_ids=[
                    network.cluster_group.security_group_id,
                    network.egress_group.security_group_id,
                ],
            ),
            instance_groups=[
                self._group(name, group, role, f"s3://{storage.lifecycle.bucket_name}/{scripts.PREFIX}")
                for name, group in groups.items()
            ],
        )
        self.cluster.node.add_dependency(dependencies, role, *addons)
        self._wait_for_nodes(groups)
        self.emit(hyperpod_cluster_name=names.cluster, hyperpod_cluster_arn=self.cluster.attr_cluster_arn)

    def _group(
        self, name: str, group: InstanceGroup, role: iam.Role, scripts_uri: str
    ) -> sagemaker.CfnCluster.ClusterInstanceGroupProperty:
        cluster = sagemaker.CfnCluster
        return cluster.ClusterInstanceGroupProperty(
            instance_group_name=name,
            instance_type=group.instance_type,
            instance_count=group.count,
            execution_role=role.role_arn,
            # 1 would hide half of the CPUs from pods.
            threads_per_core=2,
            life_cycle_config=cluster.ClusterLifeCycleConfigProperty(
                on_create="on_create.sh", source_s3_uri=scripts_uri
            ),
            instance_storage_configs=[
                cluster.ClusterInstanceStorageConfigProperty(
                    ebs_volume_config=cluster.ClusterEbsVolumeConfigProperty(
                        volume_size_in_gb=group.extra_volume_gib
                    )
                )
            ],
            # AWS tests GPU nodes only.
            on_start_deep_health_checks=(
                list(self.settings.hyperpod.deep_health_checks) or None if group.gpus else None
            ),
            kubernetes_config=cluster.ClusterKubernetesConfigProperty(labels={GROUP_LABEL: name}),
        )

    def _wait_for_nodes(self, groups: dict[str, InstanceGroup]) -> None:
        function = self.handler("node_wait", timeout_s=840)
        function.add_to_role_policy(
            iam.PolicyStatement(
                actions=["sagemaker:DescribeCluster", "sagemaker:ListClusterNodes"],
                resources=[self.cluster.attr_cluster_arn],
            )
        )
        # It hands a long wait on to itself; the name is a pattern because a role cannot refer to its user.
        function.add_to_role_policy(
            iam.PolicyStatement(
                actions=["lambda:InvokeFunction"],
                resources=[
                    f"arn:aws:lambda:{self.names.region}:{self.names.account}:function:{self.stack_name}-NodeWait*"
                ],
            )
        )
        timeout_s = self.settings.hyperpod.wait_for_nodes_s
        joined = cdk.CustomResource(
            self,
            "NodesJoined",
            service_token=function.function_arn,
            resource_type="Custom::NodesJoined",
            # One hour is the longest that CloudFormation waits, and the answer must come before it gives up.
            service_timeout=cdk.Duration.hours(1),
            properties={
                "ClusterName": self.names.cluster,
                "Groups": json.dumps({name: group.count for name, group in groups.items()}),
                "TimeoutSeconds": str(timeout_s),
            },
        )
        joined.node.add_dependency(self.cluster)
