"""The environment variables of a container's process on a laptop."""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rehearsal.kube.volumes import VolumeError, decoded, field

Object = dict[str, Any]
# What a process takes over from this machine. Nothing else leaks in: above all no RAY_ADDRESS, no AWS
# credentials of the user and no PYTHONDONTWRITEBYTECODE.
_INHERITED = ("HOME", "LANG", "LC_ALL", "TMPDIR", "TZ", "USER", "LD_LIBRARY_PATH", "SKYPOD_REHEARSAL")
# Settings that a process needs on this machine whatever the cluster's manifest says.
LOOPBACK = {
    "GLOO_SOCKET_IFNAME": "lo",
    "TP_SOCKET_IFNAME": "lo",
    "MASTER_ADDR": "127.0.0.1",
    "VLLM_HOST_IP": "127.0.0.1",
    "OMP_NUM_THREADS": "1",
    "MKL_NUM_THREADS": "1",
    "OPENBLAS_NUM_THREADS": "1",
    "TOKENIZERS_PARALLELISM": "false",
    "TORCH_COMPILE_DISABLE": "1",
    "HF_HUB_OFFLINE": "1",
    "HF_HUB_DISABLE_TELEMETRY": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "DO_NOT_TRACK": "1",
    "PYTHONUNBUFFERED": "1",
    "NO_PROXY": "127.0.0.1,localhost",
    "no_proxy": "127.0.0.1,localhost",
}
RAY = {
    # Without this Ray's workers run at nice 15 and starve beside anything else.
    "RAY_worker_niceness": "0",
    # A node of the manifest has dozens of CPUs; this machine has not.
    "RAY_prestart_worker_first_driver": "0",
    "RAY_enable_worker_prestart": "0",
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_DISABLE_IMPORT_WARNING": "1",
    # Ray replaces 127.0.0.1 by the machine's outer address unless it is told that there is none.
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",
}
_REFERENCE = re.compile(r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)")


def build(
    pod: Object,
    container: Object,
    rewrite: Callable[[str], str],
    read: Callable[[str, str], Object | None],
    *,
    train_bin: Path,
    project_dir: Path,
    aws: dict[str, str],
) -> dict[str, str]:
    """All variables of a container: this machine's, the manifest's (paths rewritten), then the forced ones.

    Raises VolumeError when a Secret or ConfigMap that the manifest names doesn't exist (yet).
    """
    env = {key: os.environ[key] for key in _INHERITED if key in os.environ}
    env["PATH"] = f"{train_bin}:{os.environ.get('PATH', os.defpath)}"
    # The container image has this project installed; the training environment may see it only by path.
    env["PYTHONPATH"] = str(project_dir)
    env |= aws | {"VIRTUAL_ENV": str(train_bin.parent)}
    own: dict[str, str] = {}
    for source in container.get("envFrom") or []:
        own |= _all_of(source, read)
    for entry in container.get("env") or []:
        value = _value(entry, pod, container, read)
        if value is not None:
            own[entry["name"]] = expand(rewrite(value), own)
    env |= own | LOOPBACK | RAY
    env.pop("RAY_ADDRESS", None)
    return env


def expand(text: str, variables: dict[str, str]) -> str:
    """Kubernetes' $(NAME) references; an unknown one stays as it is, $$ is a dollar sign."""
    return _REFERENCE.sub(
        lambda match: "$" if match[0] == "$$" else variables.get(match[1], match[0]),
        text,
    )


def _all_of(source: Object, read: Callable[[str, str], Object | None]) -> dict[str, str]:
    for key, kind in (("secretRef", "Secret"), ("configMapRef", "ConfigMap")):
        if key in source:
            holder = read(kind, source[key]["name"])
            if holder is None and not source[key].get("optional"):
                raise VolumeError(f'{kind.lower()} "{source[key]["name"]}" not found')
            prefix = source.get("prefix", "")
            return {prefix + name: value.decode() for name, value in decoded(holder).items()}
    return {}


def _value(entry: Object, pod: Object, container: Object, read) -> str | None:
    source = entry.get("valueFrom")
    if source is None:
        return str(entry.get("value", ""))
    if "fieldRef" in source:
        return field(pod, source["fieldRef"]["fieldPath"])
    if "resourceFieldRef" in source:
        group, _, name = source["resourceFieldRef"]["resource"].partition(".")
        return str(((container.get("resources") or {}).get(group) or {}).get(name, ""))
    for key, kind in (("secretKeyRef", "Secret"), ("configMapKeyRef", "ConfigMap")):
        if key in source:
            wanted = source[key]
            data = decoded(read(kind, wanted["name"]))
            if wanted["key"] in data:
                return data[wanted["key"]].decode()
            if wanted.get("optional"):
                return None
            raise VolumeError(f'{kind.lower()} "{wanted["name"]}" has no key {wanted["key"]}')
    raise VolumeError(f"env {entry['name']}: unknown source {', '.join(source)}")
