"""The supervisor of one run: a Kubernetes Job beside the Ray cluster, with nothing that it does not need."""

from typing import Any

from stacks.environment import Environment
from stacks.manifests.pods import (
    GROUP_LABEL,
    HEALTH_LABEL,
    MANAGED_BY,
    SHARED_CLAIM,
    SHARED_PATH,
    UNPRIVILEGED,
    base_env,
)
from stacks.manifests.storage import service_account
from stacks.outputs import Outputs

NAME = "skypod-supervisor"
"""Of its service account and of the network policy that lets it in at Ray's dashboard."""
COMPONENT = {"app.kubernetes.io/component": "supervisor"}
RUN_LABEL = "skypod/run"
RECIPE_KEY = "recipe.toml"
DASHBOARD_PORT = 8265
_RECIPE_PATH = "/etc/skypod"
_TOKEN_PATH = "/var/run/secrets/ray"  # noqa: S105 - a folder, not a token
# A person has to correct something, or to decide; and what another supervisor has is not this one's any more.
FINAL_EXITS = [2, 10]
NOT_COUNTED_EXITS = [5]
_RESTARTS = 50


def job_name(run: str) -> str:
    """The name of the run's Job and of its ConfigMap."""
    return f"train-{run}"


def build(
    environment: Environment,
    outputs: Outputs,
    *,
    image: str,
    run: str,
    recipe: str,
    cluster: str = "skypod",
    entrypoint: str = "python -m training.run",
    resume: str = "",
    usd_per_hour: float | None = None,
) -> list[dict[str, Any]]:
    """Service account, network policy, ConfigMap with the recipe (TOML text) and the Job, in order.

    `run` is a name of at most 57 small letters, digits and hyphens; `cluster` names the RayCluster, whose
    token is mounted as a file; the other parameters are those of `python -m training.supervisor`.
    """
    namespace = outputs.namespace
    labels = {**MANAGED_BY, **COMPONENT, RUN_LABEL: run}
    named = {"name": job_name(run), "namespace": namespace, "labels": labels}
    dashboard = f"http://{cluster}-head-svc.{namespace}.svc:{DASHBOARD_PORT}"
    arguments = ["--recipe", f"{_RECIPE_PATH}/{RECIPE_KEY}", "--dashboard", dashboard]
    arguments += ["--token-file", f"{_TOKEN_PATH}/auth_token", "--image", image, "--entrypoint", entrypoint]
    if resume:
        arguments += ["--resume", resume]
    if usd_per_hour is not None:
        arguments += ["--usd-per-hour", f"{usd_per_hour:.4f}"]
    return [
        service_account(namespace, NAME),
        _may_ask_ray(namespace),
        {"apiVersion": "v1", "kind": "ConfigMap", "metadata": named, "data": {RECIPE_KEY: recipe}},
        {
            "apiVersion": "batch/v1",
            "kind": "Job",
            "metadata": named,
            "spec": {
                "backoffLimit": _RESTARTS,
                "podFailurePolicy": {
                    "rules": [
                        _rule("FailJob", FINAL_EXITS),
                        _rule("Ignore", NOT_COUNTED_EXITS),
                        {
                            "action": "Ignore",
                            "onPodConditions": [{"type": "DisruptionTarget", "status": "True"}],
                        },
                    ]
                },
                "template": {
                    "metadata": {"labels": labels},
                    "spec": _pod(
                        outputs, image, cluster, named["name"], f"{SHARED_PATH}/runs/{run}", arguments
                    ),
                },
            },
        },
    ]


def _rule(action: str, codes: list[int]) -> dict[str, Any]:
    return {
        "action": action,
        "onExitCodes": {"containerName": "supervisor", "operator": "In", "values": codes},
    }


def _pod(
    outputs: Outputs, image: str, cluster: str, config_map: str, run_dir: str, arguments: list[str]
) -> dict[str, Any]:
    """It has no Kubernetes token and no rights in AWS, and joins no queue: it outlives what is preempted."""
    quantity = {"cpu": "500m", "memory": "2Gi"}
    return {
        "serviceAccountName": NAME,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "restartPolicy": "Never",
        "nodeSelector": {HEALTH_LABEL: "Schedulable"},
        "affinity": {
            "nodeAffinity": {
                # Not to go down with the head; HyperPod replaces other nodes, and the Job the pod on them.
                "preferredDuringSchedulingIgnoredDuringExecution": [
                    {
                        "weight": 100,
                        "preference": {
                            "matchExpressions": [
                                {"key": GROUP_LABEL, "operator": "NotIn", "values": ["head"]}
                            ]
                        },
                    }
                ]
            }
        },
        "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
        "containers": [
            {
                "name": "supervisor",
                "image": image,
                "imagePullPolicy": "IfNotPresent",
                "command": ["python", "-m", "training.supervisor", run_dir],
                "args": arguments,
                "env": [
                    {"name": name, "value": value} for name, value in sorted(base_env(outputs.region).items())
                ],
                "resources": {"requests": dict(quantity), "limits": dict(quantity)},
                "securityContext": dict(UNPRIVILEGED),
                "volumeMounts": [
                    {"name": "shared", "mountPath": SHARED_PATH},
                    {"name": "recipe", "mountPath": _RECIPE_PATH, "readOnly": True},
                    {"name": "ray-token", "mountPath": _TOKEN_PATH, "readOnly": True},
                ],
            }
        ],
        "volumes": [
            {"name": "shared", "persistentVolumeClaim": {"claimName": SHARED_CLAIM}},
            {"name": "recipe", "configMap": {"name": config_map}},
            {
                "name": "ray-token",
                "secret": {
                    "secretName": cluster,
                    "items": [{"key": "auth_token", "path": "auth_token"}],
                    "defaultMode": 0o400,
                },
            },
        ],
    }


def _may_ask_ray(namespace: str) -> dict[str, Any]:
    """Only the dashboard's port; the namespace's own policies keep everybody else away from it."""
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": NAME, "namespace": namespace, "labels": {**MANAGED_BY, **COMPONENT}},
        "spec": {
            "podSelector": {"matchLabels": {"ray.io/node-type": "head"}},
            "policyTypes": ["Ingress"],
            "ingress": [
                {
                    "from": [{"podSelector": {"matchLabels": COMPONENT}}],
                    "ports": [{"protocol": "TCP", "port": DASHBOARD_PORT}],
                }
            ],
        },
    }
