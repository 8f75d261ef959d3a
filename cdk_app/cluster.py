"""Bringing Ray clusters and services up and down through the Kubernetes API, as the calling user."""

from __future__ import annotations

import base64
import json
import tempfile
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from kubernetes import client, dynamic
from kubernetes.client.exceptions import ApiException

from training.errors import ConfigError, SubstrateError
from training.jobs import Endpoint

Object = dict[str, Any]
OnEvent = Callable[[str], None]
FIELD_MANAGER = "skypod"
_POLL_S = 0.5


def apply(api: client.ApiClient, manifests: Iterable[Object]) -> list[Object]:
    """Server-side apply of objects in their order; what the server made of them.

    Raises ConfigError when the server refuses a manifest, SubstrateError for other failures.
    """
    dynamic_client = _dynamic(api)
    applied = []
    for manifest in manifests:
        metadata = manifest["metadata"]
        try:
            resource = dynamic_client.resources.get(api_version=manifest["apiVersion"], kind=manifest["kind"])
            answer = dynamic_client.server_side_apply(
                resource,
                body=manifest,
                name=metadata["name"],
                namespace=metadata.get("namespace"),
                field_manager=FIELD_MANAGER,
                force_conflicts=True,
            )
        except ApiException as error:
            raise _refusal(manifest, error) from error
        except dynamic.exceptions.ResourceNotFoundError as error:
            raise SubstrateError(
                f"the cluster does not know {manifest['apiVersion']} {manifest['kind']}",
                "deploy the operators stack first: it installs the custom resources",
            ) from error
        applied.append(answer.to_dict())
    return applied


def up(
    api: client.ApiClient, manifest: Object, timeout_s: float, on_event: OnEvent = lambda _: None
) -> Object:
    """Create or update a RayCluster and wait until all of its nodes are ready; its last state.

    on_event gets a line whenever something changed. Raises SubstrateError with the pods' own words when the
    cluster fails or is not ready after `timeout_s`.
    """
    namespace, name = manifest["metadata"]["namespace"], manifest["metadata"]["name"]
    generation = apply(api, [manifest])[0]["metadata"]["generation"]
    resource = _dynamic(api).resources.get(api_version=manifest["apiVersion"], kind="RayCluster")
    told = ""
    deadline = time.monotonic() + timeout_s
    while True:
        cluster = resource.get(namespace=namespace, name=name).to_dict()
        status = cluster.get("status") or {}
        line = nodes(status)
        if line != told:
            on_event(line)
            told = line
        if status.get("state") == "ready" and status.get("observedGeneration", 0) >= generation:
            return cluster
        failed = status.get("state") == "failed"
        if failed or time.monotonic() > deadline:
            verdict = "cannot start" if failed else f"is not ready after {timeout_s:.0f} s"
            raise SubstrateError(
                f"RayCluster {namespace}/{name} {verdict}: {line}\n"
                + (status.get("reason") or _pod_words(api, namespace, f"ray.io/cluster={name}")),
                f"look at its pods: kubectl -n {namespace} describe pods -l ray.io/cluster={name}",
            )
        time.sleep(_POLL_S)


def listing(api: client.ApiClient, namespace: str) -> list[Object]:
    """All RayClusters of a namespace, by name."""
    resource = _dynamic(api).resources.get(api_version="ray.io/v1", kind="RayCluster")
    return sorted(
        resource.get(namespace=namespace).to_dict()["items"], key=lambda each: each["metadata"]["name"]
    )


def nodes(status: Object) -> str:
    """The part of a RayCluster's nodes that is there, in words."""
    ready, desired = status.get("readyWorkerReplicas", 0), status.get("desiredWorkerReplicas", "?")
    return f"{ready} of {desired} workers, head {'up' if _holds(status, 'HeadPodReady') else 'starting'}"


def down(
    api: client.ApiClient,
    namespace: str,
    name: str,
    timeout_s: float,
    on_event: OnEvent = lambda _: None,
) -> None:
    """Delete a RayCluster and wait until its pods are gone. No error if it doesn't exist."""
    resource = _dynamic(api).resources.get(api_version="ray.io/v1", kind="RayCluster")
    options = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Foreground"}
    try:
        resource.delete(namespace=namespace, name=name, body=options)
    except ApiException as error:
        if error.status != 404:
            raise
        return
    deadline = time.monotonic() + timeout_s
    left = None
    while True:
        found = _exists(resource, namespace, name)
        if not found:
            return
        pods = client.CoreV1Api(api).list_namespaced_pod(namespace)
        names = [p.metadata.name for p in pods.items if p.metadata.name.startswith(f"{name}-")]
        if len(names) != left:
            left = len(names)
            on_event(f"{left} pods left")
        if time.monotonic() > deadline:
            raise SubstrateError(
                f"RayCluster {namespace}/{name} still exists after {timeout_s:.0f} s: {', '.join(names)}",
                "see whether the KubeRay operator runs and what its finalizers wait for",
            )
        time.sleep(_POLL_S)


def dashboard(api: client.ApiClient, namespace: str, name: str) -> Endpoint:
    """The job API of a ready RayCluster at its service address.

    From outside the cluster's network the address needs `kubectl port-forward`. Raises SubstrateError when
    the cluster does not exist or has no head yet.
    """
    resource = _dynamic(api).resources.get(api_version="ray.io/v1", kind="RayCluster")
    try:
        cluster = resource.get(namespace=namespace, name=name).to_dict()
    except ApiException as error:
        if error.status != 404:
            raise
        raise SubstrateError(
            f"no RayCluster {namespace}/{name}",
            "create it with `skypod cluster up`, or name one of `skypod cluster status` with --cluster",
        ) from error
    status = cluster.get("status") or {}
    address = (status.get("head") or {}).get("serviceIP")
    port = (status.get("endpoints") or {}).get("dashboard")
    if not address or not port:
        raise SubstrateError(f"RayCluster {namespace}/{name} has no head yet", "wait until it is ready")
    options = cluster["spec"].get("authOptions") or {}
    token = ""
    if options.get("mode") != "disabled":
        secret = client.CoreV1Api(api).read_namespaced_secret(options.get("secretName") or name, namespace)
        token = base64.b64decode(secret.data["auth_token"]).decode()
    return Endpoint(f"http://{address}:{port}", token)


def service_exists(api: client.ApiClient, namespace: str, name: str) -> bool:
    """Whether there is a RayService of that name, be it ready or not."""
    return _exists(_services(api), namespace, name)


def served(
    api: client.ApiClient, namespace: str, name: str, timeout_s: float, on_event: OnEvent = lambda _: None
) -> None:
    """Wait until a RayService serves what its manifest says by now.

    Raises SubstrateError with the cause when it fails or is not ready after `timeout_s`.
    """
    resource = _services(api)
    told = ""
    deadline = time.monotonic() + timeout_s
    while True:
        service = resource.get(namespace=namespace, name=name).to_dict()
        status = service.get("status") or {}
        condition = next((c for c in status.get("conditions") or [] if c["type"] == "Ready"), {})
        line = condition.get("reason") or "waiting for the controller"
        if line != told:
            on_event(line)
            told = line
        current = status.get("observedGeneration", 0) >= service["metadata"]["generation"]
        if current and _holds(status, "Ready"):
            break
        failed = current and condition.get("reason") == "Failed"
        if failed or time.monotonic() > deadline:
            verdict = "cannot serve" if failed else f"is not ready after {timeout_s:.0f} s"
            raise SubstrateError(
                f"RayService {namespace}/{name} {verdict}: {line}\n" + (condition.get("message") or ""),
                f"look at its pods: kubectl -n {namespace} describe pods",
            )
        time.sleep(_POLL_S)


def service_url(api: client.ApiClient, namespace: str, name: str) -> str:
    """Where a RayService answers at the moment; "" while it has no address."""
    try:
        service = client.CoreV1Api(api).read_namespaced_service(f"{name}-serve-svc", namespace)
    except ApiException as error:
        if error.status == 404:
            return ""
        raise
    port = next((p.port for p in service.spec.ports if p.name == "serve"), service.spec.ports[0].port)
    return f"http://{service.spec.cluster_ip}:{port}"


def _dynamic(api: client.ApiClient) -> dynamic.DynamicClient:
    """A dynamic client whose discovery is not shared with other clusters' through the default cache file."""
    found = getattr(api, "_skypod_dynamic", None)
    if found is None:
        with tempfile.TemporaryDirectory(prefix="skypod-api-") as folder:
            found = dynamic.DynamicClient(api, cache_file=str(Path(folder) / "discovery.json"))
        api._skypod_dynamic = found
    return found


def _services(api: client.ApiClient) -> Any:
    return _dynamic(api).resources.get(api_version="ray.io/v1", kind="RayService")


def _exists(resource: Any, namespace: str, name: str) -> bool:
    try:
        resource.get(namespace=namespace, name=name)
    except ApiException as error:
        if error.status != 404:
            raise
        return False
    return True


def _holds(status: Object, condition: str) -> bool:
    return any(c["type"] == condition and c["status"] == "True" for c in status.get("conditions") or [])


def _pod_words(api: client.ApiClient, namespace: str, selector: str) -> str:
    pods = client.CoreV1Api(api).list_namespaced_pod(namespace, label_selector=selector).items
    lines = []
    for pod in pods:
        # What the scheduler lacks, for example GPUs; then what a container waits for, for example its image.
        told = [c.message for c in pod.status.conditions or [] if c.status == "False" and c.message]
        statuses = [s.state.waiting for s in pod.status.container_statuses or [] if s.state]
        told += [waiting.message or waiting.reason for waiting in statuses if waiting]
        why = pod.status.message or "; ".join(dict.fromkeys(filter(None, told)))
        lines.append(f"{pod.metadata.name}: {pod.status.phase} {why}".strip())
    return "\n".join(lines) or "it has no pods"


def _refusal(manifest: Object, error: ApiException) -> Exception:
    what = f"{manifest['kind']} {manifest['metadata']['name']}"
    try:
        message = json.loads(error.body)["message"]
    except (TypeError, KeyError, ValueError):
        message = str(error.body)
    if error.status in (400, 422):
        return ConfigError(
            f"the cluster refuses {what}: {message}", "correct the manifest that names this field"
        )
    if error.status in (401, 403):
        return SubstrateError(
            f"not allowed to apply {what}: {message}", "check the EKS access entry of your identity"
        )
    return SubstrateError(f"cannot apply {what}: {message}", "see whether the cluster is healthy")
