"""Run folders that a gate can decide on: prepared, played and sealed as in a real run."""

import json
import shutil
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from training import exports, lineage, prepare, recipe, seal, splits
from training.audits import ancestry
from training.environments import Game
from training.errors import ConfigError, DataError
from training.evaluate import EvaluationRecord, EvaluationSettings, play, summarize
from training.files import file_digest
from training.gate.evidence import BASE, CANDIDATE
from training.gate.judge import judge
from training.recipe import Recipe
from training.sweep import seeded

WRITTEN = ("gate.json", "gate.html")
RECIPE = Path(__file__).parents[2] / "recipes" / "maze-rehearsal.toml"
SMALL = {
    "data.train_mazes": 12,
    "data.dev_mazes": 4,
    "data.test_512_mazes": 24,
    "data.ood_mazes": 6,
    "gate.split": "test",
    "gate.min_solve_rate": 0.8,
    "gate.max_ood_drop": 0.6,
}
Solves = Callable[[str], bool]


def one_in(n: int, phase: int = 0) -> Solves:
    """Fails one task in `n`, chosen by its digest."""
    return lambda digest: int(digest[:8], 16) % n != phase


class _Player:
    """Solves what it is meant to, by the shortest way; else it stops at once."""

    def __init__(self, chosen: Recipe, rows: tuple[splits.Row, ...], solves: Solves):
        rules = chosen.environment
        self.games = {
            row["digest"]: Game(rules.make(), splits.row_task(row), rules.max_turns) for row in rows
        }
        self.solves = solves

    def act(self, conversations: list[Any]) -> list[str]:
        return [self._one(conversation.key.split("/")[0]) for conversation in conversations]

    def _one(self, digest: str) -> str:
        game = self.games[digest]
        action = game.best_action() if self.solves(digest) else "('stop', 'stop')"
        game.act(action)
        return action


def evaluate(
    run: Path, split: str, at: str, policy: str, solves: Solves, again: str | None = None
) -> list[EvaluationRecord]:
    """One sealed play of a split, with all that a play leaves behind."""
    path = run / "evaluations" / f"{at}.jsonl"
    seal.check(run, policy, split, at, again, path)
    chosen, rows = recipe.read_resolved(run / "recipe.json"), lineage.read_split(run, split)
    rules = chosen.environment
    settings = EvaluationSettings(rules.make(), max_turns=rules.max_turns, reward=rules.reward, policy=policy)
    tasks = [splits.row_task(row) for row in rows]
    note = partial(seal.note_progress, run, split, at, path)
    records = play(_Player(chosen, rows, solves), tasks, settings, None, path, note)
    lineage.record_evaluation(run, at, path, {"split": split, **summarize(records).to_json()})
    seal.log(run, policy, split, at, path)
    return records


def make(
    run: Path,
    base: Path,
    *,
    before: Solves,
    after: Solves,
    lists: Sequence[ancestry.Body] = (),
    **changes: Any,
) -> Path:
    """A finished run whose base and adapter solve as told; `changes` are recipe keys with __ for the dot, and
    `lists` what the base was taught."""
    base.mkdir(parents=True, exist_ok=True)
    (base / "config.json").write_text("{}")
    if lists:
        ancestry.declare(base, lists)
    overrides = SMALL | {key.replace("__", "."): value for key, value in changes.items()}
    prepare.prepare(recipe.load(RECIPE, overrides), run, base_dir=base, image="test", source=RECIPE)
    trained = _train(run, "first")
    manifest = lineage.update(run, adapter=trained)
    for split in seal.SEALED:
        evaluate(run, split, seal.label(BASE, split), "base:" + manifest["base"]["digest"][:16], before)
        evaluate(run, split, seal.label(CANDIDATE, split), candidate(trained), after)
    return run


def candidate(adapter: dict[str, str]) -> str:
    """How records name an adapter."""
    return "adapter:" + adapter["digest"][:16]


def _train(run: Path, weights: str) -> dict[str, str]:
    (run / "adapter").mkdir(exist_ok=True)
    (run / "adapter" / exports.WEIGHTS).write_text(weights)
    (run / "adapter" / exports.CONFIG).write_text("{}")
    return {"folder": "adapter", "digest": exports.digest(run / "adapter")}


def reseed(run: Path, to: Path, seed: int, after: Solves) -> Path:
    """A run of the same recipe with another seed: other training rows, another adapter. The base is the same,
    and so are its plays."""
    base = to.parent / f"base of {to.name}"
    base.mkdir()
    (base / "config.json").write_text("{}")
    chosen = seeded(recipe.read_resolved(run / "recipe.json"), seed)
    prepare.prepare(chosen, to, base_dir=base, image="test", source=RECIPE)
    adapter, earlier = _train(to, f"of seed {seed}"), lineage.read(run)
    labels = [seal.label(BASE, split) for split in seal.SEALED]
    (to / "evaluations").mkdir(exist_ok=True)
    for at in labels:
        for path in (run / "evaluations").glob(f"{at}.*"):
            shutil.copy(path, to / "evaluations" / path.name)
    of_base = {
        section: [play for play in earlier[section] if play["label"] in labels]
        for section in (seal.PLAYS, seal.STARTED)
    }
    kept = {at: earlier["evaluations"][at] for at in labels}
    lineage.update(to, adapter=adapter, evaluations=kept, **of_base)
    for split in seal.SEALED:
        evaluate(to, split, seal.label(CANDIDATE, split), candidate(adapter), after)
    return to


def edit(path: Path, change: Callable[[Any], Any]) -> None:
    """What someone with an editor does to a JSON file."""
    value = json.loads(path.read_text())
    change(value)
    path.write_text(json.dumps(value))


def forge(run: Path, at: str, change: Callable[[list[dict[str, Any]]], Any], note: Sequence[str]) -> None:
    """Changes the records of a play, and the digests of them in `note`: "manifest", "seal" or both."""
    path = run / "evaluations" / f"{at}.jsonl"
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    change(lines)
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    digest = file_digest(path)

    def renote(manifest: dict[str, Any]) -> None:
        if "manifest" in note:
            manifest["evaluations"][at]["records"] = digest
        for section, key in ((seal.PLAYS, "records"), (seal.STARTED, "noted")):
            for entry in manifest[section]:
                if "seal" in note and entry["label"] == at:
                    entry[key] = digest

    edit(run / "run.json", renote)


def records(outcomes: str, **changes: Any) -> list[EvaluationRecord]:
    """Records made up for pure arithmetic: task i is solved where the i-th character is 1."""
    one = EvaluationRecord(
        digest="",
        canonical="",
        task={},
        environment="maze",
        options={},
        sample=0,
        policy="",
        settings="",
        max_turns=10,
        reward="",
        solved=False,
        score=0.0,
        format_ok=1.0,
        turns=8,
        optimal_turns=7,
        actions=(),
        malformed=(),
    )
    return [
        replace(one, **{"digest": str(at), "solved": outcome == "1", **changes})
        for at, outcome in enumerate(outcomes)
    ]


def refused(run, match) -> str:
    """The gate refuses and writes nothing; what it says."""
    before = (run / "run.json").read_text()
    with pytest.raises((DataError, ConfigError), match=match) as error:
        judge([run])
    assert (run / "run.json").read_text() == before
    assert not [name for name in WRITTEN if (run / name).exists()]
    return error.value.problem
