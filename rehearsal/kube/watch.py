"""Watches: the stream of changes to one kind, filtered as the client asked."""

from __future__ import annotations

import asyncio
import copy
import json
import re
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from rehearsal.kube.kinds import Kind
from rehearsal.kube.status import ApiError
from rehearsal.kube.store import Change, Store

Object = dict[str, Any]
Filter = Callable[[Object], bool]
BOOKMARK_S = 10.0
LONGEST_S = 1800.0


async def stream(
    store: Store,
    kind: Kind,
    namespace: str,
    keep: Filter,
    *,
    resource_version: str,
    timeout_s: float,
    bookmarks: bool,
) -> AsyncIterator[bytes]:
    """Lines of JSON events until `timeout_s` has passed.

    Without a resource version the stream begins with every object that exists, as ADDED. An object that
    starts or stops to match the filter is ADDED or DELETED for this watcher.
    """
    queue = store.subscribe()
    try:
        if resource_version in ("", "0"):
            for obj in store.list(kind, namespace):
                if keep(obj):
                    yield _line("ADDED", obj)
            seen = store.version
        else:
            try:
                missed = store.since(int(resource_version))
            except ApiError as error:
                yield _line("ERROR", error.body())
                return
            seen = store.version
            for change in missed:
                if line := _seen_through(change, kind, namespace, keep):
                    yield line
        deadline = time.monotonic() + min(timeout_s, LONGEST_S)
        while (left := deadline - time.monotonic()) > 0:
            try:
                change = await asyncio.wait_for(queue.get(), min(left, BOOKMARK_S))
            except TimeoutError:
                if bookmarks:
                    yield _bookmark(kind, store.version)
                continue
            if change.version > seen and (line := _seen_through(change, kind, namespace, keep)):
                yield line
        if bookmarks:
            yield _bookmark(kind, store.version)
    finally:
        store.unsubscribe(queue)


def label_filter(selector: str) -> Filter:
    """A label selector (=, ==, !=, in, notin, exists, !exists) as a predicate. Raises a 400."""
    tests: list[Filter] = []
    for term in re.findall(r"(?:[^,(]|\([^)]*\))+", selector):
        tests.append(_label_test(term.strip()))
    return lambda obj: all(test(obj) for test in tests)


def field_filter(selector: str) -> Filter:
    """A field selector (dotted path = or != value) as a predicate."""
    tests: list[Filter] = []
    for term in filter(None, selector.split(",")):
        match = re.match(r"^\s*([\w.]+)\s*(!=|==|=)\s*(.*?)\s*$", term)
        if not match:
            raise ApiError(400, f"invalid field selector: {term!r}")
        tests.append(_field_test(match[1].split("."), match[2] == "!=", match[3]))
    return lambda obj: all(test(obj) for test in tests)


def _field_test(path: list[str], negated: bool, value: str) -> Filter:
    def test(obj: Object) -> bool:
        node: Any = obj
        for key in path:
            node = node.get(key, "") if isinstance(node, dict) else ""
        return (str(node) == value) != negated

    return test


def _label_test(term: str) -> Filter:
    if match := re.match(r"^([\w./-]+)\s+(in|notin)\s+\(([^)]*)\)$", term):
        key, negated = match[1], match[2] == "notin"
        values = {value.strip() for value in match[3].split(",")}
        return lambda obj: (_labels(obj).get(key) in values) != negated
    if match := re.match(r"^([\w./-]+)\s*(!=|==|=)\s*([\w.-]*)$", term):
        key, negated, value = match[1], match[2] == "!=", match[3]
        return lambda obj: (_labels(obj).get(key) == value) != negated
    if match := re.match(r"^(!?)([\w./-]+)$", term):
        key, negated = match[2], bool(match[1])
        return lambda obj: (key in _labels(obj)) != negated
    raise ApiError(400, f"unable to parse requirement in label selector: {term!r}")


def _labels(obj: Object) -> dict[str, str]:
    return obj["metadata"].get("labels") or {}


def _seen_through(change: Change, kind: Kind, namespace: str, keep: Filter) -> bytes | None:
    if change.storage != kind.storage:
        return None
    obj = copy.copy(change.object) | {"apiVersion": kind.api_version, "kind": kind.kind}
    if namespace and obj["metadata"].get("namespace") != namespace:
        return None
    before = bool(change.before) and keep(change.before)
    after = change.type != "DELETED" and keep(obj)
    if after:
        return _line("MODIFIED" if before else "ADDED", obj)
    return _line("DELETED", obj) if before else None


def _bookmark(kind: Kind, version: int) -> bytes:
    metadata = {"resourceVersion": str(version), "creationTimestamp": None}
    return _line("BOOKMARK", {"kind": kind.kind, "apiVersion": kind.api_version, "metadata": metadata})


def _line(kind: str, obj: Object) -> bytes:
    return json.dumps({"type": kind, "object": obj}).encode() + b"\n"
