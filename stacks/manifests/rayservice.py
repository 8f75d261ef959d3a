"""The RayService that serves the base model and promoted adapters through an OpenAI-compatible API."""

import json
from collections.abc import Callable
from dataclasses import asdict, dataclass
from typing import Any

from stacks.environment import Environment
from stacks.manifests.pods import (
    MANAGED_BY,
    SHARED_PATH,
    UNPRIVILEGED,
    base_env,
    head_group,
    ray_pod,
    worker_group,
)
from stacks.names import SERVING_SERVICE_ACCOUNT
from stacks.outputs import cloudformation_name
from stacks.queues import queue_labels
from stacks.workloads import Serving

NAME = "skypod-serve"
ADAPTER_ANNOTATION = "skypod/adapter"
LORA_RANKS = (1, 8, 16, 32, 64, 128, 256, 320, 512)
"""What vLLM takes for max_lora_rank."""
_API_ACCESS = "api-access"
_API_ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


@dataclass(frozen=True, kw_only=True)
class Served:
    """What a RayService serves: the parameters of the stack `serving`.

    `adapter` was promoted last and ends with its digest's digits; `base` is a path on the shared file system,
    `model_id` its name for clients; `image` is named by its digest; `max_model_len` is in tokens.
    """

    adapter: str
    base: str
    model_id: str
    image: str
    max_lora_rank: int
    max_model_len: int

    def parameters(self) -> dict[str, str]:
        """By the names that they have in the stack."""
        return {cloudformation_name(field): str(value) for field, value in asdict(self).items()}


def _json(value: Any) -> str:
    return json.dumps(value, separators=(",", ":"))


def build(
    environment: Environment,
    served: Served,
    *,
    region: str,
    adapters_uri: str,
    to_text: Callable[[Any], str] = _json,
) -> dict[str, Any]:
    """The RayService object (ray.io/v1).

    Requests name `model_id` for the base and `model_id:<adapter>` for an adapter, which Ray Serve fetches
    from `<adapters_uri>/<adapter>/` on first use. The service's address is `<NAME>-serve-svc:8000` inside the
    cluster only. `to_text` writes JSON; a stack's own also writes what only a deploy knows.
    """
    serving = environment.serving
    env = base_env(region)
    queue = queue_labels(environment, "serving")
    application = {
        "applications": [
            {
                "name": "openai",
                "route_prefix": "/",
                "import_path": "ray.serve.llm:build_openai_app",
                "args": {
                    "llm_configs": [
                        {
                            "model_loading_config": {
                                "model_id": served.model_id,
                                "model_source": f"{SHARED_PATH}/{served.base}",
                            },
                            "lora_config": {
                                "dynamic_lora_loading_path": adapters_uri.rstrip("/"),
                                "max_num_adapters_per_replica": serving.max_adapters,
                            },
                            "engine_kwargs": {
                                "enable_lora": True,
                                "max_lora_rank": served.max_lora_rank,
                                "max_model_len": served.max_model_len,
                                "tensor_parallel_size": serving.gpus_per_replica,
                            },
                            "deployment_config": {
                                **_replicas(serving),
                                # What a replica that goes has accepted gets its answer, however long it is.
                                "graceful_shutdown_timeout_s": 300,
                            },
                            "runtime_env": {"env_vars": {"AWS_REGION": region}},
                        }
                    ]
                },
            }
        ]
    }
    service: dict[str, Any] = {
        "apiVersion": "ray.io/v1",
        "kind": "RayService",
        "metadata": {
            "name": NAME,
            "namespace": environment.namespace,
            "labels": MANAGED_BY | queue,
            "annotations": {ADAPTER_ANNOTATION: served.adapter},
        },
        "spec": {
            "serveConfigV2": to_text(application),
            "rayClusterConfig": {
                "rayVersion": environment.serving.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": head_group(
                    environment,
                    image=served.image,
                    resources=environment.serving.head,
                    service_account=SERVING_SERVICE_ACCOUNT,
                    env=env,
                    ports={"serve": 8000},
                    labels=queue,
                ),
                "workerGroupSpecs": [
                    worker_group(
                        "replica",
                        serving.min_replicas,
                        ray_pod(
                            "replica",
                            image=served.image,
                            environment=environment,
                            group=environment.hyperpod.replica_group,
                            resources=environment.serving.replica,
                            gpus=serving.gpus_per_replica,
                            service_account=SERVING_SERVICE_ACCOUNT,
                            env=env,
                            ports={"serve": 8000, "metrics": 8080},
                            labels=queue,
                        ),
                        most=serving.max_replicas,
                    )
                ],
            },
        },
    }
    if serving.scales:
        _let_scale(service["spec"]["rayClusterConfig"])
    return service


def _replicas(serving: Serving) -> dict[str, Any]:
    if not serving.scales:
        return {"num_replicas": serving.min_replicas}
    return {
        "autoscaling_config": {
            "min_replicas": serving.min_replicas,
            "max_replicas": serving.max_replicas,
            "target_ongoing_requests": serving.requests_per_replica,
        }
    }


def _let_scale(cluster: dict[str, Any]) -> None:
    """Add Ray's autoscaler, which adds and removes worker pods.

    KubeRay gives the head's service account the right to. Its token goes into the autoscaler's container
    alone: the one beside it, which runs what others send, has none.
    """
    cluster["enableInTreeAutoscaling"] = True
    cluster["autoscalerOptions"] = {
        "resources": {kind: {"cpu": "500m", "memory": "1Gi"} for kind in ("requests", "limits")},
        "securityContext": dict(UNPRIVILEGED),
        "volumeMounts": [{"name": _API_ACCESS, "mountPath": _API_ACCESS_PATH, "readOnly": True}],
    }
    cluster["headGroupSpec"]["template"]["spec"]["volumes"].append(
        {
            "name": _API_ACCESS,
            "projected": {
                "sources": [
                    {"serviceAccountToken": {"path": "token", "expirationSeconds": 3600}},
                    {
                        "configMap": {
                            "name": "kube-root-ca.crt",
                            "items": [{"key": "ca.crt", "path": "ca.crt"}],
                        }
                    },
                    {
                        "downwardAPI": {
                            "items": [{"path": "namespace", "fieldRef": {"fieldPath": "metadata.namespace"}}]
                        }
                    },
                ]
            },
        }
    )
