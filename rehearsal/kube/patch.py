"""Patches (merge, strategic merge) and server-side apply on plain dictionaries.

Lists are owned and replaced whole by server-side apply. The real server merges some of them by key; with one
manager per list, as here, the outcome is the same.
"""

from __future__ import annotations

import copy
from typing import Any

from rehearsal.kube.status import ApiError
from rehearsal.kube.store import now

Object = dict[str, Any]
Path = tuple[str, ...]

# The keys by which a strategic merge patch merges lists of objects, by the list's field name.
_MERGE_KEYS = {
    "conditions": "type",
    "containers": "name",
    "env": "name",
    "imagePullSecrets": "name",
    "initContainers": "name",
    "ownerReferences": "uid",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
# Fields of the server, which no manager owns.
_UNOWNED: tuple[Path, ...] = (
    ("apiVersion",),
    ("kind",),
    *(
        ("metadata", key)
        for key in (
            "creationTimestamp",
            "deletionGracePeriodSeconds",
            "deletionTimestamp",
            "generation",
            "managedFields",
            "name",
            "namespace",
            "resourceVersion",
            "uid",
        )
    ),
)


def merge(target: Any, patch: Any) -> Any:
    """RFC 7386: null removes, objects merge, everything else replaces."""
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = merge(result.get(key), value)
    return result


def strategic(target: Any, patch: Any, field: str = "") -> Any:
    """A merge patch that merges the well-known lists of objects by their key."""
    if isinstance(patch, list) and field in _MERGE_KEYS and isinstance(target, list):
        key = _MERGE_KEYS[field]
        merged = {item.get(key): item for item in target}
        for item in patch:
            if item.get("$patch") == "delete":
                merged.pop(item.get(key), None)
            else:
                merged[item.get(key)] = strategic(merged.get(item.get(key)), item)
        return list(merged.values())
    if not isinstance(patch, dict):
        return copy.deepcopy(patch)
    result = dict(target) if isinstance(target, dict) else {}
    for key, value in patch.items():
        if value is None:
            result.pop(key, None)
        else:
            result[key] = strategic(result.get(key), value, key)
    return result


def leaves(obj: Any, path: Path = ()) -> dict[Path, Any]:
    """Every owned leaf (scalar, list or empty object) with its path."""
    if path in _UNOWNED:
        return {}
    if isinstance(obj, dict) and (obj or not path):
        found: dict[Path, Any] = {}
        for key, value in obj.items():
            found.update(leaves(value, (*path, key)))
        return found
    return {path: obj}


def apply(
    live: Object | None, applied: Object, manager: str, *, force: bool, subresource: str = ""
) -> Object:
    """Server-side apply: what the object becomes, managedFields included.

    Raises a 409 that lists the fields which other managers own with other values, unless `force`.
    """
    wanted = leaves(applied)
    result = copy.deepcopy(live) if live else {}
    owners = _owners(result)
    me = (manager, "Apply", subresource)
    present = leaves(result)
    rivals: dict[Path, str] = {}
    for owner, owned in owners.items():
        if owner == me:
            continue
        for path in owned:
            clash = [want for want in wanted if _overlap(want, path)]
            if any(present.get(want, _ABSENT) != wanted[want] for want in clash):
                rivals[path] = owner[0]
    if rivals and not force:
        raise ApiError(
            409,
            f"Apply failed with {len(rivals)} conflict{'s' if len(rivals) > 1 else ''}: "
            + ", ".join(f'conflict with "{owner}": .{".".join(path)}' for path, owner in rivals.items()),
            causes=[
                {
                    "reason": "FieldManagerConflict",
                    "message": f'conflict with "{owner}"',
                    "field": "." + ".".join(path),
                }
                for path, owner in rivals.items()
            ],
        )
    for owner in owners:
        if owner != me:
            owners[owner] -= set(rivals)
    shared = set().union(*(owned for owner, owned in owners.items() if owner != me))
    for path in owners.get(me, set()) - set(wanted) - shared:
        _remove(result, path)
    result = merge(result, applied)
    owners[me] = set(wanted)
    _write_owners(result, owners, applied.get("apiVersion", ""))
    return result


def record_update(before: Object | None, after: Object, manager: str, subresource: str = "") -> None:
    """Note in `after`'s managedFields which leaves `manager` set by a create, replace or patch."""
    old = leaves(before) if before else {}
    new = leaves(after)
    changed = {path for path, value in new.items() if old.get(path, _ABSENT) != value}
    source = {"metadata": {"managedFields": ((before or {}).get("metadata") or {}).get("managedFields", [])}}
    owners = {owner: (owned - changed) & set(new) for owner, owned in _owners(source).items()}
    if changed:
        owners.setdefault((manager, "Update", subresource), set()).update(changed)
    _write_owners(after, owners, after.get("apiVersion", ""), source["metadata"]["managedFields"])


_ABSENT = object()


def _overlap(one: Path, other: Path) -> bool:
    shorter = min(len(one), len(other))
    return one[:shorter] == other[:shorter]


def _remove(obj: Object, path: Path) -> None:
    """Remove a leaf and the objects that it leaves empty."""
    trail = []
    for key in path[:-1]:
        if not isinstance(obj.get(key), dict):
            return
        trail.append((obj, key))
        obj = obj[key]
    obj.pop(path[-1], None)
    for parent, key in reversed(trail):
        if not parent[key]:
            del parent[key]


def _owners(obj: Object) -> dict[tuple[str, str, str], set[Path]]:
    found = {}
    for entry in (obj.get("metadata") or {}).get("managedFields", []):
        key = (entry["manager"], entry["operation"], entry.get("subresource", ""))
        found[key] = set(_flatten(entry.get("fieldsV1", {})))
    return found


def _flatten(fields: Object, path: Path = ()) -> list[Path]:
    if not fields:
        return [path] if path else []
    return [
        leaf for key, value in fields.items() for leaf in _flatten(value, (*path, key.removeprefix("f:")))
    ]


def _write_owners(
    obj: Object,
    owners: dict[tuple[str, str, str], set[Path]],
    api_version: str,
    previous: list[Object] | None = None,
) -> None:
    times = {
        (e["manager"], e["operation"], e.get("subresource", "")): (e["fieldsV1"], e["time"])
        for e in previous or obj["metadata"].get("managedFields", [])
    }
    entries = []
    for (manager, operation, subresource), owned in owners.items():
        if not owned:
            continue
        fields: Object = {}
        for path in sorted(owned):
            node = fields
            for key in path:
                node = node.setdefault(f"f:{key}", {})
        old_fields, old_time = times.get((manager, operation, subresource), (None, ""))
        entries.append(
            {
                "manager": manager,
                "operation": operation,
                "apiVersion": api_version,
                "time": old_time if old_fields == fields else now(),
                "fieldsType": "FieldsV1",
                "fieldsV1": fields,
            }
            | ({"subresource": subresource} if subresource else {})
        )
    obj["metadata"]["managedFields"] = entries
