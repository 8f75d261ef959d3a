"""Reading files that anybody may have written, writing them so that a reader never sees half of one, and
naming them by content."""

import hashlib
import io
import json
import os
import reprlib
import stat
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from training.errors import DataError

LARGEST = 1 << 30
"""Bytes. Nothing that a run writes to be read whole is near it; a sparse file of any size costs nothing."""


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


def append_durably(path: Path, text: str) -> None:
    """Append, and return once it would survive the loss of the node."""
    with path.open("a", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())


class Appended(NamedTuple):
    """What a file has to hold by whoever appends to it: SHA-256 `before` and `after` ("" of nothing), and its
    lines."""

    lines: int
    before: str
    after: str


class Appender:
    """Appends to a file that holds `held`, whole lines, and knows what it then has to hold whatever others do
    to it; `told` hears of it."""

    def __init__(self, path: Path, told: Callable[[Appended], None] | None = None, held: bytes = b""):
        self._path, self._told, self._total = path, told, hashlib.sha256(held)
        self._lines = held.count(b"\n")

    def append(self, text: str) -> None:
        """As `append_durably`."""
        before = self._total.hexdigest() if self._lines else ""
        append_durably(self._path, text)
        self._total.update(text.encode())
        self._lines += text.count("\n")
        if self._told:
            self._told(Appended(self._lines, before, self._total.hexdigest()))


def write_json(path: Path, value: Any) -> None:
    write_atomic(path, json.dumps(value, indent=2, sort_keys=True) + "\n")


class RepeatedKeyError(ValueError):
    """A JSON object has a key twice: readers differ in which of the two values they take."""


def parse_json(text: str | bytes) -> Any:
    """As json.loads; RepeatedKeyError where one reader could see another value than we do."""
    return json.loads(text, object_pairs_hook=_without_repeats)


def read_json(path: Path) -> Any:
    return parse_json(read_whole(path).decode())


def read_object(path: Path) -> dict[str, Any]:
    """A file that holds a JSON object. DataError when it holds anything else."""
    try:
        found = read_json(path)
        if not isinstance(found, dict):
            raise ValueError(f"a {type(found).__name__}, no object")
    except (ValueError, RecursionError) as error:
        raise DataError(f"{path} is not as it was written: {error!r}", "restore it, or remove it") from None
    return found


def required[Kind](content: Mapping[str, Any], kind: type[Kind], *keys: str, source: Path) -> Kind:
    """What an object of the JSON file `source` has below these keys. DataError that names them when it is
    missing, or of another kind."""
    found: Any = content
    for key in keys:
        found = found.get(key) if isinstance(found, dict) else None
    if type(found) is not kind:  # True would be an int as well
        what = "is missing" if found is None else f"is {reprlib.repr(found)}, no {kind.__name__}"
        raise DataError(f"{source}: {'.'.join(keys)} {what}", "restore the file as it was written")
    return found


def read_whole(path: Path, largest: int = LARGEST) -> bytes:
    """The bytes of a file; DataError, before any is read, when it is too large to be one of ours, or a pipe,
    which may never end."""
    if not stat.S_ISREG((found := path.stat()).st_mode):
        raise DataError(f"{path} is no file of its own", "no run wrote it; move it away")
    if (size := found.st_size) > largest:
        raise DataError(f"{path} has {size:,} bytes, more than {largest:,}", "no run wrote it; move it away")
    return path.read_bytes()


def _without_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) < len(pairs):
        names = [name for name, _ in pairs]
        raise RepeatedKeyError(f"{next(n for n in names if names.count(n) > 1)!r} is there twice")
    return found


def whole_lines(content: bytes) -> bytes:
    """Without a last line that was cut off."""
    return content[: content.rfind(b"\n") + 1]


def starting_lines(content: bytes, digest: str) -> bytes | None:
    """The lines with which it starts and whose SHA-256 this is; None when it starts otherwise."""
    total, size = hashlib.sha256(), 0
    for line in io.BytesIO(content):
        total.update(line)
        size += len(line)
        if total.hexdigest() == digest:
            return content[:size]
    return None


def file_digest(path: Path) -> str:
    """SHA-256 of a file's bytes, hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def tree_digest(folder: Path, *, without: str = "") -> str:
    """SHA-256 over the names and digests of all files below `folder`, but the one named `without`."""
    total = hashlib.sha256()
    for path in sorted(p for p in folder.rglob("*") if p.is_file() and p.name != without):
        total.update(f"{path.relative_to(folder).as_posix()}\0{file_digest(path)}\n".encode())
    return total.hexdigest()
