"""The RayService that serves base and adapter: apply, wait until Kubernetes calls it ready, delete."""

import time
from collections.abc import Callable
from typing import Any

from kubernetes import client
from kubernetes.dynamic import DynamicClient
from kubernetes.dynamic.exceptions import NotFoundError

from training.errors import SubstrateError

FIELD_MANAGER = "skypod"


def up(
    api: client.ApiClient,
    manifest: dict[str, Any],
    *,
    timeout_s: float,
    on_event: Callable[[str], None] = lambda text: None,
) -> str:
    """Apply the RayService and wait; returns the base URL of its API inside the cluster's network.

    Raises SubstrateError with the object's own account when it is not ready in time.
    """
    services = DynamicClient(api).resources.get(api_version=manifest["apiVersion"], kind="RayService")
    name, namespace = manifest["metadata"]["name"], manifest["metadata"]["namespace"]
    services.server_side_apply(body=manifest, name=name, namespace=namespace, field_manager=FIELD_MANAGER)
    deadline = time.monotonic() + timeout_s
    said = ""
    while time.monotonic() < deadline:
        status = services.get(name=name, namespace=namespace).to_dict().get("status") or {}
        conditions = {c["type"]: c for c in status.get("conditions") or []}
        if conditions.get("Ready", {}).get("status") == "True":
            return _address(api, name, namespace)
        said = "; ".join(f"{c['reason']}: {c.get('message', '')}" for c in conditions.values()) or "pending"
        on_event(said)
        time.sleep(0.5)
    raise SubstrateError(
        f"RayService {name} is not ready after {timeout_s:g} s ({said})",
        f"kubectl -n {namespace} describe rayservice {name}",
    )


def _address(api: client.ApiClient, name: str, namespace: str) -> str:
    service = client.CoreV1Api(api).read_namespaced_service(f"{name}-serve-svc", namespace)
    port = next(p.port for p in service.spec.ports if p.name == "serve")
    host = service.spec.cluster_ip
    if host in (None, "", "None"):
        host = f"{name}-serve-svc.{namespace}.svc"
    return f"http://{host}:{port}"


def down(api: client.ApiClient, namespace: str, name: str, *, timeout_s: float) -> None:
    """Delete the RayService and wait until it is gone; one that is gone already is no error."""
    services = DynamicClient(api).resources.get(api_version="ray.io/v1", kind="RayService")
    deadline = time.monotonic() + timeout_s
    try:
        services.delete(name=name, namespace=namespace, propagation_policy="Foreground")
        while time.monotonic() < deadline:
            services.get(name=name, namespace=namespace)
            time.sleep(0.2)
    except NotFoundError:
        return
    raise SubstrateError(
        f"RayService {name} still exists after {timeout_s:g} s", f"kubectl -n {namespace} get pods"
    )
