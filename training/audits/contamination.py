"""Has anything that is tested been trained on, selected by, or counted twice?

Each evaluation split is compared with everything that it must not repeat: the base model's ancestry, the
training rows (all that is ever drawn: every epoch plays the same rows in another order), and the splits
before it in the order dev, test, test-512, ood. Within a run a repeat of any kind is refused, because our own
draws can avoid it. Of what the base model was taught, exact repeats are refused and the rest is shown. The
mirrored rows of ood are twins of the test on purpose, which is counted apart.
"""

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from training import lineage, splits
from training.audits import ancestry
from training.audits.ancestry import Ancestry, Body, Prints
from training.environments.base import MIRRORED
from training.errors import DataError
from training.files import tree_digest
from training.splits import Row

TRAIN, EVALUATED = "train", ("dev", "test", "test-512", "ood")
FOLDER = "ancestry"
"""Of a run folder: the base model's declaration."""
FINDINGS = ("comparisons", "declared", "why", "source", "taught")
"""What was found when a run was prepared stays on record: no audit of later files replaces it."""


@dataclass(frozen=True)
class Comparison:
    """How many of a split's rows are in what may not repeat them, by kind of likeness.

    `declared` counts the rows that are like one on purpose and not counted otherwise. `guessed` says that
    `seen_in` are draws of the audit, as many as an undeclared ancestry may have had.
    """

    split: str
    rows: int
    seen_in: str
    exact: int
    same_layout: int
    same_up_to_symmetry: int
    same_layout_up_to_symmetry: int
    declared: int = 0
    guessed: bool = False


@dataclass(frozen=True)
class Contamination:
    """`faults` say what is refused, and are none in a clean run."""

    comparisons: tuple[Comparison, ...]
    declared: bool
    why: str
    source: str
    taught: tuple[dict[str, Any], ...]
    faults: tuple[str, ...]

    @property
    def passed(self) -> bool:
        return not self.faults

    def require(self) -> None:
        """DataError when the audit refuses the run."""
        if self.faults:
            raise DataError(
                "contamination audit: " + "; ".join(self.faults),
                "draw other tasks, or use a base model that was not taught these",
            )

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values, with "passed"."""
        return {"passed": self.passed, **asdict(self)}


def audit(rows_of: Mapping[str, Sequence[Row]], known: Ancestry) -> Contamination:
    """Compares the splits (by name) of a run with each other and with what the base model knows."""
    prints = {name: [ancestry.prints(splits.row_task(row)) for row in rows] for name, rows in rows_of.items()}
    taught = [_Known(body) for body in known.bodies]
    comparisons, faults = [], []
    for number, name in enumerate((TRAIN, *EVALUATED)):
        faults += _repeats(name, prints[name])
        for body in taught:
            found = _compare(name, prints[name], body)
            comparisons.append(found)
            if found.exact and name != TRAIN and not body.guessed:
                faults.append(f"{found.exact} of {found.rows} rows of {name} were taught in {body.name!r}")
        for other in (TRAIN, *EVALUATED)[:number]:
            mirrored = name == "ood" and other == "test"
            twins = [row["variant"] == MIRRORED for row in rows_of[name]] if mirrored else []
            found = _compare(name, prints[name], _Known(Body(other, prints[other])), twins)
            comparisons.append(found)
            if found.same_layout_up_to_symmetry:
                faults.append(_described(found))
    return Contamination(
        comparisons=tuple(comparisons),
        declared=known.declared,
        why=known.why,
        source=known.source,
        taught=tuple(
            {
                "name": body.name,
                "tasks": len(body.prints),
                "symmetries": body.symmetries,
                "sha256": body.digest,
                "generator": body.generator,
            }
            for body in known.bodies
            if not body.guessed
        ),
        faults=tuple(faults),
    )


def audit_run(run_dir: Path) -> Contamination:
    """The audit of a run from its files, which also have to be what its recipe draws.

    Raises DataError when a split was changed since the run was prepared.
    """
    rows_of = {name: lineage.read_split(run_dir, name) for name in (TRAIN, *EVALUATED)}
    found = audit(rows_of, ancestry.read(run_dir / FOLDER))
    drawn = dict(splits.of_recipe(lineage.read_recipe(run_dir)))
    foreign = [name for name, rows in rows_of.items() if tuple(rows) != tuple(drawn[name])]
    faults = [f"the rows of {name} are not those that the recipe draws" for name in foreign]
    manifest = lineage.read(run_dir)
    if tree_digest(run_dir / FOLDER) != manifest.get("ancestry"):
        faults.append("the base model's ancestry was changed or is gone since the run was prepared")
    noted = manifest.get("audits", {}).get("contamination", {})
    report = json.loads(json.dumps(found.to_json()))
    for finding in FINDINGS:
        if noted.get(finding) != report[finding]:
            faults.append(f"what the audit finds ({finding}) is not what was noted when the run was prepared")
    return Contamination(**{**vars(found), "faults": (*found.faults, *faults)})


class _Known:
    """A body of data for looking up. What was shown in all symmetries is known exactly in each of them."""

    def __init__(self, body: Body):
        self.name, self.guessed = body.name, body.guessed
        self._sets = [{prints[kind] for prints in body.prints} for kind in range(len(Prints._fields))]
        self._looked_at = (2, 3, 2, 3) if body.symmetries else (0, 1, 2, 3)

    def like(self, prints: Prints) -> tuple[bool, ...]:
        """For each kind of likeness whether there is one."""
        return tuple(prints[kind] in self._sets[kind] for kind in self._looked_at)


def _compare(name: str, prints: Sequence[Prints], known: _Known, twins: Sequence[bool] = ()) -> Comparison:
    """`twins` marks the rows that are like one of `known` on purpose: turned or mirrored, never the same."""
    likes = [known.like(one) for one in prints]
    on_purpose = [twin and like[2] and not like[0] for twin, like in zip(twins, likes, strict=False)]
    counted = [like for at, like in enumerate(likes) if not (on_purpose and on_purpose[at])]
    counts = [sum(like[kind] for like in counted) for kind in range(len(Prints._fields))]
    return Comparison(name, len(prints), known.name, *counts, declared=sum(on_purpose), guessed=known.guessed)


def _repeats(name: str, prints: Iterable[Prints]) -> list[str]:
    tasks = [one.same_up_to_symmetry for one in prints]
    repeated = len(tasks) - len(set(tasks))
    return [f"{repeated} rows of {name} are there twice"] if repeated else []


def _described(found: Comparison) -> str:
    kinds = ", ".join(f"{getattr(found, kind)} {kind.replace('_', ' ')}" for kind in Prints._fields)
    return f"{found.split} repeats {found.seen_in}: {kinds}"
