"""What can befall a checkpoint on disk while nobody writes it, in the folder `checkpoints` of a run."""

import os
import shutil
from pathlib import Path

from training.checkpoints.store import META

_FIRST = "step-*"


def newest(checkpoints: Path) -> Path:
    """The folder of the last step; there has to be one."""
    return max(checkpoints.glob(_FIRST))


def tear(checkpoints: Path) -> None:
    """As a file system leaves it that renamed before it wrote: the last file is there with half its bytes."""
    meta = newest(checkpoints) / META
    _cut(meta, meta.stat().st_size // 2)


def truncate(checkpoints: Path) -> None:
    """The largest file ends early."""
    largest = _largest(newest(checkpoints))
    _cut(largest, largest.stat().st_size - 1)


def flip(checkpoints: Path) -> None:
    """One bit in the middle of the largest file."""
    largest = _largest(newest(checkpoints))
    with largest.open("r+b") as file:
        file.seek(largest.stat().st_size // 2)
        (byte,) = file.read(1)
        file.seek(-1, os.SEEK_CUR)
        file.write(bytes([byte ^ 1]))


def remove(checkpoints: Path) -> None:
    """The whole folder is gone, and the pointer names it still."""
    shutil.rmtree(newest(checkpoints))


def plant(checkpoints: Path, foreign: Path) -> Path:
    """A whole checkpoint of another run, as the step after the newest; the folder that was planted."""
    last = newest(checkpoints)
    planted = last.with_name(f"step-{int(last.name.removeprefix('step-')) + 1:06d}")
    shutil.copytree(newest(foreign), planted)
    return planted


def _largest(folder: Path) -> Path:
    return max((path for path in folder.rglob("*") if path.is_file()), key=lambda path: path.stat().st_size)


def _cut(path: Path, size: int) -> None:
    with path.open("r+b") as file:
        file.truncate(size)
