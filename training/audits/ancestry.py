"""What a base model was trained on before: its declaration, `ancestry.json` in its folder.

A declaration lists bodies of data, each with the seeds that it was drawn from and a file with one line per
task: the four digests of `Prints`. Where the data cannot be listed it says so, with the number of tasks that
may have been shown: the audit then draws as many, which tells how many of a split are likely to be known.
"""

import hashlib
import re
import shutil
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple, Self

from pydantic import Field, model_validator

from training import environments, toml_settings
from training.environments import Task
from training.errors import DataError, visible
from training.files import file_digest, read_json, read_whole, write_atomic, write_json
from training.toml_settings import Section

DECLARATION = "ancestry.json"
_DIGEST = re.compile(r"[0-9a-f]{16}")


class Prints(NamedTuple):
    """What a task is recognized by: exact, its layout, and both up to the symmetries of the square."""

    exact: str
    same_layout: str
    same_up_to_symmetry: str
    same_layout_up_to_symmetry: str


@dataclass(frozen=True)
class Body:
    """Tasks that something was taught. `symmetries`: each was shown turned and mirrored in all ways.

    `generator` says what they were drawn with. `guessed` bodies were drawn by the audit, not taught for all
    that is known.
    """

    name: str
    prints: Sequence[Prints]
    symmetries: bool = False
    generator: dict[str, Any] | None = None
    guessed: bool = False

    @property
    def listing(self) -> str:
        """The file that lists it: one line of digests per task, in the order of the draws."""
        return "".join(" ".join(prints) + "\n" for prints in self.prints)

    @property
    def digest(self) -> str:
        """SHA-256 of the listing."""
        return hashlib.sha256(self.listing.encode()).hexdigest()


@dataclass(frozen=True)
class Ancestry:
    """`why` says why nothing is declared; it is empty for a declared ancestry."""

    declared: bool
    why: str
    source: str
    bodies: tuple[Body, ...]


def prints(task: Task) -> Prints:
    """The four digests of a task."""
    return Prints(task.digest, task.layout_digest, task.canonical_digest, task.canonical_layout_digest)


def declare(folder: Path, bodies: Iterable[Body]) -> None:
    """Write the declaration of the base model in `folder`, and a file of digests for each body."""
    listed = []
    for body in bodies:
        file = folder / f"ancestry-{body.name}.txt"
        write_atomic(file, body.listing)
        listed.append(
            {
                "name": body.name,
                "tasks": len(body.prints),
                "symmetries": body.symmetries,
                "generator": body.generator or {},
                "file": file.name,
                "sha256": body.digest,
            }
        )
    write_json(folder / DECLARATION, {"declared": True, "data": listed})


def read(folder: Path) -> Ancestry:
    """What the base model in `folder` declares. Raises DataError for a list that was changed.

    A base model without a declaration has an undeclared ancestry, and the estimate of `training/data` where
    there is one for a folder of this name.
    """
    path = _declaration(folder)
    if path is None:
        return Ancestry(False, f"the base model has no {DECLARATION}", "", ())
    try:
        raw = read_json(path)
    except ValueError as error:
        raise DataError(f"{path} is no JSON: {error}", "write the declaration again") from None
    stated = toml_settings.parse(raw, _Declaration, source=str(path))
    if stated.declared:
        return Ancestry(True, "", "", tuple(_listed(path.parent, body) for body in stated.data))
    if stated.estimate is None:
        return Ancestry(False, stated.why, "", ())
    return Ancestry(False, stated.why, stated.estimate.source, tuple(_guess(stated.estimate)))


def copy(base_dir: Path, folder: Path) -> None:
    """Keep the declaration, with its lists, in a run: later audits need no base model."""
    folder.mkdir(parents=True, exist_ok=True)
    if path := _declaration(base_dir):
        shutil.copyfile(path, folder / DECLARATION)
    for file in base_dir.glob("ancestry-*.txt"):
        shutil.copyfile(file, folder / file.name)


def shipped(name: str) -> Path:
    """Where the statement on a base model of this name would be that comes with this package."""
    return Path(str(resources.files("training"))) / "data" / f"ancestry-{name}.json"


def _declaration(folder: Path) -> Path | None:
    return next((path for path in (folder / DECLARATION, shipped(folder.name)) if path.is_file()), None)


class _Listed(Section):
    name: str
    tasks: int = Field(ge=1)
    symmetries: bool = False
    generator: dict[str, Any] = Field(default_factory=dict)
    file: str = Field(pattern=r"^[\w.-]+$")
    sha256: str


class _Estimate(Section):
    """`draws`: how many tasks may have been shown, few and many."""

    environment: str = "maze"
    options: dict[str, Any] = Field(default_factory=dict)
    draws: list[int] = Field(min_length=1)
    source: str


class _Declaration(Section):
    declared: bool
    data: tuple[_Listed, ...] = ()
    why: str = ""
    estimate: _Estimate | None = None

    @model_validator(mode="after")
    def _check_reason(self) -> Self:
        if not self.declared and (self.data or not self.why):
            raise ValueError("an ancestry that is not declared needs `why`, and lists no data")
        return self


def _listed(folder: Path, stated: _Listed) -> Body:
    path = folder / stated.file
    remedy = "restore the base model's folder: the list of what it was taught is part of it"
    if not path.is_file():
        raise DataError(f"the ancestry names {stated.file}, which is not in {folder}", remedy)
    if (found := file_digest(path)) != stated.sha256:
        raise DataError(f"{path} was changed: its digest is {found}, not {stated.sha256}", remedy)
    lines = [line.split() for line in read_whole(path).decode(errors="replace").splitlines()]
    if len(lines) != stated.tasks or any(len(line) != len(Prints._fields) for line in lines):
        raise DataError(f"{path} does not hold {stated.tasks} lines of {len(Prints._fields)} digests", remedy)
    # Digests of another form are like no task's, and would hide what was taught.
    if odd := next((one for line in lines for one in line if not _DIGEST.fullmatch(one)), None):
        raise DataError(
            f"{path} lists {visible(odd)!r}, which is no digest of a task: they are 16 digits of 0-9 and a-f",
            "write the list with training.audits.ancestry.declare",
        )
    return Body(stated.name, [Prints(*line) for line in lines], stated.symmetries, stated.generator)


def _guess(estimate: _Estimate) -> Iterable[Body]:
    environment = environments.named(estimate.environment, **estimate.options)
    most = max(estimate.draws)
    drawn = [Prints(*found) for found in environment.draw_digests([f"ancestry {n}" for n in range(most)])]
    for draws in sorted(estimate.draws):
        yield Body(f"{draws:,} fresh draws", drawn[:draws], guessed=True)
