"""By what clients learn what the server serves: /version, /api, /apis and their resource lists."""

from __future__ import annotations

from typing import Any

from rehearsal.kube.kinds import Kind, Registry

_VERBS = ["create", "delete", "deletecollection", "get", "list", "patch", "update", "watch"]
_SHORT = {
    "Namespace": ["ns"],
    "Node": ["no"],
    "PersistentVolume": ["pv"],
    "PersistentVolumeClaim": ["pvc"],
    "Pod": ["po"],
    "Service": ["svc"],
    "ServiceAccount": ["sa"],
    "CustomResourceDefinition": ["crd", "crds"],
}


def version(missing_schemas: list[str]) -> dict[str, Any]:
    """/version; `unvalidated` names the kinds that are accepted without a schema."""
    return {
        "major": "1",
        "minor": "37",
        "gitVersion": "v1.37.0-rehearsal",
        "gitCommit": "",
        "gitTreeState": "clean",
        "buildDate": "1970-01-01T00:00:00Z",
        "goVersion": "",
        "compiler": "",
        "platform": "rehearsal",
    } | ({"unvalidated": missing_schemas} if missing_schemas else {})


def answer(registry: Registry, parts: list[str], server: str) -> dict[str, Any] | None:
    """The discovery document at a path, or None where there is none."""
    groups: dict[str, list[str]] = {}
    for kind in registry:
        versions = groups.setdefault(kind.group, [])
        if kind.version not in versions:
            versions.append(kind.version)
    match parts:
        case ["api"]:
            return {
                "kind": "APIVersions",
                "versions": ["v1"],
                "serverAddressByClientCIDRs": [{"clientCIDR": "0.0.0.0/0", "serverAddress": server}],
            }
        case ["api", "v1"]:
            return _resources("v1", [k for k in registry if k.group == ""])
        case ["apis"]:
            listed = [_group(name, versions) for name, versions in sorted(groups.items()) if name]
            return {"kind": "APIGroupList", "apiVersion": "v1", "groups": listed}
        case ["apis", name] if name in groups:
            return {"kind": "APIGroup", "apiVersion": "v1"} | _group(name, groups[name])
        case ["apis", name, version_] if version_ in groups.get(name, []):
            chosen = [k for k in registry if (k.group, k.version) == (name, version_)]
            return _resources(f"{name}/{version_}", chosen)
    return None


def _group(name: str, versions: list[str]) -> dict[str, Any]:
    # Stable versions (v1) before alpha and beta ones, as clients expect of the preferred version.
    ordered = sorted(versions, key=lambda v: ("alpha" in v or "beta" in v, v))
    listed = [{"groupVersion": f"{name}/{v}", "version": v} for v in ordered]
    return {"name": name, "versions": listed, "preferredVersion": listed[0]}


def _resources(group_version: str, kinds: list[Kind]) -> dict[str, Any]:
    listed = []
    for kind in kinds:
        entry = {
            "name": kind.plural,
            "singularName": kind.kind.lower(),
            "namespaced": kind.namespaced,
            "kind": kind.kind,
            "verbs": _VERBS,
        }
        listed.append(entry | ({"shortNames": _SHORT[kind.kind]} if kind.kind in _SHORT else {}))
        status = entry | {"name": f"{kind.plural}/status", "verbs": ["get", "patch", "update"]}
        listed.append(status)
    return {
        "kind": "APIResourceList",
        "apiVersion": "v1",
        "groupVersion": group_version,
        "resources": listed,
    }
