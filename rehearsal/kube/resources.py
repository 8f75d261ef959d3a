"""What each verb does to the store: admission, validation, field ownership, deletion and its propagation."""

from __future__ import annotations

import base64
import copy
import secrets
from dataclasses import dataclass
from typing import Any

from rehearsal.kube import patch as patching
from rehearsal.kube.kinds import Kind, Registry
from rehearsal.kube.status import ApiError, conflict
from rehearsal.kube.store import Store, now
from rehearsal.kube.validation import Validator

Object = dict[str, Any]
FOREGROUND = "foregroundDeletion"
ORPHAN = "orphan"
NAMESPACE_CONTENTS = "kubernetes/contents"
POD_GRACE_S = 30
# What a new object's status is before any controller has seen it.
_FIRST_STATUS: dict[str, Object] = {
    "CronJob": {},
    "DaemonSet": {},
    "Deployment": {},
    "Job": {},
    "Namespace": {"phase": "Active"},
    "Node": {},
    "PersistentVolume": {"phase": "Available"},
    "PersistentVolumeClaim": {"phase": "Pending"},
    "Pod": {"phase": "Pending"},
    "Service": {"loadBalancer": {}},
    "StatefulSet": {},
}


@dataclass(frozen=True)
class Write:
    """How a client asked for a change."""

    manager: str
    subresource: str = ""
    field_validation: str = "Strict"
    force: bool = False
    dry_run: bool = False


# Kinds that a cluster's own controllers would bring to life and the stand-in does not.
_IDLE = (
    "CronJob",
    "DaemonSet",
    "Deployment",
    "HorizontalPodAutoscaler",
    "RayJob",
    "ReplicaSet",
    "StatefulSet",
)


class Resources:
    """The verbs on objects. Every method returns (object, warnings) and raises ApiError."""

    def __init__(self, store: Store, registry: Registry, validator: Validator):
        self.store = store
        self.registry = registry
        self.validator = validator

    def create(self, kind: Kind, namespace: str, obj: Object, how: Write) -> tuple[Object, list[str]]:
        obj = self._admit(kind, namespace, obj)
        obj.pop("status", None)
        warnings = self.validator.check(kind, obj, how.field_validation)
        self._require_namespace(kind, namespace)
        warnings += _idle(kind)
        patching.record_update(None, obj, how.manager)
        return (obj if how.dry_run else self._store_new(kind, namespace, obj)), warnings

    def replace(self, kind: Kind, namespace: str, name: str, obj: Object, how: Write):
        obj = self._admit(kind, namespace, obj)
        if obj["metadata"].get("name") != name:
            raise ApiError(400, f"the name of the object ({obj['metadata'].get('name')}) is not {name}")
        return self._store_update(kind, namespace, self.store.get(kind, namespace, name), obj, how)

    def patch(self, kind: Kind, namespace: str, name: str, media_type: str, body: Object, how: Write):
        """Merge or strategic merge patch, or server-side apply (which creates what does not exist)."""
        if media_type == "application/apply-patch+yaml":
            return self._apply(kind, namespace, name, body, how)
        live = self.store.get(kind, namespace, name)
        if media_type == "application/merge-patch+json":
            changed = patching.merge(live, body)
        elif media_type == "application/strategic-merge-patch+json" and kind.builtin:
            changed = patching.strategic(live, body)
        else:
            raise ApiError(415, f"{media_type} patches of {kind.qualified} are not supported here")
        if "resourceVersion" not in (body.get("metadata") or {}):
            changed["metadata"].pop("resourceVersion", None)
        return self._store_update(kind, namespace, live, self._admit(kind, namespace, changed), how)

    def delete(self, kind: Kind, namespace: str, name: str, options: Object) -> tuple[Object, bool]:
        """Delete, or begin to. Returns the object's last state and whether it is gone already."""
        obj = self.store.get(kind, namespace, name)
        for key, wanted in (options.get("preconditions") or {}).items():
            if wanted and obj["metadata"].get(key) != wanted:
                raise conflict(kind.qualified, name, f"precondition failed: {key} is not {wanted}")
        finalizers = list(obj["metadata"].get("finalizers") or [])
        first = "deletionTimestamp" not in obj["metadata"]
        policy = options.get("propagationPolicy") or ("Orphan" if options.get("orphanDependents") else None)
        if policy not in (None, "Background", "Foreground", "Orphan"):
            raise ApiError(422, f"propagationPolicy {policy!r} is not Background, Foreground or Orphan")
        extra = {"Foreground": FOREGROUND, "Orphan": ORPHAN}.get(policy or "")
        if first and extra and extra not in finalizers:
            finalizers.append(extra)
        if first and kind.kind == "Namespace":
            finalizers.append(NAMESPACE_CONTENTS)
            obj["status"] = {"phase": "Terminating"}
        grace = self._grace(kind, obj, options)
        if not finalizers and not grace:
            return self.store.delete(kind, namespace, name), True
        obj["metadata"].pop("resourceVersion")

        def mark(changed: Object) -> None:
            changed["metadata"]["finalizers"] = finalizers
            changed["metadata"].setdefault("deletionTimestamp", now())
            changed["metadata"]["deletionGracePeriodSeconds"] = grace

        return self.store.update(kind, namespace, obj, mark), False

    def _grace(self, kind: Kind, obj: Object, options: Object) -> int:
        """Seconds that the kubelet has to end the pod; 0 for what no kubelet holds."""
        if kind.kind != "Pod" or not obj["spec"].get("nodeName"):
            return 0
        if (obj.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
            return 0
        asked = options.get("gracePeriodSeconds")
        if asked is not None:
            return int(asked)
        return int(obj["spec"].get("terminationGracePeriodSeconds", POD_GRACE_S))

    def _apply(self, kind: Kind, namespace: str, name: str, body: Object, how: Write):
        if "managedFields" in (body.get("metadata") or {}):
            raise ApiError(400, "metadata.managedFields must be nil")
        body = self._admit(kind, namespace, body, defaults=False)
        if body["metadata"].setdefault("name", name) != name:
            raise ApiError(400, f"the name of the object ({body['metadata']['name']}) is not {name}")
        try:
            live = self.store.get(kind, namespace, name)
        except ApiError as missing:
            if missing.code != 404 or how.subresource:
                raise
            live = None
        result = patching.apply(live, body, how.manager, force=how.force, subresource=how.subresource)
        result = self.validator.defaulted(kind, result)
        warnings = self.validator.check(kind, result, how.field_validation)
        if live is None:
            self._require_namespace(kind, namespace)
            result.pop("status", None)
            warnings += _idle(kind)
            return (result if how.dry_run else self._store_new(kind, namespace, result)), warnings
        if how.subresource == "status":
            result = live | {"status": result.get("status", {}), "metadata": result["metadata"]}
        elif "status" in live:
            result["status"] = live["status"]
        result["metadata"].pop("resourceVersion", None)
        if "resourceVersion" in body["metadata"]:
            result["metadata"]["resourceVersion"] = body["metadata"]["resourceVersion"]
        if how.dry_run:
            return result, warnings
        return self._stored(kind, namespace, result), warnings

    def _store_update(self, kind: Kind, namespace: str, live: Object, obj: Object, how: Write):
        if how.subresource == "status":
            version = obj["metadata"].get("resourceVersion")
            merged = live | {"status": obj.get("status") or {}, "metadata": dict(live["metadata"])}
            merged["metadata"].pop("resourceVersion", None)
            if version:
                merged["metadata"]["resourceVersion"] = version
            obj = merged
        else:
            obj.pop("status", None)
            if "status" in live:
                obj["status"] = copy.deepcopy(live["status"])
        warnings = self.validator.check(kind, obj, how.field_validation)
        obj["metadata"].pop("managedFields", None)
        patching.record_update(live, obj, how.manager, how.subresource)
        return (obj if how.dry_run else self._stored(kind, namespace, obj)), warnings

    def _store_new(self, kind: Kind, namespace: str, obj: Object) -> Object:
        if kind.builtin and kind.kind in _FIRST_STATUS:
            obj["status"] = copy.deepcopy(_FIRST_STATUS[kind.kind])
        if kind.kind == "Namespace":
            labels = obj["metadata"].setdefault("labels", {})
            labels["kubernetes.io/metadata.name"] = obj["metadata"]["name"]
        elif kind.kind == "CustomResourceDefinition":
            obj["status"] = self._establish(obj)
        created = self.store.create(kind, namespace, obj)
        if kind.kind == "CustomResourceDefinition":
            self._serve_crd(created)
        return created

    def _stored(self, kind: Kind, namespace: str, obj: Object) -> Object:
        stored = self.store.update(kind, namespace, obj)
        if kind.kind == "CustomResourceDefinition":
            self._serve_crd(stored)
        return stored

    def _admit(self, kind: Kind, namespace: str, obj: Object, *, defaults: bool = True) -> Object:
        """The object as the server sees it: identity checked, generated name and defaults filled in."""
        if not isinstance(obj, dict):
            raise ApiError(400, f"the body is not an object but {type(obj).__name__}")
        obj = copy.deepcopy(obj)
        for key, own in (("apiVersion", kind.api_version), ("kind", kind.kind)):
            if obj.setdefault(key, own) != own:
                raise ApiError(400, f"{key} in the body is {obj[key]!r}, the path says {own!r}")
        metadata = obj.setdefault("metadata", {})
        if not isinstance(metadata, dict):
            raise ApiError(400, "metadata is not an object")
        for key in [key for key, value in metadata.items() if value is None]:
            del metadata[key]
        if kind.namespaced and metadata.setdefault("namespace", namespace) != namespace:
            raise ApiError(
                400,
                f"the namespace of the object ({metadata['namespace']}) does not match that of the "
                f"request ({namespace})",
            )
        if not metadata.get("name") and metadata.get("generateName"):
            metadata["name"] = metadata["generateName"] + secrets.token_hex(3)[:5]
        if kind.kind == "Secret" and "stringData" in obj:
            plain = obj.pop("stringData") or {}
            encoded = {key: base64.b64encode(value.encode()).decode() for key, value in plain.items()}
            obj["data"] = (obj.get("data") or {}) | encoded
        return self.validator.defaulted(kind, obj) if defaults else obj

    def _require_namespace(self, kind: Kind, namespace: str) -> None:
        if not kind.namespaced:
            return
        spaces = self.registry.get("", "v1", "namespaces")
        if spaces is not None and "deletionTimestamp" in self.store.get(spaces, "", namespace)["metadata"]:
            raise ApiError(
                403, f"unable to create new content in namespace {namespace} because it is being terminated"
            )

    def _serve_crd(self, crd: Object) -> None:
        self.registry.add_crd(crd)
        spec = crd["spec"]
        for version in spec["versions"]:
            kind = self.registry.get(spec["group"], version["name"], spec["names"]["plural"])
            schema = (version.get("schema") or {}).get("openAPIV3Schema")
            if kind and schema:
                self.validator.add_crd(kind, schema)

    @staticmethod
    def _establish(crd: Object) -> Object:
        conditions = [
            {
                "type": condition,
                "status": "True",
                "reason": reason,
                "message": "served by the stand-in",
                "lastTransitionTime": now(),
            }
            for condition, reason in (
                ("NamesAccepted", "NoConflicts"),
                ("Established", "InitialNamesAccepted"),
            )
        ]
        return {
            "conditions": conditions,
            "acceptedNames": crd["spec"]["names"],
            "storedVersions": [v["name"] for v in crd["spec"]["versions"] if v.get("storage")],
        }


def _idle(kind: Kind) -> list[str]:
    if kind.kind not in _IDLE:
        return []
    return [f"{kind.kind} is stored, but no controller here acts on it"]
