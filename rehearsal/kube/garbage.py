"""What the controller manager does behind every API server: cascading deletion, namespaces and claims."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator
from typing import Any

from rehearsal.kube.kinds import Kind
from rehearsal.kube.patch import merge
from rehearsal.kube.resources import FOREGROUND, NAMESPACE_CONTENTS, ORPHAN, Resources, Write
from rehearsal.kube.status import ApiError

Object = dict[str, Any]
log = logging.getLogger("kube.garbage")
_HOW = Write("garbage-collector")


class Housekeeper:
    """Follows the store's changes and settles their consequences, in the server's own event loop."""

    def __init__(self, resources: Resources):
        self._resources = resources
        self._store = resources.store
        self._queue = self._store.subscribe()

    async def run(self) -> None:
        while True:
            await self._queue.get()
            while not self._queue.empty():
                self._queue.get_nowait()
            try:
                while self.settle():
                    pass
            except ApiError:
                log.exception("while settling a change")
            await asyncio.sleep(0)

    def settle(self) -> bool:
        """One pass over all objects. Whether anything was changed, so that another pass is due."""
        everything = list(self._all())
        uids = {obj["metadata"]["uid"] for _, obj in everything}
        dependents: dict[str, list[tuple[Kind, Object]]] = {}
        for kind, obj in everything:
            for ref in obj["metadata"].get("ownerReferences") or []:
                dependents.setdefault(ref["uid"], []).append((kind, obj))
        changed = False
        for kind, obj in everything:
            metadata = obj["metadata"]
            owners = {ref["uid"] for ref in metadata.get("ownerReferences") or []}
            if "deletionTimestamp" in metadata:
                changed |= self._finish(kind, obj, dependents.get(metadata["uid"], []), everything)
            elif owners and owners.isdisjoint(uids):
                changed |= self._delete(kind, obj, "Background")
            elif kind.kind == "Namespace":
                changed |= self._default_account(metadata["name"])
            elif kind.kind == "PersistentVolumeClaim":
                changed |= self._bind(kind, obj)
        return changed

    def _all(self) -> Iterator[tuple[Kind, Object]]:
        for obj in self._store.every():
            kind = self._resources.registry.named(obj["apiVersion"], obj["kind"])
            if kind is not None:
                yield kind, obj

    def _finish(self, kind: Kind, obj: Object, dependents: list, everything: list) -> bool:
        """Bring an object on its way out one step further."""
        finalizers = obj["metadata"].get("finalizers") or []
        if ORPHAN in finalizers:
            for child_kind, child in dependents:
                refs = child["metadata"]["ownerReferences"]
                kept = [ref for ref in refs if ref["uid"] != obj["metadata"]["uid"]]
                self._change(child_kind, child, {"metadata": {"ownerReferences": kept}})
            return self._release(kind, obj, ORPHAN)
        if FOREGROUND in finalizers:
            if not dependents:
                return self._release(kind, obj, FOREGROUND)
            return self._delete_all(dependents, "Foreground")
        if NAMESPACE_CONTENTS in finalizers:
            name = obj["metadata"]["name"]
            contents = [(k, o) for k, o in everything if o["metadata"].get("namespace") == name]
            if not contents:
                return self._release(kind, obj, NAMESPACE_CONTENTS)
            return self._delete_all(contents, "Background")
        return False

    def _delete_all(self, objects: list, policy: str) -> bool:
        return any(
            [
                self._delete(kind, obj, policy)
                for kind, obj in objects
                if "deletionTimestamp" not in obj["metadata"]
            ]
        )

    def _delete(self, kind: Kind, obj: Object, policy: str) -> bool:
        metadata = obj["metadata"]
        try:
            self._resources.delete(
                kind, metadata.get("namespace", ""), metadata["name"], {"propagationPolicy": policy}
            )
        except ApiError as error:
            if error.code != 404:
                raise
        return True

    def _release(self, kind: Kind, obj: Object, finalizer: str) -> bool:
        left = [f for f in obj["metadata"]["finalizers"] if f != finalizer]
        self._change(kind, obj, {"metadata": {"finalizers": left}})
        return True

    def _change(self, kind: Kind, obj: Object, change: Object) -> None:
        changed = merge(obj, change)
        changed["metadata"] = {k: v for k, v in changed["metadata"].items() if k != "resourceVersion"}
        self._store.update(kind, obj["metadata"].get("namespace", ""), changed)

    def _default_account(self, namespace: str) -> bool:
        accounts = self._resources.registry.get("", "v1", "serviceaccounts")
        try:
            self._store.get(accounts, namespace, "default")
        except ApiError:
            self._resources.create(accounts, namespace, {"metadata": {"name": "default"}}, _HOW)
            return True
        return False

    def _bind(self, kind: Kind, claim: Object) -> bool:
        """Bind a claim to the volume that it names, once that exists."""
        if (claim.get("status") or {}).get("phase") == "Bound" or not claim["spec"].get("volumeName"):
            return False
        volumes = self._resources.registry.get("", "v1", "persistentvolumes")
        try:
            volume = self._store.get(volumes, "", claim["spec"]["volumeName"])
        except ApiError:
            return False
        status = {
            "phase": "Bound",
            "accessModes": claim["spec"].get("accessModes", []),
            "capacity": volume["spec"].get("capacity", {}),
        }
        self._change(volumes, volume, {"status": {"phase": "Bound"}})
        self._change(kind, claim, {"status": status})
        return True
