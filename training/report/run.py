"""Reads what a run left behind; a part that is missing or unreadable becomes a sentence, not a failure."""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import cached_property, partial
from pathlib import Path
from typing import Any

from training import metrics, recorded, seal, splits, toml_settings
from training.errors import DataError, SkypodError
from training.evaluate import EvaluationRecord, Paired, Summary, paired, read_records, summarize
from training.gate import evaluations
from training.gate.evidence import Evidence
from training.recipe import Recipe

_DEV = re.compile(r"dev-(\d+)")
_ENTRIES: dict[str, tuple[type, tuple[str, ...]]] = {
    "evaluations": (dict, ("records", "played")),
    "attempts": (list, ()),
    "checkpoints": (list, ()),
    seal.PLAYS: (list, ("candidate", "split", "label", "records", "played")),
    seal.STARTED: (list, ("candidate", "split", "label", "started")),
}
"""Sections of the manifest that hold entries, and the texts that each entry has."""
_UNREADABLE = (OSError, ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError)


@dataclass(frozen=True)
class Played:
    """One evaluation: its records and what they show."""

    records: tuple[EvaluationRecord, ...]
    summary: Summary

    @property
    def pass_at_1(self) -> float:
        """What SkyRL calls pass@1: the share of episodes whose last reward is positive."""
        return sum(record.score > 0 for record in self.records) / len(self.records)


@dataclass
class Run:
    """A run folder in memory. `missing` says what could not be read, one sentence each.

    `variants` names the variant of each task of the ood split by its digest; `imitation` is the comparison
    with supervised training, {} where none was made; `foreign` names the splits that are not those which the
    recipe draws.
    """

    folder: Path
    manifest: dict[str, Any] = field(default_factory=dict)
    recipe: dict[str, Any] = field(default_factory=dict)
    metrics: list[dict[str, float]] = field(default_factory=list)
    timings: list[dict[str, Any]] = field(default_factory=list)
    variants: dict[str, str] = field(default_factory=dict)
    imitation: dict[str, Any] = field(default_factory=dict)
    evaluations: dict[str, Played] = field(default_factory=dict)
    comparison: Paired | None = None
    foreign: frozenset[str] = frozenset()
    missing: list[str] = field(default_factory=list)

    @cached_property
    def evidence(self) -> Evidence:
        """What a play is held against: a label may hold one of another policy or of other tasks."""
        began = toml_settings.parse(self.manifest["recipe"], Recipe, source="the recipe in run.json")
        found = Evidence(self.folder, self.manifest, began)
        for name, digest in self.manifest["data"].items():
            path = self.folder / "data" / f"{name}.jsonl"
            if path.is_file():
                found.rows[name] = splits.read(path, digest or "none")
        return found

    @property
    def before(self) -> Played | None:
        """The test before training."""
        return self.evaluations.get("baseline")

    @property
    def after(self) -> Played | None:
        """The test after training."""
        return self.evaluations.get("final")

    def dev(self) -> list[tuple[int, Played]]:
        """(step, evaluation) of the dev split, in order, but for those of policies that nobody verified."""
        found = [
            (_DEV.fullmatch(label), played)
            for label, played in self.evaluations.items()
            if all(record.policy.startswith(seal.LOCAL) for record in played.records)
        ]
        return sorted(((int(match[1]), played) for match, played in found if match), key=lambda pair: pair[0])


def read(folder: Path) -> Run:
    """Everything there is. Raises DataError when the folder is no run's at all."""
    if not folder.is_dir():
        raise DataError(f"{folder} is not a folder", "name the folder of a run, such as runs/<id>")
    run = Run(folder)
    run.manifest = _manifest(run)
    run.recipe = run_part(run, "recipe.json", "recipe", _object, {}) or run_part(
        run, "run.json", "recipe", lambda _: _an_object(run.manifest.get("recipe", {})), {}
    )
    run.metrics = run_part(run, "metrics.jsonl", "learning curve", metrics.read, [])
    run.timings = run_part(run, "timings.json", "times of the stages", _timings, [])
    if (folder / "data" / "ood.jsonl").is_file():
        run.variants = run_part(run, "data/ood.jsonl", "names of the variants", _variants, {})
    if (folder / "comparison.json").is_file():
        run.imitation = run_part(run, "comparison.json", "comparison with imitation", _object, {})
    if run.manifest.get("data") and "recipe" in run.manifest:
        run.foreign = run_part(
            run, "data", "comparison of splits and recipe", lambda _: _foreign(run), run.foreign
        )
    for split in sorted(run.foreign):
        run.missing.append(f"data/{split}.jsonl was changed: its rows are not those that the recipe draws.")
    for path in sorted((folder / "evaluations").glob("*.jsonl")):
        played = run_part(run, f"evaluations/{path.name}", "evaluation", partial(_evaluation, run), None)
        if played is not None:
            run.evaluations[path.stem] = played
    if not run.manifest and not run.evaluations and not run.metrics:
        raise DataError(f"{folder} holds nothing of a run", "name the folder of a run, such as runs/<id>")
    for label, what in (("baseline", "before training"), ("final", "after training")):
        if not (folder / "evaluations" / f"{label}.jsonl").is_file():
            run.missing.append(f"The test {what} was not played (evaluations/{label}.jsonl).")
    _compare(run)
    return run


def run_part[Part](run: Run, name: str, what: str, reader: Callable[[Path], Part], otherwise: Part) -> Part:
    """One file of the run, or `otherwise` and a sentence in `run.missing`."""
    path = run.folder / name
    try:
        return reader(path)
    except FileNotFoundError:
        run.missing.append(f"No {what}: {name} is not here.")
    except (*_UNREADABLE, SkypodError) as error:
        problem = error.problem if isinstance(error, SkypodError) else error
        run.missing.append(f"No {what}: {name} could not be read ({problem}).")
    return otherwise


def _foreign(run: Run) -> frozenset[str]:
    """The digests beside the rows are changed as easily as the rows, so these are drawn again."""
    drawn = dict(splits.of_recipe(run.evidence.recipe))
    return frozenset(
        split for split, rows in run.evidence.rows.items() if tuple(rows) != tuple(drawn.get(split, ()))
    )


def _compare(run: Run) -> None:
    if run.before and run.after:
        try:
            run.comparison = paired(run.before.records, run.after.records)
        except DataError as error:
            run.missing.append(f"Before and after cannot be paired: {error.problem}.")


def _manifest(run: Run) -> dict[str, Any]:
    """run.json without what is not of its form; a sentence says so for each."""
    manifest = run_part(run, "run.json", "lineage", _object, {})
    for section, (kind, texts) in _ENTRIES.items():
        held = manifest.get(section, kind())
        if not isinstance(held, kind):
            del manifest[section]
            run.missing.append(f"No {section}: run.json holds something else there.")
            continue
        for name, entry in list(held.items() if kind is dict else enumerate(held))[::-1]:
            if not isinstance(entry, dict) or not all(isinstance(entry.get(text), str) for text in texts):
                del held[name]
                run.missing.append(f"No {section}[{name}]: run.json holds something else there.")
    return manifest


def _object(path: Path) -> dict[str, Any]:
    return _an_object(json.loads(path.read_text()))


def _an_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ValueError("not an object")
    return value


def _timings(path: Path) -> list[dict[str, Any]]:
    return [
        {"stage": str(row["stage"]), "seconds": float(row["seconds"])} for row in json.loads(path.read_text())
    ]


def _variants(path: Path) -> dict[str, str]:
    return {row["digest"]: row["variant"] for row in map(json.loads, path.read_text().splitlines())}


def _evaluation(run: Run, path: Path) -> Played | None:
    """What was played; None and a sentence for a play that is not finished."""
    if recorded.is_finished(run.manifest, path):
        records = tuple(evaluations.take(run.evidence, path.stem))
        return Played(records, summarize(records))
    count = len(read_records(path))
    run.missing.append(f"evaluations/{path.name} is of a play that is not finished ({count} records).")
    return None
