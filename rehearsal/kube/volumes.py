"""A pod's volumes on a laptop: local folders, and the rewriting of container paths into them."""

from __future__ import annotations

import base64
import re
import shutil
from pathlib import Path
from typing import Any

Object = dict[str, Any]


class VolumeError(Exception):
    """A volume that cannot be had yet (a Secret that doesn't exist) or never (an unknown kind)."""


class Volumes:
    """Makes the folders of one pod and rewrites its strings.

    shared_dir: the local folder behind the claim `shared`; other claims get a folder under volumes_dir.
    """

    def __init__(self, shared_dir: Path, volumes_dir: Path, shared_claim: str = "shared"):
        self._shared_dir = shared_dir
        self._volumes_dir = volumes_dir
        self._shared_claim = shared_claim

    def prepare(self, pod: Object, pod_dir: Path, read: Any) -> dict[str, Path]:
        """Folders by volume name. `read(kind, name)` returns a Secret's or ConfigMap's dictionary or None."""
        folders = {}
        for volume in pod["spec"].get("volumes") or []:
            name = volume["name"]
            own = pod_dir / "volumes" / name
            if claim := volume.get("persistentVolumeClaim"):
                folders[name] = self._claim(pod["metadata"]["namespace"], claim["claimName"])
            elif "emptyDir" in volume:
                own.mkdir(parents=True, exist_ok=True)
                folders[name] = own
            elif host_path := volume.get("hostPath"):
                # A node's own folder stays inside the pod's: the laptop's folders are not the cluster's.
                folders[name] = own / host_path["path"].strip("/")
                folders[name].mkdir(parents=True, exist_ok=True)
            else:
                files = self._files(volume, pod, read)
                _write(own, files)
                folders[name] = own
        return folders

    def _claim(self, namespace: str, claim: str) -> Path:
        if claim == self._shared_claim:
            return self._shared_dir
        folder = self._volumes_dir / namespace / claim
        folder.mkdir(parents=True, exist_ok=True)
        return folder

    def _files(self, volume: Object, pod: Object, read: Any) -> dict[str, bytes]:
        sources = volume["projected"]["sources"] if "projected" in volume else [volume]
        files: dict[str, bytes] = {}
        for source in sources:
            if "secret" in source:
                name = source["secret"].get("secretName") or source["secret"].get("name")
                files |= _items(source["secret"], read("Secret", name), f"secret {name}")
            elif "configMap" in source:
                name = source["configMap"]["name"]
                files |= _items(source["configMap"], read("ConfigMap", name), f"configmap {name}")
            elif "downwardAPI" in source:
                for item in source["downwardAPI"].get("items") or []:
                    files[item["path"]] = field(pod, item["fieldRef"]["fieldPath"]).encode()
            elif "serviceAccountToken" not in source:
                kind = next((key for key in source if key != "name"), "?")
                raise VolumeError(f"volume {volume['name']}: {kind} has no counterpart on this machine")
        return files


class Rewriter:
    """Replaces the container paths of one container's mounts by local folders, in any string."""

    def __init__(self, container: Object, folders: dict[str, Path]):
        self._local: dict[str, str] = {}
        for mount in container.get("volumeMounts") or []:
            path = mount["mountPath"].rstrip("/")
            # The machine's own /dev/shm serves as it is.
            if path != "/dev/shm":  # noqa: S108
                if mount["name"] not in folders:
                    raise VolumeError(
                        f"volumeMount {mount['mountPath']}: the pod has no volume {mount['name']}"
                    )
                folder = folders[mount["name"]]
                self._local[path] = str(folder / mount["subPath"] if "subPath" in mount else folder)
        longest_first = sorted(self._local, key=len, reverse=True)
        choices = "|".join(re.escape(path) for path in longest_first)
        # A path stands alone or is followed by "/": /shared, /shared/x, but not /shared2 or /opt/shared.
        self._pattern = re.compile(rf"(?<![\w./-])({choices})(?=/|$|[^\w./-])") if choices else None

    def __call__(self, text: str) -> str:
        return self._pattern.sub(lambda match: self._local[match[1]], text) if self._pattern else text


def field(pod: Object, path: str) -> str:
    """A field of the pod as the downward API gives it."""
    if path == "status.podIP" or path == "status.hostIP":
        return "127.0.0.1"
    match = re.match(r"^metadata\.(labels|annotations)\['([^']+)'\]$", path)
    if match:
        return (pod["metadata"].get(match[1]) or {}).get(match[2], "")
    node: Any = pod
    for key in path.split("."):
        node = node.get(key, "") if isinstance(node, dict) else ""
    return str(node)


def decoded(secret: Object | None) -> dict[str, bytes]:
    """The data of a Secret or ConfigMap as bytes."""
    if secret is None:
        return {}
    if secret.get("kind") == "ConfigMap":
        return {key: value.encode() for key, value in (secret.get("data") or {}).items()}
    return {key: base64.b64decode(value) for key, value in (secret.get("data") or {}).items()}


def _items(source: Object, holder: Object | None, what: str) -> dict[str, bytes]:
    if holder is None:
        if source.get("optional"):
            return {}
        raise VolumeError(f"{what} not found")
    data = decoded(holder)
    if not source.get("items"):
        return data
    return {item["path"]: data[item["key"]] for item in source["items"] if item["key"] in data}


def _write(folder: Path, files: dict[str, bytes]) -> None:
    """Files that only this user may read: they may be secrets."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    folder.chmod(0o700)
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch(mode=0o600)
        path.write_bytes(content)
