"""Readiness probes of containers, on loopback."""

from __future__ import annotations

import urllib.error
import urllib.request
from typing import Any

from rehearsal.kube.containers import Container
from rehearsal.kube.ports import accepts

Object = dict[str, Any]
_LONGEST_S = 2.0


def passes(probe: Object | None, container: Container) -> bool:
    """Whether the probe succeeds now. Without a probe a running container is ready.

    `exec` probes hold for a container's own file system and network, which do not exist here: a container
    that has one is ready while it runs.
    """
    if container.exit_code is not None:
        return False
    timeout_s = min(float((probe or {}).get("timeoutSeconds", 1)), _LONGEST_S)
    match probe or {}:
        case {"httpGet": target}:
            headers = {header["name"]: header["value"] for header in target.get("httpHeaders") or []}
            return _answers(f"http://127.0.0.1:{target['port']}{target.get('path', '/')}", headers, timeout_s)
        case {"tcpSocket": target}:
            return accepts(int(target["port"]), timeout_s)
    return True


def _answers(url: str, headers: dict[str, str], timeout_s: float) -> bool:
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        # The address is on loopback by construction.
        with opener.open(urllib.request.Request(url, headers=headers), timeout=timeout_s) as answer:  # noqa: S310
            return 200 <= answer.status < 400
    except (urllib.error.URLError, OSError, ValueError):
        return False
