"""The pod of one Ray node: KubeRay's `ray start` command with ports and addresses on loopback."""

from __future__ import annotations

import copy
import json
import secrets
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from rehearsal.kube import quantities
from rehearsal.kube.kubelet import SHORT_DIR_ANNOTATION

Object = dict[str, Any]
GPU = "nvidia.com/gpu"
TOKEN_FOLDER = "/var/run/secrets/ray"  # noqa: S105 - a folder, not a token
PORTS_ANNOTATION = "rehearsal.skypod/ports"
TEMP_DIR_ENV = "SKYPOD_RAY_TEMP"
LARGEST_OBJECT_STORE = 3 * 512 * 1024**2
WORKER_PORTS = 100
_NAMED = (
    "gcs",
    "node-manager",
    "object-manager",
    "dashboard",
    "agent-http",
    "agent-grpc",
    "metrics",
    "runtime-env",
    "client",
    "autoscaler-metrics",
    "dashboard-metrics",
)
_KUBERAY_PORTS = {"client": 10001, "dashboard": 8265, "gcs-server": 6379, "metrics": 8080}
PORTS_PER_NODE = len(_NAMED) + WORKER_PORTS
# rayStartParams that the stand-in decides itself: they concern the pod's network and its daemons' life.
_OWN_PARAMS = (
    "address",
    "block",
    "dashboard-agent-grpc-port",
    "dashboard-agent-listen-port",
    "dashboard-host",
    "dashboard-port",
    "head",
    "max-worker-port",
    "memory",
    "metrics-export-port",
    "min-worker-port",
    "node-ip-address",
    "node-manager-port",
    "node-name",
    "num-cpus",
    "num-gpus",
    "object-manager-port",
    "object-store-memory",
    "plasma-directory",
    "port",
    "ray-client-server-port",
    "runtime-env-agent-port",
    "temp-dir",
)
_BOOLEAN_VALUES = ("include-dashboard", "log-color")


def node_ports(block: range) -> dict[str, int]:
    """Names for the ports of a node; `workers-first` and `workers-last` bound its workers' range."""
    named = dict(zip(_NAMED, block, strict=False))
    return named | {"workers-first": block[len(_NAMED)], "workers-last": block[-1]}


def ports_of(pod: Object) -> dict[str, int]:
    return json.loads(pod["metadata"]["annotations"][PORTS_ANNOTATION])


def declared_ports(group: Object) -> dict[str, int]:
    """The head's ports by name as the manifest has them: KubeRay's where the manifest leaves them out."""
    container = group["template"]["spec"]["containers"][0]
    found = {port["name"]: port["containerPort"] for port in container.get("ports") or [] if "name" in port}
    return {name: found.get(name, number) for name, number in _KUBERAY_PORTS.items()}


def resources(group: Object) -> dict[str, int]:
    """What a node declares to Ray: {"num-cpus", "num-gpus", "memory"}, as KubeRay derives it.

    rayStartParams win over the first container's limits, limits over requests.
    """
    container = group["template"]["spec"]["containers"][0]
    params = group.get("rayStartParams") or {}
    found = {}
    for name, resource in (("num-cpus", "cpu"), ("num-gpus", GPU), ("memory", "memory")):
        value = params.get(name)
        amount = int(value) if value is not None else quantities.limit(container, resource)
        if amount is not None:
            found[name] = amount
    # Without a number Ray would count this machine's CPUs and GPUs.
    return {"num-cpus": 1, "num-gpus": 0} | found


def command(
    group: Object, ports: Mapping[str, int], gcs_port: int, *, head: bool, node_name: str
) -> list[str]:
    """The `ray start` command of a node."""
    declared = resources(group)
    store = LARGEST_OBJECT_STORE
    if "memory" in declared:
        store = min(store, max(int(declared["memory"] * 0.3), 100 * 1024**2))
    arguments = {
        "node-ip-address": "127.0.0.1",
        "node-name": node_name,
        "node-manager-port": ports["node-manager"],
        "object-manager-port": ports["object-manager"],
        "dashboard-agent-listen-port": ports["agent-http"],
        "dashboard-agent-grpc-port": ports["agent-grpc"],
        "metrics-export-port": ports["metrics"],
        "runtime-env-agent-port": ports["runtime-env"],
        "min-worker-port": ports["workers-first"],
        "max-worker-port": ports["workers-last"],
        "object-store-memory": store,
    } | declared
    if head:
        arguments |= {
            "port": ports["gcs"],
            "dashboard-host": "127.0.0.1",
            "dashboard-port": ports["dashboard"],
            "ray-client-server-port": ports["client"],
            "temp-dir": f"$({TEMP_DIR_ENV})",
        }
    else:
        arguments["address"] = f"127.0.0.1:{gcs_port}"
    flags = ["--block", "--disable-usage-stats"] + (["--head"] if head else [])
    for name, value in (group.get("rayStartParams") or {}).items():
        if name in _OWN_PARAMS:
            continue
        if str(value).lower() in ("true", "false") and name not in _BOOLEAN_VALUES:
            flags += [f"--{name}"] if str(value).lower() == "true" else []
        else:
            arguments[name] = str(value).strip("'\"").replace('\\"', '"')
    script = Path(__file__).parents[1] / "ray_start.py"
    start = ["python", str(script), "start", *(f"--{key}={value}" for key, value in arguments.items())]
    return start + [flag for flag in dict.fromkeys(flags)]


def pod(
    cluster: Object, group: Object, ports: Mapping[str, int], gcs_port: int, *, head: bool, secret: str | None
) -> Object:
    """The pod of a node, owned by its RayCluster. `secret` holds the cluster's token, None without one."""
    metadata = cluster["metadata"]
    group_name = "headgroup" if head else group["groupName"]
    role = "head" if head else f"{group_name}-worker"
    name = f"{metadata['name']}-{role}-{secrets.token_hex(3)[:5]}"
    template = copy.deepcopy(group["template"])
    spec = template["spec"]
    container = spec["containers"][0]
    container["command"] = command(group, ports, gcs_port, head=head, node_name=name)
    container["args"] = []
    container["readinessProbe"] = {
        "periodSeconds": 5,
        "timeoutSeconds": 2,
        "tcpSocket": {"host": "127.0.0.1", "port": ports["dashboard" if head else "node-manager"]},
    }
    env = [
        entry
        for entry in container.get("env") or []
        if entry["name"] not in ("RAY_ADDRESS", "RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH")
    ]
    env += [
        {"name": "RAY_CLUSTER_NAME", "value": metadata["name"]},
        {"name": "RAY_NODE_TYPE_NAME", "value": group_name},
        {"name": "AUTOSCALER_METRIC_PORT", "value": str(ports["autoscaler-metrics"])},
        {"name": "DASHBOARD_METRIC_PORT", "value": str(ports["dashboard-metrics"])},
        {"name": "RAY_AUTH_MODE", "value": "token" if secret else "disabled"},
    ]
    if secret:
        # By file: an environment shows in /proc and is passed on to everything.
        env.append({"name": "RAY_AUTH_TOKEN_PATH", "value": f"{TOKEN_FOLDER}/auth_token"})
        spec.setdefault("volumes", []).append({"name": "ray-token", "secret": {"secretName": secret}})
        container.setdefault("volumeMounts", []).append({"name": "ray-token", "mountPath": TOKEN_FOLDER})
    container["env"] = env
    # A dead node is a Failed pod, which the controller replaces: a restarted one would need a new Ray node.
    spec["restartPolicy"] = "Never"
    labels = (template.get("metadata") or {}).get("labels") or {}
    annotations = (template.get("metadata") or {}).get("annotations") or {}
    annotations |= {PORTS_ANNOTATION: json.dumps(dict(ports))}
    if head:
        annotations |= {SHORT_DIR_ANNOTATION: TEMP_DIR_ENV}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": name,
            "namespace": metadata["namespace"],
            "labels": labels
            | {
                "ray.io/cluster": metadata["name"],
                "ray.io/group": group_name,
                "ray.io/is-ray-node": "yes",
                "ray.io/node-type": "head" if head else "worker",
            },
            "annotations": annotations,
            "ownerReferences": [owner(cluster)],
        },
        "spec": spec,
    }


def owner(obj: Object) -> Object:
    """An owner reference to a controlling object."""
    return {
        "apiVersion": obj["apiVersion"],
        "kind": obj["kind"],
        "name": obj["metadata"]["name"],
        "uid": obj["metadata"]["uid"],
        "controller": True,
        "blockOwnerDeletion": True,
    }
