"""The RayService that serves the base model and one promoted adapter through an OpenAI-compatible API."""

from typing import Any

import yaml

from stacks.environment import Environment
from stacks.manifests.pods import MANAGED_BY, UNPRIVILEGED, base_env, head_group, ray_pod, worker_group
from stacks.outputs import Outputs
from stacks.queues import queue_labels
from stacks.workloads import Serving

ADAPTER_ANNOTATION = "skypod/adapter"
ADAPTER_DIGEST_ANNOTATION = "skypod/adapter-digest"
_API_ACCESS = "api-access"
_API_ACCESS_PATH = "/var/run/secrets/kubernetes.io/serviceaccount"


def build(
    environment: Environment,
    outputs: Outputs,
    *,
    image: str,
    base_model_path: str,
    model_id: str,
    adapters_uri: str,
    adapter_name: str,
    adapter_digest: str,
    max_lora_rank: int,
    max_model_len: int,
    name: str = "skypod-serve",
) -> dict[str, Any]:
    """The RayService object (ray.io/v1).

    Requests name `model_id` for the base and `model_id:adapter_name` for the adapter, which Ray Serve fetches
    from `<adapters_uri>/<adapter_name>/` on first use. `base_model_path` is a path on the shared file system;
    `max_model_len` is in tokens. The service's address is `<name>-serve-svc:8000` inside the cluster only.
    """
    serving = environment.serving
    env = base_env(outputs.region)
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
                                "model_id": model_id,
                                "model_source": base_model_path,
                            },
                            "lora_config": {
                                "dynamic_lora_loading_path": adapters_uri.rstrip("/"),
                                "max_num_adapters_per_replica": serving.max_adapters,
                            },
                            "engine_kwargs": {
                                "enable_lora": True,
                                "max_lora_rank": max_lora_rank,
                                "max_model_len": max_model_len,
                                "tensor_parallel_size": serving.gpus_per_replica,
                            },
                            "deployment_config": {
                                **_replicas(serving),
                                # What a replica that goes has accepted gets its answer, however long it is.
                                "graceful_shutdown_timeout_s": 300,
                            },
                            "runtime_env": {"env_vars": {"AWS_REGION": outputs.region}},
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
            "name": name,
            "namespace": outputs.namespace,
            "labels": MANAGED_BY | queue,
            "annotations": {
                ADAPTER_ANNOTATION: adapter_name,
                ADAPTER_DIGEST_ANNOTATION: adapter_digest,
            },
        },
        "spec": {
            "serveConfigV2": yaml.safe_dump(application, sort_keys=False),
            "rayClusterConfig": {
                "rayVersion": environment.serving.ray_version,
                "authOptions": {"mode": "token"},
                "headGroupSpec": head_group(
                    environment,
                    image=image,
                    resources=environment.serving.head,
                    service_account=outputs.serving_service_account,
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
                            image=image,
                            environment=environment,
                            group=environment.hyperpod.replica_group,
                            resources=environment.serving.replica,
                            gpus=serving.gpus_per_replica,
                            service_account=outputs.serving_service_account,
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
