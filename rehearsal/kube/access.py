"""How the controllers reach the API: the ordinary dynamic client, plain dictionaries, and cached watches."""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import urllib3
from kubernetes import client, dynamic
from kubernetes.client.exceptions import ApiException

Object = dict[str, Any]
log = logging.getLogger("kube.access")
MANAGER = "rehearsal-controllers"


class Access:
    """Reads and writes by kind name. Missing objects are None, not errors."""

    KINDS = (
        ("v1", "Pod"),
        ("v1", "Service"),
        ("v1", "Secret"),
        ("v1", "ConfigMap"),
        ("v1", "Event"),
        ("batch/v1", "Job"),
        ("ray.io/v1", "RayCluster"),
        ("ray.io/v1", "RayService"),
    )

    def __init__(self, endpoint: str, ca_file: Path, token: str, cache_file: Path):
        settings = client.Configuration()
        settings.host = endpoint
        settings.ssl_ca_cert = str(ca_file)
        settings.api_key = {"authorization": f"Bearer {token}"}
        settings.connection_pool_maxsize = 16
        # The client honours proxy variables; loopback must never go through one.
        settings.proxy = None
        settings.no_proxy = "*"
        api = client.ApiClient(settings)
        api.user_agent = f"{MANAGER}/1"
        self._client = dynamic.DynamicClient(api, cache_file=str(cache_file))
        self._resources = {
            kind: self._client.resources.get(api_version=api_version, kind=kind)
            for api_version, kind in self.KINDS
        }

    def get(self, kind: str, namespace: str, name: str) -> Object | None:
        try:
            return self._resources[kind].get(namespace=namespace, name=name).to_dict()
        except ApiException as error:
            if error.status == 404:
                return None
            raise

    def create(self, kind: str, obj: Object) -> Object:
        namespace = obj["metadata"]["namespace"]
        return self._resources[kind].create(namespace=namespace, body=obj).to_dict()

    def apply(self, kind: str, obj: Object) -> Object:
        """Server-side apply by the controllers, winning over other managers."""
        metadata = obj["metadata"]
        resource = self._resources[kind]
        body = {"apiVersion": resource.group_version, "kind": kind} | obj
        answer = self._client.server_side_apply(
            resource,
            body=body,
            namespace=metadata["namespace"],
            name=metadata["name"],
            field_manager=MANAGER,
            force_conflicts=True,
        )
        return answer.to_dict()

    def set_status(self, kind: str, namespace: str, name: str, status: Object) -> None:
        """Merge into the status. An object that is gone is no error: its end is on the way."""
        body = {"status": status}
        resource = self._resources[kind]
        path = f"{resource.path(name=name, namespace=namespace)}/status"
        try:
            self._client.request("patch", path, body=body, content_type="application/merge-patch+json")
        except ApiException as error:
            if error.status != 404:
                raise

    def bind(self, namespace: str, name: str, node: str) -> None:
        """Note the node on which a pod runs."""
        try:
            self._resources["Pod"].patch(
                namespace=namespace,
                name=name,
                body={"spec": {"nodeName": node}},
                content_type="application/merge-patch+json",
            )
        except ApiException as error:
            if error.status != 404:
                raise

    def delete(self, kind: str, namespace: str, name: str, grace_s: int | None = None) -> None:
        body: Object = {"kind": "DeleteOptions", "apiVersion": "v1", "propagationPolicy": "Background"}
        if grace_s is not None:
            body["gracePeriodSeconds"] = grace_s
        try:
            self._resources[kind].delete(namespace=namespace, name=name, body=body)
        except ApiException as error:
            if error.status != 404:
                raise

    def list(self, kind: str) -> tuple[list[Object], str]:
        """All objects of a kind and the resource version of the list."""
        answer = self._resources[kind].get().to_dict()
        return answer["items"], answer["metadata"]["resourceVersion"]

    def events(self, kind: str, resource_version: str, timeout_s: int) -> Iterable[Object]:
        return self._resources[kind].watch(resource_version=resource_version, timeout=timeout_s)


class Cache:
    """The current objects of one kind, kept by a thread that lists and then watches; news set `wake`."""

    def __init__(self, access: Access, kind: str, wake: threading.Event):
        self._access = access
        self._kind = kind
        self._wake = wake
        self._objects: dict[tuple[str, str], Object] = {}
        self._lock = threading.Lock()
        self.filled = threading.Event()
        self._stop = False

    def start(self) -> None:
        threading.Thread(target=self._run, name=f"watch-{self._kind}", daemon=True).start()

    def stop(self) -> None:
        self._stop = True

    def all(self) -> list[Object]:
        with self._lock:
            return list(self._objects.values())

    def get(self, namespace: str, name: str) -> Object | None:
        with self._lock:
            return self._objects.get((namespace, name))

    def put(self, obj: Object) -> None:
        """Take in an object that this process has just written, ahead of the watch's news of it."""
        with self._lock:
            self._objects.setdefault((obj["metadata"]["namespace"], obj["metadata"]["name"]), obj)

    def _run(self) -> None:
        while not self._stop:
            try:
                items, version = self._access.list(self._kind)
                with self._lock:
                    self._objects = {
                        (o["metadata"].get("namespace", ""), o["metadata"]["name"]): o for o in items
                    }
                self.filled.set()
                self._wake.set()
                for event in self._access.events(self._kind, version, timeout_s=300):
                    self._take(event)
                    if self._stop:
                        return
            except (ApiException, urllib3.exceptions.HTTPError, OSError) as error:
                if not self._stop:
                    log.warning("watch of %s broken, starting again: %s", self._kind, error)
                    self._wake.wait(0.5)

    def _take(self, event: Object) -> None:
        obj = event["raw_object"]
        if event["type"] not in ("ADDED", "MODIFIED", "DELETED"):
            return
        key = obj["metadata"].get("namespace", ""), obj["metadata"]["name"]
        with self._lock:
            if event["type"] == "DELETED":
                self._objects.pop(key, None)
            else:
                self._objects[key] = obj
        self._wake.set()
