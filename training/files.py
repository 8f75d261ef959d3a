"""Writing files so that a reader never sees half of one, and naming them by content."""

import hashlib
import json
import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any


def write_atomic(path: Path, data: str | bytes) -> None:
    """Replace `path` in one step; a crash leaves the old content or the new, never a mixture."""
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data.encode() if isinstance(data, str) else data)
            file.flush()
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException:
        os.unlink(temporary)
        raise


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


def read_json(path: Path) -> Any:
    return json.loads(path.read_text())


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(
    folder: Path, *, without: str = "", read: Mapping[str, Callable[[Path], str]] | None = None
) -> str:
    """SHA-256 over the names and digests of all files below `folder`, but the one named `without`.

    `read` takes the digest of the files of a name in another way than by their bytes.
    """
    total, read = hashlib.sha256(), read or {}
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != without):
        content = read.get(path.name, file_digest)(path)
        total.update(f"{path.relative_to(folder).as_posix()}\0{content}\n".encode())
    return total.hexdigest()
