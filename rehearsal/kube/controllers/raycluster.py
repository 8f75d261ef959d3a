"""The RayCluster controller: a head pod, then worker pods one after the other, and KubeRay's status."""

from __future__ import annotations

import base64
import json
import logging
import secrets
import time
import urllib.error
import urllib.request
from collections import Counter
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any

from rehearsal.kube import quantities
from rehearsal.kube.access import Access, Cache
from rehearsal.kube.controllers import raynode
from rehearsal.kube.guard import guarded
from rehearsal.kube.ports import Ports, accepts
from rehearsal.kube.services import LOCAL_PORTS_ANNOTATION
from rehearsal.kube.store import now
from rehearsal.kube.volumes import decoded

Object = dict[str, Any]
log = logging.getLogger("kube.raycluster")
LONGEST_BACKOFF_S = 60.0
# After so many deaths in a row without one ready moment the cluster is called failed; it is still retried.
HOPELESS_AFTER = 3
ASK_RAY_EVERY_S = 5.0


@dataclass
class _State:
    """What the controller remembers of one cluster between passes."""

    failures: int = 0
    retry_at: float = 0.0
    last_failure: str = ""
    was_ready: bool = False
    token: str | None = None
    # Ray's own word that all nodes are alive: for these pods, until then.
    vouched: frozenset[str] = frozenset()
    vouched_until: float = 0.0
    blocks: dict[str, range] = field(default_factory=dict)
    # A service keeps its address when the pod behind it is replaced.
    dashboard: range | None = None


class RayClusters:
    def __init__(self, access: Access, clusters: Cache, pods: Cache, ports: Ports):
        self._access = access
        self._clusters = clusters
        self._pods = pods
        self._ports = ports
        self._states: dict[str, _State] = {}

    def sync(self) -> None:
        """One pass over all RayClusters."""
        clusters = {cluster["metadata"]["uid"]: cluster for cluster in self._clusters.all()}
        for uid in set(self._states) - set(clusters):
            state = self._states.pop(uid)
            for block in [*state.blocks.values(), *filter(None, [state.dashboard])]:
                self._ports.release(block)
        for uid, cluster in clusters.items():
            if "deletionTimestamp" not in cluster["metadata"]:
                with guarded(log, f"RayCluster {cluster['metadata']['name']}"):
                    self._sync_one(cluster, self._states.setdefault(uid, _State()))

    def _sync_one(self, cluster: Object, state: _State) -> None:
        uid = cluster["metadata"]["uid"]
        pods = [pod for pod in self._pods.all() if _owned_by(pod, uid)]
        for name in set(state.blocks) - {pod["metadata"]["name"] for pod in pods}:
            self._ports.release(state.blocks.pop(name))
        leaving = [pod for pod in pods if "deletionTimestamp" in pod["metadata"]]
        pods = [pod for pod in pods if pod not in leaving]
        if cluster["spec"].get("suspend"):
            self._delete(pods)
            self._write_status(cluster, state, None, [], ready=False)
            return
        if state.token is None:
            state.token = self._token(cluster)
        token = state.token
        heads = [pod for pod in pods if pod["metadata"]["labels"]["ray.io/node-type"] == "head"]
        workers = [pod for pod in pods if pod not in heads]
        dead = [pod for pod in pods if _phase(pod) in ("Failed", "Succeeded")]
        if dead:
            self._bury(state, dead, all_of=pods if heads and heads[0] in dead else dead)
            self._write_status(cluster, state, None, [pod for pod in workers if pod not in dead], ready=False)
            return
        head = heads[0] if heads else None
        if time.monotonic() >= state.retry_at:
            if head is None:
                if not leaving:
                    head = self._start(cluster, state, cluster["spec"]["headGroupSpec"], None, token)
                    self._serve(cluster, head)
            else:
                self._scale(cluster, state, head, workers, token)
        ready = head is not None and self._is_complete(cluster, state, head, workers)
        if ready:
            state.failures, state.last_failure, state.was_ready = 0, "", True
        self._write_status(cluster, state, head, workers, ready=ready)

    def _scale(self, cluster: Object, state: _State, head: Object, workers: list[Object], token) -> None:
        """Start the next missing worker, or remove surplus ones."""
        counts = {
            group["groupName"]: _replicas(group) for group in cluster["spec"].get("workerGroupSpecs") or []
        }
        have = Counter(pod["metadata"]["labels"]["ray.io/group"] for pod in workers)
        if have == Counter(counts):
            return
        if not all(accepts(raynode.ports_of(pod)["node-manager"]) for pod in [head, *workers]):
            # Raylets that register at the same moment on one machine abort each other.
            return
        for group in cluster["spec"].get("workerGroupSpecs") or []:
            mine = [p for p in workers if p["metadata"]["labels"]["ray.io/group"] == group["groupName"]]
            wanted = _replicas(group)
            self._delete(mine[wanted:])
            if len(mine) < wanted:
                self._start(cluster, state, group, head, token)
                return

    def _start(self, cluster: Object, state: _State, group: Object, head: Object | None, token) -> Object:
        block = self._ports.block(raynode.PORTS_PER_NODE)
        ports = raynode.node_ports(block)
        if head is None:
            state.dashboard = state.dashboard or self._ports.block(1)
            ports["dashboard"] = state.dashboard[0]
        gcs_port = raynode.ports_of(head)["gcs"] if head else ports["gcs"]
        secret = _secret_name(cluster) if token else None
        pod = raynode.pod(cluster, group, ports, gcs_port, head=head is None, secret=secret)
        state.blocks[pod["metadata"]["name"]] = block
        created = self._access.create("Pod", pod)
        self._pods.put(created)
        return created

    def _bury(self, state: _State, dead: list[Object], all_of: list[Object]) -> None:
        """Delete dead pods (all pods when the head died) and wait longer after each death in a row."""
        state.failures += 1
        state.last_failure = "; ".join(
            f"{pod['metadata']['name']}: {(pod['status'].get('message') or 'ended').strip()}" for pod in dead
        )[-4000:]
        # A node that ran well may come back at once; one that dies at its start may not spin.
        if not state.was_ready or state.failures > 1:
            state.retry_at = time.monotonic() + min(LONGEST_BACKOFF_S, 2.0**state.failures)
        log.warning("pods died: %s", state.last_failure)
        self._delete(all_of)

    def _delete(self, pods: list[Object]) -> None:
        for pod in pods:
            self._access.delete("Pod", pod["metadata"]["namespace"], pod["metadata"]["name"])

    # Secret and Service

    def _token(self, cluster: Object) -> str | None:
        """The cluster's token from its Secret, made at the first look. None where authentication is off."""
        if (cluster["spec"].get("authOptions") or {}).get("mode", "token") != "token":
            return None
        namespace, name = cluster["metadata"]["namespace"], _secret_name(cluster)
        secret = self._access.get("Secret", namespace, name)
        if secret is None:
            token = secrets.token_urlsafe(32)
            secret = self._access.create(
                "Secret",
                {
                    "apiVersion": "v1",
                    "kind": "Secret",
                    "metadata": {
                        "name": name,
                        "namespace": namespace,
                        "labels": {"ray.io/cluster": cluster["metadata"]["name"]},
                        "ownerReferences": [raynode.owner(cluster)],
                    },
                    "type": "Opaque",
                    "data": {"auth_token": base64.b64encode(token.encode()).decode()},
                },
            )
        return decoded(secret)["auth_token"].decode()

    def _serve(self, cluster: Object, head: Object) -> None:
        metadata, ports = cluster["metadata"], raynode.ports_of(head)
        declared = raynode.declared_ports(cluster["spec"]["headGroupSpec"])
        local = {str(number): ports[_ENDPOINTS[name]] for name, number in declared.items()}
        self._access.apply(
            "Service",
            {
                "metadata": {
                    "name": f"{metadata['name']}-head-svc",
                    "namespace": metadata["namespace"],
                    "labels": {"ray.io/cluster": metadata["name"], "ray.io/node-type": "head"},
                    "annotations": {LOCAL_PORTS_ANNOTATION: json.dumps(local)},
                    "ownerReferences": [raynode.owner(cluster)],
                },
                "spec": {
                    "clusterIP": "127.0.0.1",
                    "ports": [
                        {"name": name, "port": ports[key], "protocol": "TCP", "targetPort": ports[key]}
                        for name, key in _ENDPOINTS.items()
                    ],
                    "selector": {"ray.io/cluster": metadata["name"], "ray.io/node-type": "head"},
                },
            },
        )

    # Status

    def _is_complete(self, cluster: Object, state: _State, head: Object, workers: list[Object]) -> bool:
        """Whether every wanted node is ready and Ray itself counts it as alive."""
        wanted = sum(_replicas(group) for group in cluster["spec"].get("workerGroupSpecs") or [])
        if len(workers) != wanted or not all(map(_is_ready, [head, *workers])):
            return False
        names = frozenset(pod["metadata"]["name"] for pod in [head, *workers])
        if state.vouched == names and time.monotonic() < state.vouched_until:
            return True
        ports = raynode.ports_of(head)
        # Jobs are submitted through the head's agent, which is the last to come up.
        if not accepts(ports["agent-http"]):
            return False
        alive = _alive_nodes(ports["dashboard"], state.token)
        if alive is None:
            # The dashboard is slow on a busy machine; that says nothing about nodes that it vouched for.
            return state.vouched == names
        if lost := [pod for pod in workers if pod["metadata"]["name"] in state.vouched - alive]:
            # A raylet that hangs or is cut off: in the cluster its pod fails the liveness probe.
            self._bury(state, lost, all_of=lost)
        state.vouched = names if names <= alive else frozenset()
        state.vouched_until = time.monotonic() + ASK_RAY_EVERY_S
        return bool(state.vouched)

    def _write_status(
        self, cluster: Object, state: _State, head: Object | None, workers: list[Object], *, ready: bool
    ) -> None:
        old = cluster.get("status") or {}
        spec = cluster["spec"]
        groups = spec.get("workerGroupSpecs") or []
        name = cluster["metadata"]["name"]
        label = "ready" if ready else "suspended" if spec.get("suspend") else ""
        if not label and state.failures >= HOPELESS_AFTER:
            label = "failed"
        elif not label and state.was_ready:
            label = "unhealthy"
        running = sum(_phase(pod) == "Running" for pod in workers)
        status: Object = {
            "state": label,
            "reason": state.last_failure,
            "observedGeneration": cluster["metadata"]["generation"],
            "desiredWorkerReplicas": sum(map(_replicas, groups)),
            "minWorkerReplicas": sum(int(g.get("minReplicas", _replicas(g))) for g in groups),
            "maxWorkerReplicas": sum(int(g.get("maxReplicas", _replicas(g))) for g in groups),
            "availableWorkerReplicas": running,
            "readyWorkerReplicas": sum(map(_is_ready, workers)),
            "conditions": _conditions(old, state, head, ready),
            **_desired(spec),
        }
        if head is not None:
            ports = raynode.ports_of(head)
            status["head"] = {
                "podIP": "127.0.0.1",
                "podName": head["metadata"]["name"],
                "serviceIP": "127.0.0.1",
                "serviceName": f"{name}-head-svc",
            }
            status["endpoints"] = {key: str(ports[port]) for key, port in _ENDPOINTS.items()}
        if all(old.get(key) == value for key, value in status.items()):
            return
        if label and old.get("state") != label:
            status["stateTransitionTimes"] = (old.get("stateTransitionTimes") or {}) | {label: now()}
        status["lastUpdateTime"] = now()
        self._access.set_status("RayCluster", cluster["metadata"]["namespace"], name, status)


_ENDPOINTS = {"client": "client", "dashboard": "dashboard", "gcs-server": "gcs", "metrics": "metrics"}


def _owned_by(pod: Object, uid: str) -> bool:
    return any(ref["uid"] == uid for ref in pod["metadata"].get("ownerReferences") or [])


def _phase(pod: Object) -> str:
    return (pod.get("status") or {}).get("phase", "Pending")


def _is_ready(pod: Object) -> bool:
    conditions = (pod.get("status") or {}).get("conditions") or []
    return any(c["type"] == "Ready" and c["status"] == "True" for c in conditions)


def _replicas(group: Object) -> int:
    return 0 if group.get("suspend") else int(group.get("replicas", group.get("minReplicas", 0)))


def _secret_name(cluster: Object) -> str:
    return (cluster["spec"].get("authOptions") or {}).get("secretName") or cluster["metadata"]["name"]


def _desired(spec: Object) -> Object:
    """Sums over all nodes, as quantities: what the manifest asks the cluster for."""
    totals = {"cpu": Decimal(0), "memory": Decimal(0), raynode.GPU: Decimal(0)}
    groups = [(1, spec["headGroupSpec"])]
    groups += [(_replicas(group), group) for group in spec.get("workerGroupSpecs") or []]
    for count, group in groups:
        for container in group["template"]["spec"]["containers"]:
            wanted = container.get("resources") or {}
            for key in totals:
                value = (wanted.get("requests") or {}).get(key, (wanted.get("limits") or {}).get(key, 0))
                totals[key] += count * quantities.parse(value)
    texts = {key: f"{value.normalize():f}" for key, value in totals.items()}
    return {"desiredCPU": texts["cpu"], "desiredMemory": texts["memory"], "desiredGPU": texts[raynode.GPU]}


def _conditions(old: Object, state: _State, head: Object | None, ready: bool) -> list[Object]:
    head_ready = head is not None and _is_ready(head)
    rows = [
        ("HeadPodReady", head_ready, "HeadPodRunningAndReady" if head_ready else "HeadPodNotReady", ""),
        (
            "RayClusterProvisioned",
            ready or state.was_ready,
            "AllPodRunningAndReadyFirstTime" if ready or state.was_ready else "RayClusterPodsProvisioning",
            "",
        ),
    ]
    if state.last_failure:
        rows.append(("ReplicaFailure", True, "PodDied", state.last_failure))
    before = {condition["type"]: condition for condition in old.get("conditions") or []}
    conditions = []
    for kind, holds, reason, message in rows:
        row = {"type": kind, "status": "True" if holds else "False", "reason": reason, "message": message}
        previous = before.get(kind)
        same = previous and previous["status"] == row["status"]
        conditions.append(row | {"lastTransitionTime": previous["lastTransitionTime"] if same else now()})
    return conditions


def _alive_nodes(dashboard_port: int, token: str | None) -> set[str] | None:
    """Names of the nodes that Ray's control store calls alive, None when the dashboard does not answer."""
    url = f"http://127.0.0.1:{dashboard_port}/api/v0/nodes?limit=1000"
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(urllib.request.Request(url, headers=headers), timeout=3) as answer:
            nodes = json.load(answer)["data"]["result"]["result"]
    except (urllib.error.URLError, OSError, ValueError, KeyError, TypeError):
        return None
    return {node["node_name"] for node in nodes if node["state"] == "ALIVE"}
