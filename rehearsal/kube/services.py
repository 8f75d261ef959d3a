"""Addresses of services inside the cluster, as a process on this machine can reach them."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

from rehearsal.kube.volumes import VolumeError

Object = dict[str, Any]
LOCAL_PORTS_ANNOTATION = "rehearsal.skypod/local-ports"
"""On a Service: {port of the service: port on loopback behind it}."""
_ADDRESS = re.compile(r"(?<![\w.-])([a-z0-9-]+)\.([a-z0-9-]+)\.svc(?:\.cluster\.local)?:(\d+)")


def resolve(text: str, read: Callable[[str, str, str], Object | None]) -> str:
    """Replace every `NAME.NAMESPACE.svc:PORT` by its place on loopback: nobody answers DNS here.

    `read(kind, namespace, name)` is an object or None. Raises VolumeError while there is no such service.
    """

    def local(match: re.Match[str]) -> str:
        name, namespace, port = match.groups()
        service = read("Service", namespace, name)
        annotations = (service or {"metadata": {}})["metadata"].get("annotations") or {}
        found = json.loads(annotations.get(LOCAL_PORTS_ANNOTATION, "{}")).get(port)
        if found is None:
            raise VolumeError(f"no service answers at {match[0]}")
        return f"127.0.0.1:{found}"

    return _ADDRESS.sub(local, text)
