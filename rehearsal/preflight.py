"""Everything that can be known before the rehearsal starts anything."""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from rehearsal.progress import available_bytes
from training.errors import SubstrateError

MEMORY_GIB = 11
DISK_GIB = 2
NODE_MAJOR = 20


def check(root: Path, train_python: Path) -> None:
    """Raises SubstrateError for the first thing that is missing or too small, with the remedy."""
    if not sys.platform.startswith("linux"):
        raise SubstrateError(
            f"the rehearsal runs on Linux, this is {sys.platform}", "use a Linux machine or VM"
        )
    if any(character.isspace() for character in str(root)):
        raise SubstrateError(
            f"the path of this checkout holds white space, which Ray cannot start from: {str(root)!r}",
            "move the checkout",
        )
    _check_node(root)
    if not train_python.is_file():
        raise SubstrateError(f"the training environment is missing: {train_python}", "run `make install`")
    free_gib = available_bytes() / 2**30
    if free_gib < MEMORY_GIB:
        raise SubstrateError(
            f"only {free_gib:.1f} GiB of memory are free, the rehearsal needs {MEMORY_GIB}",
            "close other programs",
        )
    disk_gib = shutil.disk_usage(root).free / 2**30
    if disk_gib < DISK_GIB:
        raise SubstrateError(
            f"only {disk_gib:.1f} GiB of disk are free in {root}, the rehearsal needs {DISK_GIB}",
            "remove old folders below runs/",
        )


def _check_node(root: Path) -> None:
    node = shutil.which("node")
    if node is None:
        raise SubstrateError("Node.js is missing", f"install Node.js {NODE_MAJOR} or newer")
    asked = subprocess.run([node, "--version"], capture_output=True, text=True, check=False)
    version = asked.stdout.strip()
    major = version.lstrip("v").split(".")[0]
    if asked.returncode or not major.isdigit():
        said = (asked.stderr or version).strip()[:200]
        raise SubstrateError(
            f"{node} --version does not work: {said}", f"install Node.js {NODE_MAJOR} or newer"
        )
    if int(major) < NODE_MAJOR:
        raise SubstrateError(f"Node.js {version} is too old", f"install Node.js {NODE_MAJOR} or newer")
    if not (root / "node_modules" / ".bin" / "cdk").exists():
        raise SubstrateError("the cdk command line is not installed", "run `make install`")


@contextmanager
def only_one(state_dir: Path) -> Iterator[None]:
    """Hold the lock of this checkout; the kernel frees it when the process ends, however it ends."""
    state_dir.mkdir(parents=True, exist_ok=True)
    with _open(state_dir) as file:
        if not _lock(file):
            raise SubstrateError(
                f"a rehearsal of this checkout is running (process {holder(state_dir) or 'unknown'})",
                "wait for it, or end it with `make stop`",
            )
        try:
            file.truncate(0)
            file.write(str(os.getpid()).encode())
            file.flush()
            yield
        finally:
            file.truncate(0)


def is_running(state_dir: Path) -> bool:
    """Whether a rehearsal of this checkout holds the lock now."""
    if not state_dir.is_dir():
        return False
    with _open(state_dir) as file:
        return not _lock(file)


def holder(state_dir: Path) -> int | None:
    """The process that holds the lock, by its own word; None while it has not said so."""
    text = (state_dir / "lock").read_bytes()
    return int(text) if text.isdigit() and int(text) > 1 else None


def _open(state_dir: Path) -> BinaryIO:
    path = state_dir / "lock"
    try:
        return path.open("ab", buffering=0)
    except OSError as error:
        raise SubstrateError(f"the lock {path} cannot be opened: {error}", "remove it") from None


def _lock(file: BinaryIO) -> bool:
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True
