"""A run folder as training leaves it, made by playing: scripted policies of falling error rates stand for the
policy at each step, and everything on disk is written by the code that writes it in a real run.

    python -m tests.training.sample_run FOLDER    writes one to look at, with its report
"""

import hashlib
import json
import sys
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tests.training.conftest import Scripted, oracle
from training import diagnostics, lineage, prepare, recipe, seal, splits
from training.evaluate import EvaluationRecord, EvaluationSettings, play, summarize
from training.files import Appender, write_json
from training.mazes import Maze
from training.protocol import ACTIONS, STOP

RECIPE = Path(__file__).parents[2] / "recipes" / "maze-rehearsal.toml"
STEPS, DEV_EVERY = 20, 10
START, END = 0.16, 0.012
SIZES = {"data.test_512_mazes": 12, "data.ood_mazes": 12, "gate.split": "test"}


class Clumsy:
    """Takes the oracle's action but for a share of the turns: then it heads for the goal as the crow flies,
    stops too early or mumbles. Equal turns of equal mazes err alike for one `salt`."""

    def __init__(self, errors: float, salt: str = ""):
        self.errors, self.salt = errors, salt

    def __call__(self, maze: Maze, position: tuple[int, int], turn: int) -> str:
        draw = self._draw(maze, turn, "err")
        if draw >= self.errors:
            return oracle(maze, position, turn)
        if draw < 0.06 * self.errors:
            return "('move',"
        if draw < 0.4 * self.errors and turn > 2:
            return STOP
        down, right = maze.goal[0] - position[0], maze.goal[1] - position[1]
        if abs(right) > abs(down):
            return ACTIONS[0 if right > 0 else 2]
        return ACTIONS[3 if down > 0 else 1]

    def _draw(self, maze: Maze, turn: int, what: str) -> float:
        digest = hashlib.sha256(f"{maze.digest}{turn}{what}{self.salt}".encode()).digest()
        return int.from_bytes(digest[:6]) / 2**48


class SampleRun:
    """Writes the folder; `clock` are the seconds that its stages really took."""

    def __init__(self, run_dir: Path, base_dir: Path):
        self.dir = run_dir
        self.timings: list[dict[str, Any]] = []
        self.chosen = recipe.load(RECIPE, SIZES)
        started = time.perf_counter()
        prepare.prepare(self.chosen, run_dir, base_dir=base_dir, image="sample", source=RECIPE)
        self._took("mazes and recipe", started)
        attempt = {"started": lineage.now(), "backend": "cpu", **lineage.environment()}
        lineage.append(run_dir, "attempts", attempt)
        self.mazes = {
            split: [splits.row_task(row) for row in splits.read(run_dir / "data" / f"{split}.jsonl")]
            for split in ("train", "dev", *seal.SEALED)
        }

    def evaluate(
        self, split: str, label: str, errors: float, salt: str = "", again: str | None = None
    ) -> None:
        """Play a split as the trainer does and leave records, summary and the manifest's entries."""
        started = time.perf_counter()
        policy = self._policy(label)
        path = self.dir / "evaluations" / f"{label}.jsonl"
        path.parent.mkdir(exist_ok=True)
        seal.check(self.dir, policy, split, label, again, path)
        records = self._play(self.mazes[split], Clumsy(errors, salt), policy)
        noting = partial(seal.note_progress, self.dir, split, label, path)
        Appender(path, noting).append("".join(record.to_line() for record in records))
        summary = summarize(records).to_json()
        write_json(path.with_suffix(".summary.json"), summary)
        lineage.record_evaluation(self.dir, label, path, {"split": split, **summary})
        seal.log(self.dir, policy, split, label, path)
        if split == "test":
            self._took(f"evaluation {label}", started)

    def _policy(self, label: str) -> str:
        """The base before training, then an adapter for each step; the last is the run's."""
        manifest = lineage.read(self.dir)
        if label == "dev-0000" or label.startswith("baseline"):
            return "base:" + manifest["base"]["digest"][:16]
        if label.startswith("dev"):
            return f"adapter:{label}"
        return "adapter:" + manifest["adapter"]["digest"][:16]

    def step(self, step: int, errors: float) -> None:
        """Play one step's training mazes and append its metrics."""
        started = time.perf_counter()
        first = 12 * step % 900
        records = [
            record
            for sample in range(4)
            for record in self._play(
                self.mazes["train"][first : first + 12], Clumsy(errors, f"{step}/{sample}"), "train"
            )
        ]
        generated = time.perf_counter()
        gap = rounding_gap(step)
        summary = summarize_all(records)
        row = {
            "step": step,
            "train_solve_rate": summary["solved"],
            "train_format_rate": summary["format_ok"],
            "train_turns": summary["turns"],
            "reward_mean": summary["score"],
            "zero_variance_groups": diagnostics.groups(
                [record.digest for record in records], [record.score for record in records]
            )["skypod/zero_variance_groups"],
            "logprob_gap_mean": gap,
            "generate_seconds": generated - started,
            "forward_seconds": time.perf_counter() - generated,
            "step_seconds": time.perf_counter() - started,
        }
        with (self.dir / "metrics.jsonl").open("a") as file:
            file.write(json.dumps(row) + "\n")

    def finish(self, started: float) -> None:
        """Write what the run writes last."""
        self._took("training", started)
        lineage.update(
            self.dir,
            checkpoints=[{"step": step} for step in range(DEV_EVERY, STEPS + 1, DEV_EVERY)],
            adapter={"folder": "adapter", "digest": hashlib.sha256(b"sample").hexdigest()},
            finished=lineage.now(),
        )
        write_json(self.dir / "timings.json", self.timings)

    def _play(self, mazes: list[Maze], clumsy: Clumsy, name: str) -> list[EvaluationRecord]:
        env = self.chosen.environment
        settings = EvaluationSettings(env.make(), max_turns=env.max_turns, reward=env.reward, policy=name)
        return play(Scripted(mazes, clumsy, env.options["squares_per_move"]), mazes, settings)

    def _took(self, stage: str, started: float) -> None:
        self.timings.append({"stage": stage, "seconds": round(time.perf_counter() - started, 3)})


def summarize_all(records: list[EvaluationRecord]) -> dict[str, float]:
    """Means over the episodes of a step."""
    names = ("solved", "format_ok", "turns", "score")
    return {name: float(np.mean([getattr(record, name) for record in records])) for name in names}


def rounding_gap(seed: int) -> float:
    """Mean difference of log-probabilities in single and double precision: what two engines differ by."""
    logits = np.random.default_rng(seed).normal(0, 4, (512, 16))
    low = logits.astype(np.float32)
    single = low - np.log(np.exp(low).sum(1, keepdims=True))
    double = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    return float(np.abs(single - double).mean())


def make(run_dir: Path, base_dir: Path) -> Path:
    """The whole sample run."""
    run = SampleRun(run_dir, base_dir)
    for split in seal.SEALED:
        run.evaluate(split, seal.label("baseline", split), START)
    run.evaluate("dev", "dev-0000", START)
    started = time.perf_counter()
    for step in range(1, STEPS + 1):
        errors = START + (END - START) * (1 - (1 - step / STEPS) ** 2)
        run.step(step, errors)
        if step % DEV_EVERY == 0:
            run.evaluate("dev", f"dev-{step:04d}", errors)
    run.finish(started)
    for split in seal.SEALED:
        run.evaluate(split, seal.label("final", split), END, "after")
    run.evaluate("test", "served", END, "after", again="to compare the server")
    return run_dir


if __name__ == "__main__":
    from training import report

    folder = Path(sys.argv[1])
    stand_in = folder / "base"
    stand_in.mkdir(parents=True)
    (stand_in / "config.json").write_text("{}")
    print(report.write(make(folder / "maze-rehearsal-sample", stand_in)))
