"""A run's evidence as it was at one moment: what the gate looks at twice has to be the same both times."""

import errno
import os
import shutil
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training import exports, lineage
from training.audits import contamination
from training.errors import SkypodError, SubstrateError
from training.files import LARGEST

PARTS = (
    lineage.MANIFEST, "recipe.json", "generation.json", "data", contamination.FOLDER, "evaluations",
)  # fmt: skip
"""Files and folders that a decision rests on, beside the adapter's."""
_NO_ROOM = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)


@contextmanager
def of(run_dir: Path) -> Iterator[Path]:
    """A copy of what the gate reads of a run, in a folder of the run's name, for as long as the block lasts.

    What is no file of its own, or too large to be a run's, is that in the copy as well, for the gate to
    refuse. Raises OSError for what cannot be read, SubstrateError where there is no room for the copy.
    """
    try:
        # What cannot be removed afterwards must not take the place of what was decided.
        place = tempfile.TemporaryDirectory(prefix="skypod-gate-", ignore_cleanup_errors=True)
    except OSError as error:
        raise _no_room(run_dir, error) from error
    with place as scratch:
        copy = Path(scratch) / run_dir.name
        try:
            copy.mkdir()
            for part in PARTS:
                _copy(run_dir / part, copy / part, LARGEST)
            if adapter := _adapter(run_dir, copy):
                _copy(run_dir / adapter, copy / adapter, exports.LARGEST)
        except OSError as error:
            if error.errno not in _NO_ROOM:
                raise
            raise _no_room(run_dir, error) from error
        yield copy


def _no_room(run_dir: Path, error: OSError) -> SubstrateError:
    return SubstrateError(
        f"there is no room for a copy of {run_dir.name!r} in a temporary folder: {error.strerror}",
        "make room, or set TMPDIR to another place; nothing was decided",
    )


def _adapter(run_dir: Path, copy: Path) -> Path | None:
    """Where the manifest says that the adapter lies; None, which the gate refuses in its own words, when no
    run wrote that or it lies elsewhere."""
    try:
        at = lineage.read(copy).get("adapter", {}).get("folder")
    except SkypodError:
        return None
    if not isinstance(at, str) or not Path(at).parts or Path(at).is_absolute():
        return None
    folder = run_dir.resolve() / at
    try:
        inside = folder.is_relative_to(run_dir.resolve()) and os.path.realpath(folder) == str(folder)
    except ValueError:  # no file can have such a name
        return None
    return Path(at) if inside else None


def _copy(source: Path, target: Path, largest: int) -> None:
    if source.is_symlink():
        target.symlink_to(source.readlink())
    elif source.is_dir():
        target.mkdir(parents=True, exist_ok=True)
        for entry in source.iterdir():
            _copy(entry, target / entry.name, largest)
    elif source.exists():
        found = source.stat()
        if not stat.S_ISREG(found.st_mode):
            os.mkfifo(target)
        elif found.st_size <= largest:
            shutil.copyfile(source, target)
        else:
            target.touch()
            os.truncate(target, found.st_size)  # a hole, which takes no room
