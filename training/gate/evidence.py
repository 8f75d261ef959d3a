"""Reads what a run offers as evidence, and takes it only whole: every file is held against what was noted
of it before and beside it, and every split is drawn again.

A folder is not signed. Whoever rewrites data, records, seal and manifest in agreement, with episodes that
really replay, has played the test; what that means is in docs/how-to/gate.md.
"""

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from training import exports, lineage, recipe, seal, splits
from training.audits import contamination
from training.audits import reward as reward_audit
from training.audits.ancestry import Prints
from training.errors import ConfigError, DataError, visible
from training.evaluate import EvaluationRecord, ceiling
from training.files import LARGEST, read_json
from training.gate import evaluations
from training.gate.counts import OOD
from training.gate.decision import Entrant, Look
from training.gate.evaluations import BASE, CANDIDATE
from training.gate.snapshot import PARTS
from training.gate.thresholds import check_attainable
from training.recipe import Recipe, but_for_seed

AUDITS = ("contamination", "reward")
_PLAY = ("candidate", "split", "label", "records", "played")
_BEGUN = ("candidate", "split", "label", "started")
_NAME = re.compile(r"[A-Za-z0-9][\w.-]*", re.ASCII)
_DIGEST = re.compile(r"[0-9a-f]{64}")


@dataclass
class Evidence:
    """One run's evidence; `read` raises unless it is complete. `records` is by label, `rows` by split,
    `weights` the digest of the adapter's weights, whatever its options. `unfinished` says which plays that
    decide nothing are going on, one sentence each."""

    folder: Path
    manifest: dict[str, Any]
    recipe: Recipe
    rows: dict[str, tuple[splits.Row, ...]] = field(default_factory=dict)
    records: dict[str, list[EvaluationRecord]] = field(default_factory=dict)
    looks: list[Look] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    unfinished: list[str] = field(default_factory=list)
    weights: str = ""

    @property
    def run(self) -> str:
        return self.manifest["run"]

    @property
    def base(self) -> str:
        """The name that records of the base policy have to carry."""
        return "base:" + self.manifest["base"]["digest"][:16]

    @property
    def candidate(self) -> str:
        """The name that records of the run's adapter have to carry."""
        return "adapter:" + self.manifest["adapter"]["digest"][:16]

    def keys(self, split: str, samples: int = 1) -> set[str]:
        """The episodes of one play of a split."""
        return {f"{row['digest']}/{sample}" for row in self.rows.get(split, ()) for sample in range(samples)}

    def played(self, name: str) -> dict[str, list[EvaluationRecord]]:
        """Records by split of the base (`baseline`) or the candidate (`final`)."""
        return {split: self.records[seal.label(name, split)] for split in seal.SEALED}

    def entrant(self) -> Entrant:
        """What the decision needs of it."""
        return Entrant(
            run=self.run,
            candidate=self.candidate,
            base=self.played(BASE),
            after=self.played(CANDIDATE),
            variants={row["digest"]: row["variant"] for row in self.rows[OOD]},
            looks=self.looks,
        )

    def to_json(self) -> dict[str, Any]:
        """What a reader needs to find the same evidence: digests, audits, what the base was taught, every
        play of a sealed split with its reason."""
        kept = ("split", "policy", "records", "played")
        if not _NAME.fullmatch(self.run):
            raise ValueError(f"no run is called {self.run!r}")
        ended = {play["label"] for play in self.manifest[seal.PLAYS]}
        begun = [play for play in self.manifest[seal.STARTED] if play["label"] not in ended]
        shown = [self.manifest["created"], self.manifest["commit"]]
        shown += [play[key] for play in self.manifest[seal.PLAYS] for key in _PLAY]
        shown += [play[key] for play in begun for key in _BEGUN]
        for text in shown:
            if not (isinstance(text, str) and text.isprintable()):
                raise ValueError(f"no text to show is {text!r}")
        return {
            "created": self.manifest["created"],
            "commit": self.manifest["commit"],
            "seed": self.recipe.seed,
            "base": self.manifest["base"]["digest"],
            "adapter": self.manifest["adapter"]["digest"],
            "data": {split: self.manifest["data"][split] for split in self.rows},
            "audits": {name: self.manifest["audits"][name]["passed"] for name in AUDITS},
            "ancestry": self._ancestry(),
            "evaluations": {
                name: {key: self.manifest["evaluations"][name][key] for key in kept} for name in self.records
            },
            "plays": [_shown(play, _PLAY) for play in self.manifest[seal.PLAYS]],
            "begun": [_shown(play, _BEGUN) for play in begun],
            "continued": seal.continued(self.manifest),
        }

    def _ancestry(self) -> dict[str, Any]:
        """What the base is known to have been taught, and what of the evaluation is like it: the audit
        refuses exact tasks alone, and a reader has to know of the rest."""
        found = self.manifest["audits"]["contamination"]
        kinds = (*Prints._fields, "declared")
        return {
            "declared": found["declared"],
            "why": visible(found["why"]),
            "taught": [{"name": visible(body["name"]), "tasks": body["tasks"]} for body in found["taught"]],
            "alike": [
                one | {"seen_in": visible(one["seen_in"])}
                for one in found["comparisons"]
                if one["split"] != contamination.TRAIN and any(one[kind] for kind in kinds)
            ],
        }


def _shown(play: Mapping[str, Any], keys: Iterable[str]) -> dict[str, Any]:
    """A play for a reader. Its reason is a person's text and may be of any kind."""
    return {key: play[key] for key in keys} | {"again": visible(play["again"]) if play["again"] else None}


def read(run_dir: Path) -> Evidence:
    """Everything the gate reads of a run, verified.

    Raises ConfigError when the thresholds are not those that the run began with or cannot be met, DataError
    with every fault found when the evidence is not complete and sound.
    """
    if not (run_dir / lineage.MANIFEST).is_file():
        raise ConfigError(f"{run_dir} holds no {lineage.MANIFEST}", "name the folder of a run: runs/<id>")
    try:
        evidence = _read(run_dir)
        if not evidence.problems:
            evidence.to_json()  # every entry that the decision will show is there
    except OSError as error:
        raise unreadable(run_dir, error) from error
    except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RuntimeError) as error:
        raise DataError(
            f"the files of run {run_dir.name!r} are not as a run writes them: {error!r}",
            "nothing was decided; restore what was changed, or prepare a new run",
        ) from error
    _refuse(run_dir, evidence.problems)
    return evidence


def unreadable(run_dir: Path, error: Exception) -> DataError:
    """What to raise where a file of a run's evidence cannot be read."""
    return DataError(
        f"a file of run {run_dir.name!r} cannot be read: {error}",
        "nothing was decided; look at what is in that place",
    )


def _refuse(run_dir: Path, problems: list[str]) -> None:
    """DataError where there are any."""
    if problems:
        raise DataError(
            "\n  - ".join([f"run {run_dir.name!r} gives no evidence to decide on:", *map(visible, problems)]),
            "nothing was decided; restore what was changed and finish what is missing, or prepare a new run",
        )


def _read(run_dir: Path) -> Evidence:
    _refuse(run_dir, list(_foreign(run_dir)))
    manifest = lineage.read(run_dir)
    json.dumps(manifest, indent=2)  # what cannot be written again could not be withdrawn either
    evidence = Evidence(run_dir, manifest, _recipe(run_dir, manifest))
    _read_splits(evidence)
    _check_audits(evidence)
    if "adapter" not in manifest:
        evidence.problems.append("training has not finished: there is no adapter")
    else:
        _check_adapter(evidence)
        evaluations.read(evidence)
    return evidence


def check_comparable(first: Evidence, other: Evidence, *, seeds: bool) -> None:
    """ConfigError unless two runs may be judged together: same splits and rules, different adapters.

    With `seeds` they must also have the same recipe, but for its seeds, and the same base.
    """
    if first.run == other.run:
        raise ConfigError(
            f"{first.folder.name} and {other.folder.name} are both of a run called {first.run!r}",
            "name each run once; copies keep the name of the run they were made of",
        )
    if seeds and first.recipe.seed == other.recipe.seed:
        raise ConfigError(
            f"runs {first.run!r} and {other.run!r} have the same seed {first.recipe.seed}",
            "one seed played twice says nothing about others; name runs of different seeds",
        )
    if first.weights == other.weights:
        raise ConfigError(
            f"runs {first.run!r} and {other.run!r} hold the same adapter {first.candidate}",
            "name each adapter once, and an incumbent that is another",
        )
    if seeds and first.manifest["data"]["train"] == other.manifest["data"]["train"]:
        raise ConfigError(
            f"runs {first.run!r} and {other.run!r} were trained on the same rows",
            "a seed draws its own training rows: name runs of a sweep",
        )
    differing = [name for name in seal.SEALED if first.manifest["data"][name] != other.manifest["data"][name]]
    if differing or first.recipe.environment != other.recipe.environment:
        raise ConfigError(
            f"runs {first.run!r} and {other.run!r} were not played on the same tasks and rules"
            + (f" (splits {', '.join(differing)} differ)" if differing else ""),
            "compare runs of the same environment, turns, reward and split sizes",
        )
    if seeds and _but_for_seed(first) != _but_for_seed(other):
        raise ConfigError(
            f"runs {first.run!r} and {other.run!r} differ in more than their seed",
            "judge them one by one, or name one of them as --incumbent",
        )
    decides = dict.fromkeys((first.recipe.gate.split, OOD))
    if all(_actions(first, split) == _actions(other, split) for split in decides):
        # Weights that differ may compute the same: what a scaled copy played stands for one training. Of the
        # other sealed split no episode is asked for: nobody plays it again, so one is easily made to differ.
        raise ConfigError(
            f"the adapters of runs {first.run!r} and {other.run!r} took the same actions in every episode of "
            f"{' and '.join(decides)}",
            "one adapter under two names is no second run; name each adapter once",
        )


def _actions(of: Evidence, split: str) -> dict[str, tuple[str, ...]]:
    """What the candidate did in each episode of a sealed split."""
    return {record.key: tuple(record.actions) for record in of.played(CANDIDATE)[split]}


def _but_for_seed(of: Evidence) -> tuple[Any, str]:
    return but_for_seed(of.recipe), of.manifest["base"]["digest"]


def _foreign(run_dir: Path) -> Iterator[str]:
    """What a link leads to can be changed without a trace in the run, a pipe can be read for ever, and a file
    that is mostly holes fills the memory."""
    for path in (path for part in PARTS for path in (run_dir / part, *sorted((run_dir / part).rglob("*")))):
        name = path.relative_to(run_dir).as_posix()
        if path.is_symlink() or (path.exists() and not _is_plain(path)):
            yield f"{name} is no file of its own"
        elif path.is_file() and path.stat().st_size > LARGEST:
            yield f"{name} has {path.stat().st_size:,} bytes, which is more than a run writes"


def _is_plain(path: Path) -> bool:
    return path.is_file() or path.is_dir()


def _recipe(run_dir: Path, manifest: Mapping[str, Any]) -> Recipe:
    """The resolved recipe; ConfigError unless the manifest began with the same one, gate included."""
    path = run_dir / "recipe.json"
    if not path.is_file():
        raise ConfigError(f"{run_dir} holds no recipe.json", "name the folder of a prepared run")
    found, began = read_json(path), manifest["recipe"]
    if "gate" not in began:
        raise ConfigError(
            f"run {run_dir.name!r} began without thresholds: its recipe has no [gate]",
            "thresholds are fixed before a run; prepare a new one",
        )
    differing = sorted(key for key in found.keys() | began.keys() if found.get(key) != began.get(key))
    if differing:
        raise ConfigError(
            f"recipe.json of run {run_dir.name!r} is not the recipe that the run began with: "
            + visible("; ".join(f"{key} is {found.get(key)}, was {began.get(key)}" for key in differing)),
            "thresholds are fixed before a run; restore recipe.json and run.json, or prepare a new run",
        )
    return recipe.read_resolved(path)


def _read_splits(evidence: Evidence) -> None:
    """All splits, unchanged since the run was prepared."""
    for split in ("train", "dev", *seal.SEALED):
        try:
            evidence.rows[split] = lineage.read_split(evidence.folder, split)
        except DataError as error:
            evidence.problems.append(error.problem)
    if evidence.problems:
        return
    rules, gate = evidence.recipe.environment, evidence.recipe.gate
    tasks = [splits.row_task(row) for row in evidence.rows[gate.split]]
    check_attainable(gate, ceiling(rules.make(), tasks, rules.max_turns), len(tasks))


def _check_audits(evidence: Evidence) -> None:
    """Both are made again, which takes a second: what is noted of them could be anything.

    What the manifest names beside its recipe has to be that of the recipe, too."""
    chosen, manifest = evidence.recipe, evidence.manifest
    found = {"reward": reward_audit.of_recipe(chosen)}
    if not evidence.problems:  # without all splits there is nothing to compare
        found["contamination"] = contamination.audit_run(evidence.folder)
        evidence.problems += _other_ceilings(evidence)
    for audit in AUDITS:
        noted = manifest.get("audits", {}).get(audit)
        if noted is None or noted["passed"] is not True:
            evidence.problems.append(f"its {audit} audit {'is missing' if noted is None else 'did not pass'}")
        elif audit in found and not found[audit].faults:
            report = json.loads(json.dumps(found[audit].to_json()))
            if odd := sorted(key for key in noted | report if noted.get(key) != report.get(key)):
                evidence.problems.append(f"its {audit} audit, made again, gives another {', '.join(odd)}")
    evidence.problems += [fault for audit in found.values() for fault in audit.faults]
    if not _DIGEST.fullmatch(manifest["base"]["digest"]):
        evidence.problems.append(f"the manifest names the base by {manifest['base']['digest']!r}, no SHA-256")
    for what, said, meant in (
        ("reward", manifest["reward"], chosen.environment.reward),
        ("base", manifest["base"]["folder"], chosen.policy.base_model),
    ):
        if said != meant:
            evidence.problems.append(f"the manifest names the {what} {said!r}, the recipe {meant!r}")


def _other_ceilings(evidence: Evidence) -> Iterator[str]:
    """Splits of other sizes than those that were prepared have other ceilings."""
    rules, noted = evidence.recipe.environment, evidence.manifest["ceilings"]
    for split, rows in evidence.rows.items():
        found = ceiling(rules.make(), map(splits.row_task, rows), rules.max_turns)
        if noted.get(split) != found:
            yield f"the ceiling of {split} is on record as {noted.get(split)}, its tasks give {found}"


def _check_adapter(evidence: Evidence) -> None:
    """What would be promoted has to be what was judged."""
    noted, run = evidence.manifest["adapter"], evidence.folder.resolve()
    folder = run / noted["folder"]
    held = list(folder.iterdir()) if folder.is_dir() else []
    odd = [path for path in held if path.is_symlink() or not path.is_file() or path.name not in exports.FILES]
    if folder.resolve() != folder or not folder.is_relative_to(run) or odd or not held:
        evidence.problems.append(
            f"the adapter in {noted['folder']} is not in files of its own within the run, and nothing else"
        )
        return
    try:
        evidence.weights, found = exports.weights(folder), exports.digest(folder)
    except DataError as error:
        evidence.problems.append(error.problem)
        return
    if found != noted["digest"]:
        evidence.problems.append(
            f"the adapter in {noted['folder']} was changed or is gone: it is {found[:16]}, the run made "
            f"{noted['digest'][:16]}"
        )
