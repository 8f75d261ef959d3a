"""The objects of the stand-in, in memory, with resource versions and a log of changes for watchers.

Used from one event loop only, so it takes no locks. Objects handed out are copies.
"""

from __future__ import annotations

import asyncio
import copy
import uuid
from collections import deque
from collections.abc import Callable
from datetime import UTC, datetime
from typing import Any

from rehearsal.kube.kinds import Kind
from rehearsal.kube.status import ApiError, conflict, not_found

Object = dict[str, Any]
KEPT_CHANGES = 4096


def now() -> str:
    """The present in Kubernetes' time format (UTC, whole seconds)."""
    return datetime.now(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


class Change:
    """One event of the log: the object after it (or the last state before deletion), and its predecessor."""

    __slots__ = ("before", "object", "storage", "type", "version")

    def __init__(self, version: int, storage: tuple[str, str], kind: str, obj: Object, before: Object | None):
        self.version = version
        self.storage = storage
        self.type = kind
        self.object = obj
        self.before = before


class Store:
    def __init__(self) -> None:
        self.version = 1
        self._objects: dict[tuple[str, str], dict[tuple[str, str], Object]] = {}
        self._log: deque[Change] = deque(maxlen=KEPT_CHANGES)
        self._watchers: set[asyncio.Queue[Change]] = set()

    # Reading

    def get(self, kind: Kind, namespace: str, name: str) -> Object:
        """A copy of one object, in `kind`'s version. Raises a 404."""
        stored = self._objects.get(kind.storage, {}).get((namespace, name))
        if stored is None:
            raise not_found(kind.qualified, name)
        return copy.deepcopy(stored) | {"apiVersion": kind.api_version, "kind": kind.kind}

    def list(self, kind: Kind, namespace: str = "") -> list[Object]:
        """Copies of all objects of a kind, in one namespace or ("") in all, by namespace and name."""
        rows = sorted(self._objects.get(kind.storage, {}).items())
        return [
            copy.deepcopy(obj) | {"apiVersion": kind.api_version, "kind": kind.kind}
            for (found, _), obj in rows
            if not namespace or found == namespace
        ]

    def every(self) -> list[Object]:
        """All objects of all kinds, not copied: for looking only."""
        return [obj for shelf in self._objects.values() for obj in shelf.values()]

    # Writing

    def create(self, kind: Kind, namespace: str, obj: Object) -> Object:
        """Store a new object with uid, generation and creation time. Raises a 409 where the name is taken."""
        obj = copy.deepcopy(obj)
        name = obj["metadata"]["name"]
        shelf = self._objects.setdefault(kind.storage, {})
        if (namespace, name) in shelf:
            raise ApiError(
                409,
                f'{kind.qualified} "{name}" already exists',
                reason="AlreadyExists",
                details={"name": name, "group": kind.group, "kind": kind.plural},
            )
        obj["metadata"].update(uid=str(uuid.uuid4()), creationTimestamp=now(), generation=1)
        if namespace:
            obj["metadata"]["namespace"] = namespace
        return self._put(kind, namespace, obj, "ADDED", None)

    def update(self, kind: Kind, namespace: str, obj: Object, mutate: Callable[[Object], None] | None = None):
        """Replace an object. A resourceVersion in it must be the current one (409 otherwise).

        The generation rises when anything but metadata and status changed. An update that changes nothing
        keeps the resource version and wakes no watcher. An object on its way out (deletionTimestamp) goes
        once its last finalizer is removed.
        """
        obj = copy.deepcopy(obj)
        name = obj["metadata"]["name"]
        before = self.get(kind, namespace, name)
        asked = obj["metadata"].get("resourceVersion")
        if asked and asked != before["metadata"]["resourceVersion"]:
            raise conflict(
                kind.qualified,
                name,
                "the object has been modified; please apply your changes to the latest version and try again",
            )
        asked_uid = obj["metadata"].get("uid")
        if asked_uid and asked_uid != before["metadata"]["uid"]:
            raise conflict(kind.qualified, name, f"uid {asked_uid} is not that of the stored object")
        for key in ("uid", "creationTimestamp", "generation", "resourceVersion", "namespace"):
            if key in before["metadata"]:
                obj["metadata"][key] = before["metadata"][key]
        for key in ("deletionTimestamp", "deletionGracePeriodSeconds"):
            if key in before["metadata"]:
                obj["metadata"].setdefault(key, before["metadata"][key])
        if mutate:
            mutate(obj)
        if _content(obj) != _content(before):
            obj["metadata"]["generation"] = before["metadata"]["generation"] + 1
        if "deletionTimestamp" in obj["metadata"] and not obj["metadata"].get("finalizers"):
            held = obj["metadata"].get("deletionGracePeriodSeconds")
            if not held:
                return self._drop(kind, namespace, obj)
        if _without_bookkeeping(obj) == _without_bookkeeping(before):
            return before
        return self._put(kind, namespace, obj, "MODIFIED", before)

    def delete(self, kind: Kind, namespace: str, name: str) -> Object:
        """Remove an object now, whatever its finalizers."""
        return self._drop(kind, namespace, self.get(kind, namespace, name))

    def _put(self, kind: Kind, namespace: str, obj: Object, change: str, before: Object | None) -> Object:
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        for key in ("finalizers", "managedFields", "ownerReferences"):
            if not obj["metadata"].get(key):
                obj["metadata"].pop(key, None)
        obj["apiVersion"], obj["kind"] = kind.api_version, kind.kind
        self._objects.setdefault(kind.storage, {})[(namespace, obj["metadata"]["name"])] = obj
        self._announce(Change(self.version, kind.storage, change, copy.deepcopy(obj), before))
        return copy.deepcopy(obj)

    def _drop(self, kind: Kind, namespace: str, obj: Object) -> Object:
        self._objects[kind.storage].pop((namespace, obj["metadata"]["name"]))
        self.version += 1
        obj["metadata"]["resourceVersion"] = str(self.version)
        self._announce(Change(self.version, kind.storage, "DELETED", copy.deepcopy(obj), obj))
        return obj

    # Watching

    def since(self, version: int) -> list[Change]:
        """Changes after `version`. Raises a 410 when the log no longer reaches back that far."""
        oldest = self._log[0].version if len(self._log) == KEPT_CHANGES else 0
        if version and version + 1 < oldest:
            raise ApiError(410, f"too old resource version: {version} ({oldest})")
        return [change for change in self._log if change.version > version]

    def subscribe(self) -> asyncio.Queue[Change]:
        queue: asyncio.Queue[Change] = asyncio.Queue()
        self._watchers.add(queue)
        return queue

    def unsubscribe(self, queue: asyncio.Queue[Change]) -> None:
        self._watchers.discard(queue)

    def _announce(self, change: Change) -> None:
        self._log.append(change)
        for queue in self._watchers:
            queue.put_nowait(change)


def _content(obj: Object) -> Object:
    return {key: value for key, value in obj.items() if key not in ("metadata", "status")}


def _without_bookkeeping(obj: Object) -> Object:
    metadata = {k: v for k, v in obj["metadata"].items() if k not in ("managedFields", "resourceVersion")}
    return obj | {"metadata": metadata}
