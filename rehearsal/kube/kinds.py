"""The resource kinds that the stand-in serves: built-in ones and those that CustomResourceDefinitions add."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Kind:
    """One served resource type.

    `group` is "" for the core group; `builtin` kinds have Kubernetes' own schemas, others a CRD's or none.
    """

    group: str
    version: str
    kind: str
    plural: str
    namespaced: bool = True
    builtin: bool = True

    @property
    def api_version(self) -> str:
        return f"{self.group}/{self.version}" if self.group else self.version

    @property
    def qualified(self) -> str:
        """The name that error messages use: `pods`, `rayclusters.ray.io`."""
        return f"{self.plural}.{self.group}" if self.group else self.plural

    @property
    def storage(self) -> tuple[str, str]:
        """All versions of one resource share their objects."""
        return self.group, self.plural


_NAMESPACED = {
    "v1": "Pod Service Secret ConfigMap ServiceAccount PersistentVolumeClaim Event Endpoints ResourceQuota "
    "LimitRange ReplicationController PodTemplate",
    "apps/v1": "Deployment DaemonSet StatefulSet ReplicaSet ControllerRevision",
    "autoscaling/v2": "HorizontalPodAutoscaler",
    "batch/v1": "Job CronJob",
    "coordination.k8s.io/v1": "Lease",
    "discovery.k8s.io/v1": "EndpointSlice",
    "networking.k8s.io/v1": "NetworkPolicy Ingress",
    "policy/v1": "PodDisruptionBudget",
    "rbac.authorization.k8s.io/v1": "Role RoleBinding",
}
_CLUSTER = {
    "v1": "Namespace Node PersistentVolume",
    "admissionregistration.k8s.io/v1": "MutatingWebhookConfiguration ValidatingWebhookConfiguration",
    "apiextensions.k8s.io/v1": "CustomResourceDefinition",
    "apiregistration.k8s.io/v1": "APIService",
    "networking.k8s.io/v1": "IngressClass",
    "node.k8s.io/v1": "RuntimeClass",
    "rbac.authorization.k8s.io/v1": "ClusterRole ClusterRoleBinding",
    "scheduling.k8s.io/v1": "PriorityClass",
    "storage.k8s.io/v1": "StorageClass CSIDriver CSINode VolumeAttachment",
}
# Served without a schema where no CRD is at hand, because the controllers here act on them.
_RAY = {"ray.io/v1": "RayCluster RayService RayJob"}


def _plural(kind: str) -> str:
    lower = kind.lower()
    if lower.endswith(("endpoints",)):
        return lower
    if lower.endswith("y"):
        return lower[:-1] + "ies"
    return lower + "es" if lower.endswith(("s", "x")) else lower + "s"


def _table() -> list[Kind]:
    rows = []
    for table, namespaced, builtin in (
        (_NAMESPACED, True, True),
        (_CLUSTER, False, True),
        (_RAY, True, False),
    ):
        for api_version, names in table.items():
            group, _, version = api_version.rpartition("/")
            rows += [Kind(group, version, name, _plural(name), namespaced, builtin) for name in names.split()]
    return rows


class Registry:
    """Which kinds exist now. CRDs add to it while the server runs."""

    def __init__(self) -> None:
        self._kinds = {(kind.group, kind.version, kind.plural): kind for kind in _table()}

    def __iter__(self):
        return iter(list(self._kinds.values()))

    def get(self, group: str, version: str, plural: str) -> Kind | None:
        return self._kinds.get((group, version, plural))

    def named(self, api_version: str, kind: str) -> Kind | None:
        return next((k for k in self if k.api_version == api_version and k.kind == kind), None)

    def any_version(self, group: str, kind: str) -> Kind | None:
        return next((k for k in self if k.group == group and k.kind == kind), None)

    def add_crd(self, crd: dict[str, Any]) -> None:
        """Serve every served version of a CustomResourceDefinition."""
        spec = crd["spec"]
        for version in spec["versions"]:
            if version.get("served", True):
                names = spec["names"]
                kind = Kind(
                    spec["group"],
                    version["name"],
                    names["kind"],
                    names["plural"],
                    spec["scope"] == "Namespaced",
                    builtin=False,
                )
                self._kinds[(kind.group, kind.version, kind.plural)] = kind
