"""The namespace and what every workload in it shares: the file system, service accounts, who may connect."""

from collections.abc import Sequence
from typing import Any

from stacks.manifests.pods import MANAGED_BY, SHARED_CLAIM

GATEWAY, ROLLOUT = ({"app.kubernetes.io/component": name} for name in ("gateway", "rollout"))
"""Labels of the pods that may ask the served model."""
_OPERATOR_NAMESPACE = "kuberay-operator"
ENDPOINT_NAMESPACE = "hyperpod-ray"
"""Where the Ray endpoint operator and its proxy run, when the environment has a domain."""
_OBSERVABILITY_NAMESPACE = "hyperpod-observability"


def build(
    *,
    namespace: str,
    file_system_id: str,
    file_system_dns: str,
    file_system_mount_name: str,
    capacity_gib: int,
    service_accounts: Sequence[str],
    ray_endpoints: bool = False,
) -> list[dict[str, Any]]:
    """Namespace, a static volume with its claim `shared`, service accounts and network policies, in order.

    A static volume binds to one claim only, so training and serving share one namespace.
    """
    volume_name = f"{namespace}-{SHARED_CLAIM}"
    capacity = {"storage": f"{capacity_gib}Gi"}
    volume = {
        "apiVersion": "v1",
        "kind": "PersistentVolume",
        "metadata": {"name": volume_name, "labels": dict(MANAGED_BY)},
        "spec": {
            "capacity": capacity,
            "volumeMode": "Filesystem",
            "accessModes": ["ReadWriteMany"],
            "mountOptions": ["flock"],
            "persistentVolumeReclaimPolicy": "Retain",
            "storageClassName": "",
            "claimRef": {"namespace": namespace, "name": SHARED_CLAIM},
            "csi": {
                "driver": "fsx.csi.aws.com",
                "volumeHandle": file_system_id,
                "volumeAttributes": {"dnsname": file_system_dns, "mountname": file_system_mount_name},
            },
        },
    }
    claim = {
        "apiVersion": "v1",
        "kind": "PersistentVolumeClaim",
        "metadata": {"name": SHARED_CLAIM, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "spec": {
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "volumeName": volume_name,
            "resources": {"requests": capacity},
        },
    }
    return [
        _namespace(namespace),
        volume,
        claim,
        *(service_account(namespace, name) for name in service_accounts),
        *network_policies(namespace, ray_endpoints=ray_endpoints),
    ]


def service_account(namespace: str, name: str) -> dict[str, Any]:
    """A service account without a Kubernetes token: its AWS rights come by pod identity."""
    return {
        "apiVersion": "v1",
        "kind": "ServiceAccount",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "automountServiceAccountToken": False,
    }


def network_policies(namespace: str, *, ray_endpoints: bool = False) -> list[dict[str, Any]]:
    """Ray's pods reach each other; everybody else reaches what they are named for here, and nothing more.

    Ray's ports (8265, 10001, 6379 and those of its workers) execute code for whoever reaches them. The served
    model asks nobody for a key: only the gateway reaches it, and pods that are labelled for rollouts.
    """
    askers = [{"podSelector": {"matchLabels": labels}} for labels in (GATEWAY, ROLLOUT)]
    ray_pods = {"podSelector": {"matchLabels": {"ray.io/is-ray-node": "yes"}}}
    policies = [
        _ingress(namespace, "ray", [ray_pods], ports=()),
        _ingress(namespace, "served-model", askers, ports=(8000,)),
        _ingress(namespace, "operator", [_from_namespace(_OPERATOR_NAMESPACE)], ports=(8265, 52365, 8000)),
        _ingress(namespace, "metrics", [_from_namespace(_OBSERVABILITY_NAMESPACE)], ports=(8080,)),
    ]
    if ray_endpoints:
        policies.append(
            _ingress(namespace, "ray-links", [_from_namespace(ENDPOINT_NAMESPACE)], ports=(8265,))
        )
    return policies


def _namespace(name: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Namespace",
        "metadata": {
            "name": name,
            "labels": {**MANAGED_BY, "pod-security.kubernetes.io/enforce": "baseline"},
        },
    }


def _from_namespace(name: str) -> dict[str, Any]:
    return {"namespaceSelector": {"matchLabels": {"kubernetes.io/metadata.name": name}}}


def _ingress(
    namespace: str, name: str, sources: list[dict[str, Any]], *, ports: Sequence[int]
) -> dict[str, Any]:
    rule: dict[str, Any] = {"from": sources}
    if ports:
        rule["ports"] = [{"protocol": "TCP", "port": port} for port in ports]
    return {
        "apiVersion": "networking.k8s.io/v1",
        "kind": "NetworkPolicy",
        "metadata": {"name": name, "namespace": namespace, "labels": dict(MANAGED_BY)},
        "spec": {"podSelector": {}, "policyTypes": ["Ingress"], "ingress": [rule]},
    }
