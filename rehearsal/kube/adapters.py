"""LoRA adapters from S3 as immutable local folders, the way Ray Serve fetches them for its engine."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from botocore.exceptions import BotoCoreError, ClientError

CONFIG = "adapter_config.json"


class AdapterError(Exception):
    """An adapter location that can't be read."""


@dataclass(frozen=True)
class LocalAdapter:
    """`name` is the folder's name below the loading path; `rank` is what its adapter_config.json states."""

    name: str
    folder: Path
    rank: int


def fetch(s3: Any, uri: str, into: Path) -> list[LocalAdapter]:
    """Every adapter below an s3:// URI, by name. Raises AdapterError.

    A folder's path names its content, so that new content never replaces the files of a running server.
    """
    parts = urlsplit(uri)
    if parts.scheme != "s3" or not parts.netloc:
        raise AdapterError(f"dynamic_lora_loading_path {uri!r} is not an s3:// URI")
    prefix = parts.path.strip("/") + "/" if parts.path.strip("/") else ""
    found: dict[str, list[dict[str, Any]]] = {}
    try:
        for page in s3.get_paginator("list_objects_v2").paginate(Bucket=parts.netloc, Prefix=prefix):
            for item in page.get("Contents") or []:
                name, _, file = item["Key"].removeprefix(prefix).partition("/")
                if file:
                    found.setdefault(name, []).append(item)
        adapters = []
        for name, items in sorted(found.items()):
            if any(item["Key"] == f"{prefix}{name}/{CONFIG}" for item in items):
                adapters.append(_local(s3, parts.netloc, f"{prefix}{name}/", name, items, into))
    except (BotoCoreError, ClientError) as error:
        raise AdapterError(f"cannot read adapters at {uri}: {error}") from error
    return adapters


def _local(
    s3: Any, bucket: str, prefix: str, name: str, items: list[dict[str, Any]], into: Path
) -> LocalAdapter:
    listing = sorted((item["Key"], item["ETag"], item["Size"]) for item in items)
    digest = hashlib.sha256(json.dumps(listing).encode()).hexdigest()[:16]
    folder = into / digest / name
    if not folder.exists():
        part = into / f"{digest}.part"
        shutil.rmtree(part, ignore_errors=True)
        for key, _, _ in listing:
            target = part / name / key.removeprefix(prefix)
            if not target.resolve().is_relative_to(part.resolve()):
                raise AdapterError(f"object {key!r} would be written outside its adapter's folder")
            target.parent.mkdir(parents=True, exist_ok=True)
            s3.download_file(bucket, key, str(target))
            target.chmod(0o444)
        part.rename(into / digest)
    try:
        rank = int(json.loads((folder / CONFIG).read_text())["r"])
    except (KeyError, ValueError, TypeError) as error:
        raise AdapterError(f"adapter {name}: {CONFIG} states no rank r") from error
    return LocalAdapter(name, folder, rank)
