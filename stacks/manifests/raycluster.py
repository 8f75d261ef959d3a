"""The training RayCluster: a head without GPUs and equal GPU workers, all on the shared file system."""

from typing import Any

from stacks.environment import Environment
from stacks.manifests.pods import MANAGED_BY, base_env, head_group, ray_pod, require_pinned, worker_group
from stacks.outputs import Outputs
from stacks.queues import queue_labels
from training.errors import ConfigError
from training.recipe import Topology

ENDPOINT_ANNOTATION = "access.sagemaker.amazonaws.com/enabled"
"""Asks the Ray endpoint operator for a link that only whoever made the cluster can open."""

# NCCL must not pick the interfaces of pods' own bridges.
_WORKER_ENV = {"NCCL_SOCKET_IFNAME": "^docker,lo,veth"}


def build(
    environment: Environment,
    outputs: Outputs,
    *,
    image: str,
    name: str = "skypod",
    topology: Topology | None = None,
) -> dict[str, Any]:
    """The RayCluster object (ray.io/v1).

    `topology` defaults to the environment's whole GPU group. The head runs the driver, the dashboard and the
    job server. Token authentication is on; KubeRay makes the token a Secret named like the cluster. Raises
    ConfigError when the topology needs more than the environment has, or the image has no digest.
    """
    gpu_group = environment.hyperpod.gpu
    topology = topology or Topology(worker_nodes=gpu_group.count, gpus_per_node=gpu_group.gpus)
    require_room(environment, topology)
    require_pinned(image)
    env = base_env(outputs.region)
    queue = queue_labels(environment, "training")
    return {
        "apiVersion": "ray.io/v1",
        "kind": "RayCluster",
        "metadata": {
            "name": name,
            "namespace": outputs.namespace,
            "labels": MANAGED_BY | queue,
            **({"annotations": {ENDPOINT_ANNOTATION: "true"}} if environment.domain else {}),
        },
        "spec": {
            "rayVersion": environment.ray.version,
            "authOptions": {"mode": "token"},
            "headGroupSpec": head_group(
                environment,
                image=image,
                resources=environment.ray.head,
                service_account=outputs.training_service_account,
                env=env,
                labels=queue,
            ),
            "workerGroupSpecs": [
                worker_group(
                    "gpu",
                    topology.worker_nodes,
                    ray_pod(
                        "worker",
                        image=image,
                        environment=environment,
                        group="gpu",
                        resources=environment.ray.worker,
                        gpus=topology.gpus_per_node,
                        service_account=outputs.training_service_account,
                        env={**env, **_WORKER_ENV},
                        ports={"metrics": 8080},
                        labels=queue,
                    ),
                )
            ],
        },
    }


def require_room(environment: Environment, topology: Topology) -> None:
    """Raises ConfigError when the topology needs more nodes or GPUs than the environment has."""
    group = environment.hyperpod.gpu
    if topology.worker_nodes > group.count or topology.gpus_per_node > group.gpus:
        raise ConfigError(
            f"the recipe needs {topology.worker_nodes} workers with {topology.gpus_per_node} GPUs each, but "
            f"environment {environment.name!r} has {group.count} nodes with {group.gpus} GPUs",
            "choose a smaller topology in the recipe, or raise hyperpod.gpu in the environment",
        )
