"""A full disk: a run's checkpoints on a small file system of their own, and a file that takes its room."""

import errno
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from pathlib import Path

SIZE_MIB = 16
"""Room for the checkpoints that the drill's recipe keeps, several times over."""
_BALLAST = "ballast"


@cache
def why_not() -> str:
    """Why this machine cannot have a small file system mounted, "" where it can.

    Takes this process into mounts of its own: they end with it and its children, however that happens.
    """
    try:
        os.unshare(os.CLONE_NEWNS)
        subprocess.run(["mount", "--make-rprivate", "/"], check=True, capture_output=True)
    except (OSError, subprocess.CalledProcessError):
        return "file systems cannot be mounted here (needs root)"
    return ""


@contextmanager
def small(folder: Path) -> Iterator[None]:
    """`folder`, which must not exist, is a file system of SIZE_MIB; what is in it at the end stays."""
    folder.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={SIZE_MIB}m", "skypod-drill", folder], check=True)
    kept = folder.with_name(f".{folder.name}.kept")
    try:
        yield
    finally:
        shutil.copytree(folder, kept)
        subprocess.run(["umount", "--lazy", folder], check=True)
        folder.rmdir()
        kept.rename(folder)


def fill(folder: Path) -> None:
    """Take all room that is left."""
    with (folder / _BALLAST).open("wb", buffering=0) as file:
        try:
            while file.write(bytes(4096)):
                pass
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise


def free(folder: Path) -> None:
    """Give it back."""
    (folder / _BALLAST).unlink()
