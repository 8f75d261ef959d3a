"""A run's evidence as it was at one moment: what the gate looks at twice has to be the same both times."""

import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training import lineage
from training.audits import contamination
from training.errors import SkypodError
from training.files import LARGEST, read_whole

PARTS = (lineage.MANIFEST, "recipe.json", "data", contamination.FOLDER, "evaluations")
"""Files and folders that a decision rests on, beside the adapter's."""
_FOR_REPLAYS = "generation.json"


@contextmanager
def of(run_dir: Path) -> Iterator[Path]:
    """A copy of what the gate reads of a run, in a folder of the run's name, for as long as the block lasts.

    What is no file of its own, or too large to be a run's, is that in the copy as well, for the gate to
    refuse. Raises OSError for what cannot be read.
    """
    with tempfile.TemporaryDirectory(prefix="skypod-gate-") as scratch:
        copy = Path(scratch) / run_dir.name
        copy.mkdir()
        for part in (*PARTS, _FOR_REPLAYS):
            _copy(run_dir / part, copy / part)
        if adapter := _adapter(copy):
            _copy(run_dir / adapter, copy / adapter)
        yield copy


def _adapter(copy: Path) -> Path | None:
    """Where the manifest says that the adapter lies, if that is within the run."""
    try:
        at = lineage.read(copy).get("adapter", {}).get("folder")
    except SkypodError:
        return None  # which the gate says in its own words
    inside = isinstance(at, str) and at and not Path(at).is_absolute() and ".." not in Path(at).parts
    return Path(at) if inside else None


def _copy(source: Path, target: Path) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            _copy(entry, target / entry.name)
    elif source.exists():
        target.parent.mkdir(parents=True, exist_ok=True)
        found = source.stat()
        if not stat.S_ISREG(found.st_mode):
            os.mkfifo(target)
        elif found.st_size <= LARGEST:
            target.write_bytes(read_whole(source))
        else:
            target.touch()
            os.truncate(target, found.st_size)  # a hole, which takes no room
