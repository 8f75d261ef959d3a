"""Where a run's checkpoints live: each a folder that appears whole, is checked when read, and is bounded.

    checkpoints/step-000012/checkpoint.json     identity, state, size and SHA-256 of every other file
                            adapter/            as PEFT writes it
                            optimizer.safetensors
    checkpoints/latest.json                     for people and other programs; nothing relies on it

A folder is written under a hidden name and renamed once everything in it is on disk. The newest folder that
checks out is the one to go on from, whatever `latest.json` says: a crash may come between the two.
"""

import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from training.errors import DataError, visible
from training.files import file_digest, read_json, write_json

FORMAT = 1
META, POINTER = "checkpoint.json", "latest.json"
_PREFIX, _BUILDING, _ARRIVING, _LEAVING = "step-", ".building-", ".arriving-", ".leaving-"

Fence = Callable[[], AbstractContextManager[None]]
"""Entered for the moment in which something becomes durable; raises where another driver has the run."""


@dataclass(frozen=True)
class Identity:
    """What a checkpoint has to be of: the run, and the digest of the frozen base that it does not hold."""

    run: str
    base: str


@dataclass(frozen=True)
class Checkpoint:
    """A checkpoint that was found whole. `state` is what the trainer wrote, plain JSON."""

    step: int
    folder: Path
    state: dict[str, Any]
    digest: str


@dataclass(frozen=True)
class Found:
    """The newest whole checkpoint, if any, and what was passed over on the way to it."""

    checkpoint: Checkpoint | None
    faults: list[str] = field(default_factory=list)


class DamagedError(DataError):
    """A checkpoint that is not whole."""


class Store:
    """The checkpoints in `folder`, of which the newest `keep` are kept."""

    def __init__(self, folder: Path, identity: Identity, keep: int, fence: Fence = nullcontext):
        self.folder, self.identity, self.keep, self._fence = folder, identity, keep, fence

    @contextmanager
    def writing(self, step: int, state: dict[str, Any]) -> Iterator[Path]:
        """An empty folder to write the files of a checkpoint into; on leaving it becomes `step`'s.

        `state` is read on leaving, so the block may add to it. Nothing is there after an error.
        """
        building = self._hidden(_BUILDING, step)
        try:
            yield building
            digest = self._seal(building, step, state)
            with self._fence():
                self._publish(building, step, digest)
        except BaseException:
            shutil.rmtree(building, ignore_errors=True)
            raise

    def arriving(self, step: int) -> Path:
        """An empty hidden folder for the files of a checkpoint that comes from elsewhere; see `adopt`."""
        return self._hidden(_ARRIVING, step)

    def adopt(self, arriving: Path, step: int, source: str) -> Found:
        """Make it the checkpoint of its step, if it is whole. Raises DataError if it is of another run.

        `source` is the place that errors name: where it comes from.
        """
        try:
            checkpoint = self._read(step, arriving, source)
        except DamagedError as error:
            return Found(None, [error.problem])
        for path in (path for path in arriving.rglob("*") if path.is_file()):
            _sync(path)
        with self._fence():
            self._publish(arriving, step, checkpoint.digest)
        return Found(replace(checkpoint, folder=self.path(step)))

    def newest(self) -> Found:
        """Raises DataError for a whole checkpoint of another run, base or format: nobody can mean that."""
        faults = self._pointer_faults()
        for step, folder in sorted(self._folders().items(), reverse=True):
            try:
                return Found(self._read(step, folder), faults)
            except DamagedError as error:
                faults.append(error.problem)
        return Found(None, faults)

    def path(self, step: int) -> Path:
        """The folder of a step's checkpoint."""
        return self.folder / f"{_PREFIX}{step:06d}"

    def steps(self) -> list[int]:
        """Of every folder that is there, whole or not, in order."""
        return sorted(self._folders())

    def sweep(self) -> None:
        """Remove what a crash left half written or half deleted. Only for the one that holds the run."""
        for rest in self.folder.glob(".*"):
            if rest.is_dir():
                shutil.rmtree(rest, ignore_errors=True)
            else:
                rest.unlink()

    def _hidden(self, prefix: str, step: int) -> Path:
        self.folder.mkdir(parents=True, exist_ok=True)
        folder = self.folder / f"{prefix}{step:06d}"
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir()
        return folder

    def _folders(self) -> dict[int, Path]:
        try:
            names = os.listdir(self.folder)  # glob takes a folder that cannot be read for an empty one
        except FileNotFoundError:
            return {}
        found = {}
        for path in (self.folder / name for name in names):
            step = self.step_of(path.name)
            if step is not None and path.is_dir() and not path.is_symlink():
                found[step] = path
        return found

    @staticmethod
    def step_of(name: str) -> int | None:
        """The step of a checkpoint's folder; None for another name."""
        prefix, number = name[: len(_PREFIX)], name[len(_PREFIX) :]
        right = prefix == _PREFIX and number.isascii() and number.isdecimal() and len(number) >= 6
        return int(number) if right else None

    def _pointer_faults(self) -> list[str]:
        path = self.folder / POINTER
        if not path.exists():
            return []
        try:
            step = read_json(path)["step"]
        except DataError as error:
            return [error.problem]
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            return [f"{path} cannot be read: {visible(str(error))}"]
        if step not in self.steps():
            return [f"{path} names step {visible(str(step))}, of which there is no checkpoint"]
        return []

    def _seal(self, building: Path, step: int, state: dict[str, Any]) -> str:
        """Put everything on disk and write META over it; returns its digest."""
        files = sorted(path for path in building.rglob("*") if path.is_file())
        entries = {}
        for path in files:
            _sync(path)
            entries[path.relative_to(building).as_posix()] = {
                "bytes": path.stat().st_size,
                "sha256": file_digest(path),
            }
        meta = {
            "format": FORMAT,
            "run": self.identity.run,
            "base": self.identity.base,
            "step": step,
            "state": state,
            "files": entries,
        }
        meta["digest"] = _digest(meta)
        write_json(building / META, meta)
        for folder in {path.parent for path in files} | {building}:
            _sync(folder)
        return meta["digest"]

    def _publish(self, building: Path, step: int, digest: str) -> None:
        final = self.path(step)
        if final.exists():  # a damaged one, which this run went back before
            self._remove(final)
        os.rename(building, final)
        _sync(self.folder)
        write_json(self.folder / POINTER, {"step": step, "folder": final.name, "digest": digest})
        # Later ones are those that this run went back before: counted, they would push this one out at once.
        own = [folder for at, folder in sorted(self._folders().items()) if at <= step]
        for old in own[: -self.keep]:
            self._remove(old)

    def _remove(self, folder: Path) -> None:
        """First out of sight, so that a crash leaves no checkpoint with half of its files."""
        leaving = folder.with_name(f"{_LEAVING}{folder.name}")
        shutil.rmtree(leaving, ignore_errors=True)
        os.rename(folder, leaving)
        shutil.rmtree(leaving, ignore_errors=True)

    def _read(self, step: int, folder: Path, source: str = "") -> Checkpoint:
        named = source or str(folder)
        meta = _checked(folder, named)
        if meta["format"] != FORMAT:
            raise DataError(
                f"{named} has format {visible(str(meta['format']))}, this version reads {FORMAT}",
                "go on with the version that wrote it, or start a new run",
            )
        for what, own in (("run", self.identity.run), ("base", self.identity.base), ("step", step)):
            if meta[what] != own:
                raise DataError(
                    f"{named} is of {what} {visible(str(meta[what]))}, not of {own}",
                    "move that folder away; nothing else puts a checkpoint there",
                )
        return Checkpoint(step, folder, meta["state"], meta["digest"])


def _checked(folder: Path, named: str) -> dict[str, Any]:
    """The META of a whole checkpoint. Raises DamagedError."""

    def damaged(why: str) -> DamagedError:
        return DamagedError(f"{named} is damaged: {why}", "the one before it is used")

    try:
        if not (folder / META).is_file():
            raise damaged(f"{META} is missing")
        meta = json.loads((folder / META).read_bytes())
        digest = meta.pop("digest")
        entries = meta["files"].items()
        if missing := [key for key in ("format", "run", "base", "step", "state") if key not in meta]:
            raise damaged(f"{META} says no {missing[0]}")
        if digest != _digest(meta):
            raise damaged(f"{META} does not fit its own digest")
        for name, entry in entries:
            path = folder / name
            if not path.is_file():
                raise damaged(f"{visible(name)} is missing")
            if path.stat().st_size != entry["bytes"] or file_digest(path) != entry["sha256"]:
                raise damaged(f"{visible(name)} is not what was written")
    except FileNotFoundError as error:
        # Any other error of the file system is not the checkpoint's fault, and no reason to lose a step.
        raise damaged(f"{META}: {error.strerror}") from None
    except (ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise damaged(f"{META} cannot be read: {visible(str(error))}") from None
    return {**meta, "digest": digest}


def _digest(meta: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(meta, sort_keys=True).encode()).hexdigest()


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)
