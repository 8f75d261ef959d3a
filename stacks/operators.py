"""What workloads need on the nodes: KubeRay, the Lustre driver, the namespace and its shared volume."""

from aws_cdk import aws_iam as iam
from constructs import Construct

from stacks.base import SkypodStack
from stacks.charts import chart
from stacks.cluster_access import pod_identity, pod_role
from stacks.eks import EksStack, addon
from stacks.environment import Environment
from stacks.hyperpod import HyperPodStack
from stacks.lustre import LustreStack
from stacks.manifests import storage as storage_manifests
from stacks.names import (
    ADAPTERS_PREFIX,
    RUNS_PREFIX,
    SERVING_SERVICE_ACCOUNT,
    TRAINING_SERVICE_ACCOUNT,
    Names,
)
from stacks.objects import kube_objects
from stacks.storage import StorageStack

_LUSTRE_DRIVER_ACCOUNT = "fsx-csi-controller-sa"


class OperatorsStack(SkypodStack):
    """Deployed once nodes are there and destroyed while they still are: cleaning up needs the operators."""

    part = "operators"
    summary = "KubeRay, the Lustre driver, and the namespace with its shared volume and network policies"

    def __init__(
        self,
        scope: Construct,
        environment: Environment,
        names: Names,
        *,
        eks_stack: EksStack,
        hyperpod: HyperPodStack,
        storage: StorageStack,
        lustre: LustreStack,
    ):
        super().__init__(scope, environment, names)
        self.add_stack_dependency(hyperpod)
        self._lustre_driver(eks_stack)
        manifests = storage_manifests.build(
            namespace=environment.namespace,
            file_system_id=lustre.file_system.ref,
            file_system_dns=lustre.file_system.attr_dns_name,
            file_system_mount_name=lustre.file_system.attr_lustre_mount_name,
            capacity_gib=environment.storage.lustre_capacity_gib,
            service_accounts=(TRAINING_SERVICE_ACCOUNT, SERVING_SERVICE_ACCOUNT),
            ray_endpoints=environment.domain is not None,
        )
        if environment.governance.enabled:
            # The team's quota makes the namespace, and would make it again while it is being deleted.
            manifests = [manifest for manifest in manifests if manifest["kind"] != "Namespace"]
        objects = kube_objects(self, "Namespace", eks_stack.objects, manifests)
        kuberay = chart(
            self,
            "KubeRay",
            eks_stack.charts,
            release="kuberay-operator",
            namespace="kuberay-operator",
            source=environment.charts.kuberay_repository,
            chart_path="kuberay-operator",
            version=environment.charts.kuberay_version,
            values={},
        )
        # On destroy the namespace goes first, while the operator can still clean up after Ray clusters in it.
        objects.node.add_dependency(kuberay)
        bucket = storage.artifacts
        pod_identity(
            self,
            "Training",
            cluster=eks_stack.cluster,
            service_account=TRAINING_SERVICE_ACCOUNT,
            description="Pods of training Ray clusters",
            statements=(
                iam.PolicyStatement(
                    actions=["s3:GetObject", "s3:PutObject"],
                    resources=[
                        bucket.arn_for_objects(f"{p}/*") for p in (ADAPTERS_PREFIX, RUNS_PREFIX, "scratch")
                    ],
                ),
                iam.PolicyStatement(actions=["s3:ListBucket"], resources=[bucket.bucket_arn]),
            ),
        )
        self.emit(training_service_account=TRAINING_SERVICE_ACCOUNT)

    def _lustre_driver(self, eks_stack: EksStack) -> None:
        role = pod_role(
            self,
            "LustreDriverRole",
            cluster_arn=eks_stack.cluster.attr_arn,
            description="The Lustre driver, which mounts volumes and creates none",
        )
        role.add_to_policy(iam.PolicyStatement(actions=["fsx:DescribeFileSystems"], resources=["*"]))
        addon(
            self,
            "LustreDriver",
            "aws-fsx-csi-driver",
            eks_stack.cluster,
            roles={_LUSTRE_DRIVER_ACCOUNT: role},
        )
