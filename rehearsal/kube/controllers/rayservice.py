"""The RayService controller: one vLLM server per service, replaced without a gap when the service changes."""

from __future__ import annotations

import copy
import hashlib
import json
import logging
import secrets
import time
import urllib.error
import urllib.request
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rehearsal.kube import adapters
from rehearsal.kube.access import Access, Cache
from rehearsal.kube.controllers import vllm
from rehearsal.kube.controllers.raynode import owner
from rehearsal.kube.guard import guarded
from rehearsal.kube.ports import Ports
from rehearsal.kube.store import now
from rehearsal.kube.volumes import decoded

Object = dict[str, Any]
log = logging.getLogger("kube.rayservice")
SERVICE_LABEL = "ray.io/originated-from-cr-name"
HASH_ANNOTATION = "rehearsal.skypod/content-hash"
PORT_ANNOTATION = "rehearsal.skypod/serve-port"
# The manifest's note of the adapter that it promises; the service isn't ready without it.
ADAPTER_ANNOTATION = "skypod/adapter"
LONGEST_BACKOFF_S = 60.0
HOPELESS_AFTER = 3


@dataclass
class _State:
    failures: int = 0
    retry_at: float = 0.0
    last_failure: str = ""
    look_at: float = 0.0
    plan: tuple[str, list[str]] | None = None
    asked: tuple[int, str] = (0, "")
    """The generation, and the adapter that is promised: another one changes no specification."""
    blocks: dict[str, range] = field(default_factory=dict)


class RayServices:
    """make_s3: returns an S3 client, called when a service has adapters to fetch."""

    def __init__(
        self,
        access: Access,
        services: Cache,
        pods: Cache,
        ports: Ports,
        adapters_dir: Path,
        make_s3: Callable[[], Any],
    ):
        self._access = access
        self._services = services
        self._pods = pods
        self._ports = ports
        self._adapters_dir = adapters_dir
        self._make_s3 = make_s3
        self._states: dict[str, _State] = {}

    def sync(self) -> None:
        """One pass over all RayServices."""
        services = {service["metadata"]["uid"]: service for service in self._services.all()}
        for uid in set(self._states) - set(services):
            for block in self._states.pop(uid).blocks.values():
                self._ports.release(block)
        for uid, service in services.items():
            if "deletionTimestamp" not in service["metadata"]:
                with guarded(log, f"RayService {service['metadata']['name']}"):
                    self._sync_one(service, self._states.setdefault(uid, _State()))

    def _sync_one(self, service: Object, state: _State) -> None:
        uid = service["metadata"]["uid"]
        pods = [
            pod
            for pod in self._pods.all()
            if any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences") or [])
        ]
        for name in set(state.blocks) - {pod["metadata"]["name"] for pod in pods}:
            self._ports.release(state.blocks.pop(name))
        pods = [pod for pod in pods if "deletionTimestamp" not in pod["metadata"]]
        asked = service["metadata"]["generation"], _promised(service)
        if state.asked != asked:
            state.asked, state.plan, state.failures, state.retry_at = asked, None, 0, 0.0
        try:
            application, config = vllm.llm_config(service)
            content, command = self._plan(service, state, config)
        except (vllm.ServeConfigError, adapters.AdapterError) as error:
            fatal = isinstance(error, vllm.ServeConfigError)
            self._write_status(service, "", "Failed" if fatal else "WaitForAdapters", str(error), None)
            return
        for pod in [pod for pod in pods if _phase(pod) in ("Failed", "Succeeded")]:
            state.failures += 1
            state.retry_at = time.monotonic() + min(LONGEST_BACKOFF_S, 2.0**state.failures)
            state.last_failure = (pod["status"].get("message") or "the server ended").strip()
            log.warning("server of %s died: %s", service["metadata"]["name"], state.last_failure)
            self._delete(pod)
            pods.remove(pod)
        current = next((p for p in pods if p["metadata"]["annotations"][HASH_ANNOTATION] == content), None)
        if current is None and time.monotonic() >= state.retry_at:
            current = self._start(service, state, content, command)
        if current is not None and self._serves(service, current, config):
            state.failures, state.last_failure = 0, ""
            self._point_service_at(service, current)
            for pod in pods:
                if pod is not current:
                    self._delete(pod)
            self._write_status(service, application, "NonZeroServeEndpoints", "", current)
            return
        reason = "Failed" if state.failures >= HOPELESS_AFTER else "Initializing"
        self._write_status(service, application, reason, state.last_failure, None)

    def _plan(self, service: Object, state: _State, config: Object) -> tuple[str, list[str]]:
        """(content hash, command with port 0) for the service as it is now; fetches adapters, once."""
        if state.plan is not None:
            return state.plan
        if time.monotonic() < state.look_at:
            raise adapters.AdapterError(state.last_failure)
        found: list[adapters.LocalAdapter] = []
        uri = (config.get("lora_config") or {}).get("dynamic_lora_loading_path")
        promised = _promised(service)
        try:
            if uri:
                self._adapters_dir.mkdir(parents=True, exist_ok=True)
                found = adapters.fetch(self._make_s3(), uri, self._adapters_dir)
            largest = int((config.get("engine_kwargs") or {}).get("max_lora_rank") or 16)
            for adapter in [a for a in found if a.rank > largest]:
                if adapter.name == promised:
                    raise adapters.AdapterError(
                        f"adapter {promised} has rank {adapter.rank}, max_lora_rank is {largest}"
                    )
                log.warning("adapter %s left out: rank %d > %d", adapter.name, adapter.rank, largest)
                found.remove(adapter)
            if promised and promised not in [adapter.name for adapter in found]:
                raise adapters.AdapterError(f"adapter {promised} is not at {uri}")
        except adapters.AdapterError as error:
            state.look_at, state.last_failure = time.monotonic() + 2.0, str(error)
            raise
        command = vllm.command(config, found, 0)
        template = json.dumps([command, _template(service)], sort_keys=True)
        state.plan = hashlib.sha256(template.encode()).hexdigest()[:16], command
        return state.plan

    def _start(self, service: Object, state: _State, content: str, command: list[str]) -> Object:
        block = self._ports.block(1)
        metadata = service["metadata"]
        name = f"{metadata['name']}-serve-{secrets.token_hex(3)[:5]}"
        template = _template(service)
        spec = template["spec"]
        container = spec["containers"][0]
        container["command"] = [f"--port={block[0]}" if part == "--port=0" else part for part in command]
        container["args"] = []
        container["readinessProbe"] = {
            "httpGet": {"host": "127.0.0.1", "port": block[0], "path": "/health"},
            "periodSeconds": 5,
            "timeoutSeconds": 2,
        }
        spec["restartPolicy"] = "Never"
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": name,
                "namespace": metadata["namespace"],
                "labels": {
                    **((template.get("metadata") or {}).get("labels") or {}),
                    "ray.io/serve": "true",
                    SERVICE_LABEL: metadata["name"],
                },
                "annotations": {HASH_ANNOTATION: content, PORT_ANNOTATION: str(block[0])},
                "ownerReferences": [owner(service)],
            },
            "spec": spec,
        }
        state.blocks[name] = block
        created = self._access.create("Pod", pod)
        self._pods.put(created)
        return created

    def _delete(self, pod: Object) -> None:
        self._access.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])

    def _serves(self, service: Object, pod: Object, config: Object) -> bool:
        """Whether the pod is ready and lists the base model."""
        conditions = (pod.get("status") or {}).get("conditions") or []
        if not any(c["type"] == "Ready" and c["status"] == "True" for c in conditions):
            return False
        if ((service.get("status") or {}).get("activeServiceStatus") or {}).get("rayClusterName") == pod[
            "metadata"
        ]["name"]:
            return True
        names = _models(int(pod["metadata"]["annotations"][PORT_ANNOTATION]), self._api_key(pod))
        return config["model_loading_config"]["model_id"] in names

    def _api_key(self, pod: Object) -> str:
        for entry in pod["spec"]["containers"][0].get("env") or []:
            if entry["name"] == "VLLM_API_KEY":
                wanted = (entry.get("valueFrom") or {}).get("secretKeyRef")
                if wanted is None:
                    return entry.get("value", "")
                secret = self._access.get("Secret", pod["metadata"]["namespace"], wanted["name"])
                return decoded(secret).get(wanted["key"], b"").decode()
        return ""

    def _point_service_at(self, service: Object, pod: Object) -> None:
        port = int(pod["metadata"]["annotations"][PORT_ANNOTATION])
        metadata = service["metadata"]
        name = f"{metadata['name']}-serve-svc"
        if ((service.get("status") or {}).get("activeServiceStatus") or {}).get("rayClusterName") == pod[
            "metadata"
        ]["name"]:
            return
        self._access.apply(
            "Service",
            {
                "metadata": {
                    "name": name,
                    "namespace": metadata["namespace"],
                    "labels": {"ray.io/serve": name, SERVICE_LABEL: metadata["name"]},
                    "ownerReferences": [owner(service)],
                },
                "spec": {
                    "clusterIP": "127.0.0.1",
                    "selector": {SERVICE_LABEL: metadata["name"], "ray.io/serve": "true"},
                    "ports": [{"name": "serve", "port": port, "targetPort": port, "protocol": "TCP"}],
                },
            },
        )

    def _write_status(
        self, service: Object, application: str, reason: str, message: str, pod: Object | None
    ) -> None:
        old = service.get("status") or {}
        ready = pod is not None
        previous = next((c for c in old.get("conditions") or [] if c["type"] == "Ready"), None)
        condition = {
            "type": "Ready",
            "status": "True" if ready else "False",
            "reason": reason,
            "message": message[-2000:],
            "observedGeneration": service["metadata"]["generation"],
        }
        same = previous and previous["status"] == condition["status"]
        condition["lastTransitionTime"] = previous["lastTransitionTime"] if same else now()
        status: Object = {
            "serviceStatus": "Running" if ready else "",
            "numServeEndpoints": int(ready),
            "observedGeneration": service["metadata"]["generation"],
            "conditions": [condition],
        }
        if pod is not None:
            status["activeServiceStatus"] = {
                "rayClusterName": pod["metadata"]["name"],
                "applicationStatuses": {application: {"status": "RUNNING"}},
                "rayClusterStatus": {"state": "ready", "head": {"serviceIP": "127.0.0.1"}},
            }
        if all(old.get(key) == value for key, value in status.items()):
            return
        status["lastUpdateTime"] = now()
        metadata = service["metadata"]
        self._access.set_status("RayService", metadata["namespace"], metadata["name"], status)


def _promised(service: Object) -> str:
    return (service["metadata"].get("annotations") or {}).get(ADAPTER_ANNOTATION, "")


def _template(service: Object) -> Object:
    """The pod template of the replicas: the first worker group's, else the head's."""
    cluster = service["spec"]["rayClusterConfig"]
    groups = cluster.get("workerGroupSpecs") or [cluster["headGroupSpec"]]
    return copy.deepcopy(groups[0]["template"])


def _phase(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def _models(port: int, api_key: str) -> set[str]:
    headers = {"Authorization": f"Bearer {api_key}"} if api_key else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    request = urllib.request.Request(f"http://127.0.0.1:{port}/v1/models", headers=headers)
    try:
        with opener.open(request, timeout=3) as answer:
            return {model["id"] for model in json.load(answer)["data"]}
    except (urllib.error.URLError, OSError, ValueError, KeyError):
        return set()
