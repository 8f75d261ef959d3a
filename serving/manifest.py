"""adapter.json: what an adapter is, the name that follows from that, and where it came from."""

import hashlib
import json
import os
import re
import shutil
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path

from training.errors import DataError
from training.files import parse_json

WEIGHTS, CONFIG, MANIFEST = "adapter_model.safetensors", "adapter_config.json", "adapter.json"
FILES = (WEIGHTS, CONFIG, MANIFEST)
LINEAGE = ("run_id", "evaluation_digest", "licence")
FORMAT = "skypod-adapter-2"
MAX_JSON_BYTES = 4 * 2**20
MAX_WEIGHTS_BYTES = 2 * 2**30
NAME_DIGITS = 12
_PREFIX = re.compile(r"[a-z][a-z0-9-]{0,40}")
_HEX = re.compile(r"[0-9a-f]{64}")
_AGAIN = "package the adapter again"


@dataclass(frozen=True)
class Adapter:
    """The content of adapter.json.

    `digest` covers what the adapter computes, through `files` all bytes; `name` ends in its first 12 digits.
    `lineage` says where it came from and is no part of either: two runs that make equal weights make one
    adapter. `checksum` covers all other fields. Digests are SHA-256 in hexadecimal.
    """

    base_digest: str
    rank: int
    alpha: float
    targets: tuple[str, ...]
    parameters: int
    lineage: Mapping[str, str]
    files: Mapping[str, str]
    name: str = ""
    digest: str = ""
    checksum: str = ""
    format: str = FORMAT

    def named(self, prefix: str) -> "Adapter":
        """The same with the digest and name that follow from its content."""
        if not _PREFIX.fullmatch(prefix):
            raise DataError(f"an adapter's name cannot begin with {prefix!r}", "use a-z, 0-9 and -")
        digest = self._digest(*_OF_NO_CONTENT)
        named = replace(self, digest=digest, name=f"{prefix}-{digest[:NAME_DIGITS]}")
        return replace(named, checksum=named._digest("checksum"))

    def to_json(self) -> dict[str, object]:
        """All fields, as in adapter.json and for a run's manifest."""
        return asdict(replace(self, files=dict(self.files), lineage=dict(self.lineage))) | {
            "targets": list(self.targets)
        }

    def encode(self) -> bytes:
        """The bytes of adapter.json."""
        return (json.dumps(self.to_json(), indent=2, sort_keys=True) + "\n").encode()

    def check(self, contents: Mapping[str, bytes], source: str) -> None:
        """Compare weights and config with the digests; raises DataError."""
        for name, expected in self.files.items():
            found = sha256(contents[name])
            if found != expected:
                raise DataError(
                    f"{source}: {name} has digest {found}, expected {expected}",
                    f"move it away, and {_AGAIN}",
                )

    def _digest(self, *without: str) -> str:
        content = {key: value for key, value in self.to_json().items() if key not in without}
        return sha256(json.dumps(content, sort_keys=True, separators=(",", ":")).encode())


_OF_NO_CONTENT = ("name", "digest", "checksum", "lineage")
_TYPES = {
    "rank": int,
    "parameters": int,
    "alpha": (int, float),
    "targets": list,
    "files": dict,
    "lineage": dict,
}


def parse(content: bytes, source: str) -> Adapter:
    """Read adapter.json; raises DataError unless every field is sound and digest and name follow from it."""
    try:
        manifest = parse_json(content)
    except (ValueError, RecursionError) as error:
        raise DataError(f"{source} is not JSON ({error})", _AGAIN) from error
    names = {field.name for field in fields(Adapter)}
    if not isinstance(manifest, dict) or set(manifest) != names or manifest["format"] != FORMAT:
        raise DataError(f"{source} is not a manifest of format {FORMAT}", _AGAIN)
    for name in names:
        if not isinstance(manifest[name], _TYPES.get(name, str)) or isinstance(manifest[name], bool):
            raise DataError(f"{source}: {name} is {str(manifest[name])[:80]!r}", _AGAIN)
    adapter = Adapter(**{**manifest, "targets": tuple(manifest["targets"])})
    if set(adapter.lineage) != set(LINEAGE) or not all(isinstance(v, str) for v in adapter.lineage.values()):
        raise DataError(f"{source}: lineage is {str(dict(adapter.lineage))[:80]}", _AGAIN)
    if set(adapter.files) != {WEIGHTS, CONFIG}:
        raise DataError(f"{source} lists the files {sorted(adapter.files)}", _AGAIN)
    if not _HEX.fullmatch(adapter.base_digest):
        raise DataError(f"{source}: base_digest is {adapter.base_digest!r}", "expected 64 hexadecimal digits")
    prefix = adapter.name[: -NAME_DIGITS - 1]
    if not _PREFIX.fullmatch(prefix) or adapter != adapter.named(prefix):
        raise DataError(
            f"{source}: name {adapter.name!r}, digest or checksum does not follow from the content", _AGAIN
        )
    return adapter


def read_folder(directory: Path, max_weights_bytes: int) -> tuple[Adapter, dict[str, bytes]]:
    """The manifest and the bytes of a packaged adapter; links refused, names and digests checked."""
    if directory.is_symlink() or not directory.is_dir():
        raise DataError(f"{directory} is not a folder", "give the folder of a packaged adapter")
    found = sorted(entry.name for entry in os.scandir(directory))
    if found != sorted(FILES):
        raise DataError(f"{directory} holds {', '.join(found) or 'nothing'}", f"expected {', '.join(FILES)}")
    limits = {WEIGHTS: max_weights_bytes, CONFIG: MAX_JSON_BYTES, MANIFEST: MAX_JSON_BYTES}
    contents = {name: read_file(directory / name, limit) for name, limit in limits.items()}
    adapter = parse(contents[MANIFEST], str(directory / MANIFEST))
    if directory.name != adapter.name:
        raise DataError(f"{directory} holds the adapter {adapter.name}", "the folder must bear its name")
    adapter.check(contents, str(directory))
    return adapter, contents


def read_file(path: Path, max_bytes: int) -> bytes:
    """The bytes of one plain file of bounded size; neither symbolic nor hard links."""
    try:
        with open(path, "rb", opener=_open_plain) as file:
            status = os.fstat(file.fileno())
            if not stat.S_ISREG(status.st_mode) or status.st_nlink > 1:
                raise DataError(f"{path} is not a plain file of its own", "copy it instead of linking it")
            if status.st_size > max_bytes:
                raise DataError(f"{path} has {status.st_size} bytes, more than the {max_bytes} allowed")
            return file.read(max_bytes)
    except OSError as error:
        raise DataError(f"{path} cannot be read ({error.strerror})", "links are not followed") from error


def _open_plain(path: str, flags: int) -> int:
    """Without O_NONBLOCK a named pipe in the folder would hang us here."""
    return os.open(path, flags | os.O_NOFOLLOW | os.O_NONBLOCK)


def write_folder(directory: Path, contents: Mapping[str, bytes]) -> None:
    """Write a folder that appears complete or not at all; raises DataError if another holds the name."""
    directory.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=f".{directory.name}-", dir=directory.parent))
    try:
        for name, content in contents.items():
            (temporary / name).write_bytes(content)
        temporary.chmod(0o755)
        temporary.rename(directory)
    except OSError as error:
        raise DataError(f"{directory} cannot be written ({error.strerror})") from error
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def sha256(content: bytes) -> str:
    """SHA-256, hexadecimal."""
    return hashlib.sha256(content).hexdigest()
