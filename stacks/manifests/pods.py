"""Pieces that the Ray head, the workers and the serving replicas share."""

import re
from typing import Any

from stacks.environment import Environment
from stacks.workloads import PodResources
from training.errors import ConfigError

SHARED_CLAIM = "shared"
SHARED_PATH = "/shared"
MANAGED_BY = {"app.kubernetes.io/managed-by": "skypod"}
UNPRIVILEGED = {"allowPrivilegeEscalation": False, "capabilities": {"drop": ["ALL"]}}

PINNED = r"[a-z0-9][a-z0-9._/:-]*@sha256:[0-9a-f]{64}"
_HEAD_PORTS = {"gcs-server": 6379, "dashboard": 8265, "client": 10001, "metrics": 8080}
HEALTH_LABEL = "sagemaker.amazonaws.com/node-health-status"
GROUP_LABEL = "skypod/group"
"""What HyperPod labels the nodes of an instance group with: two groups may be of one instance type."""


def require_pinned(image: str) -> None:
    """ConfigError for an image that is not named by its digest: a tag says neither what ran nor what runs
    next."""
    if not re.fullmatch(PINNED, image):
        raise ConfigError(
            f"image {image!r} is not named by its digest",
            "name it as `skypod images` does: <repository>@sha256:...",
        )


def ray_pod(
    role: str,
    *,
    image: str,
    environment: Environment,
    group: str,
    resources: PodResources,
    gpus: int,
    service_account: str,
    env: dict[str, str],
    ports: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """A pod template for one Ray container on the nodes of the instance group named `group`.

    Requests equal limits, because KubeRay passes the limits on to `ray start`. `gpus` are whole GPUs.
    """
    quantity = {"cpu": str(resources.cpus), "memory": f"{resources.memory_gib}Gi"}
    if gpus:
        quantity["nvidia.com/gpu"] = str(gpus)
    container: dict[str, Any] = {
        "name": f"ray-{role}",
        "image": image,
        "imagePullPolicy": "IfNotPresent",
        "env": [{"name": name, "value": value} for name, value in sorted(env.items())],
        "resources": {"requests": dict(quantity), "limits": dict(quantity)},
        # The shared file system belongs to root, so the container does too, but with nothing else of root's.
        "securityContext": dict(UNPRIVILEGED),
        "volumeMounts": [
            {"name": "shared", "mountPath": SHARED_PATH},
            {"name": "shm", "mountPath": "/dev/shm"},  # noqa: S108
        ],
    }
    if ports:
        container["ports"] = [
            {"name": name, "containerPort": port, "protocol": "TCP"} for name, port in ports.items()
        ]
    return {
        "metadata": {"labels": {**MANAGED_BY, "app.kubernetes.io/component": role, **(labels or {})}},
        "spec": {
            "serviceAccountName": service_account,
            "automountServiceAccountToken": False,
            "nodeSelector": {
                "node.kubernetes.io/instance-type": environment.hyperpod.groups[group].instance_type,
                GROUP_LABEL: group,
                HEALTH_LABEL: "Schedulable",
            },
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [container],
            "volumes": [
                {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
                {
                    "name": "shm",
                    "emptyDir": {"medium": "Memory", "sizeLimit": f"{resources.shared_memory_gib}Gi"},
                },
            ],
        },
    }


def base_env(region: str) -> dict[str, str]:
    """What every container of ours finds in its environment."""
    return {
        "AWS_REGION": region,
        "HF_HOME": f"{SHARED_PATH}/huggingface",
        "SKYPOD_SHARED": SHARED_PATH,
    }


def head_group(
    environment: Environment,
    *,
    image: str,
    resources: PodResources,
    service_account: str,
    env: dict[str, str],
    ports: dict[str, int] | None = None,
    labels: dict[str, str] | None = None,
) -> dict[str, Any]:
    """The head of a Ray cluster; `ports` are those beside Ray's own.

    It announces no CPUs, so that no actor lands there.
    """
    return {
        "rayStartParams": {"dashboard-host": "0.0.0.0", "num-cpus": "0"},  # noqa: S104
        "template": ray_pod(
            "head",
            image=image,
            environment=environment,
            group="head",
            resources=resources,
            gpus=0,
            service_account=service_account,
            env=env,
            ports={**_HEAD_PORTS, **(ports or {})},
            labels=labels,
        ),
    }


def worker_group(name: str, count: int, template: dict[str, Any], most: int | None = None) -> dict[str, Any]:
    """`count` equal workers, neither more nor less; with `most`, as many as are asked for between the two."""
    return {
        "groupName": name,
        "replicas": count,
        "minReplicas": count,
        "maxReplicas": most or count,
        "rayStartParams": {},
        "template": template,
    }
