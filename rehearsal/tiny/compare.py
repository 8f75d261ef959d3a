"""What the CPU time of a reinforcement run buys when it is spent on imitation instead.

`python -m rehearsal.tiny.compare RUN_DIR BASE_DIR` reads what the run's training cost, teaches the base on by
the same imperfect demonstrators and, in a process of its own, by the oracle, for as much CPU time each, and
plays what came of both on the run's sealed splits. The policy of stage 1, which sees and has no bad habits
yet, is played too: it is what the habits took away. All weights of the language model learn here, where the
run trained an adapter on it.

CPU time is user and system time by the operating system's account: here of the whole process from its start,
looks at dev apart; for the run of all processes of its Ray nodes, their start included, evaluation apart. The
result is RUN_DIR/comparison.json; parts that are in it are not repeated.
"""

from __future__ import annotations

import argparse
import copy
import hashlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import torch

from rehearsal.tiny import boards, demonstrators, fields, habits, learn, perception
from rehearsal.tiny import tokenizer as words
from rehearsal.tiny.demonstrators import Habits
from rehearsal.tiny.learn import Schedule
from rehearsal.tiny.play import play
from training import lineage, plays, recipe, splits
from training.errors import DataError, SkypodError
from training.evaluate import Conversation, EvaluationSettings
from training.files import read_json, tree_digest, write_json
from training.plays import Play

FILE, COST = "comparison.json", "cost.json"
SPLITS = ("test", "test-512")
"""The larger mazes of `ood` have a picture size that the fast player does not know; it is not compared."""
TEACHERS = {"imitation": habits.SHOWN, "oracle": Habits()}
NAMES = ("perception", *TEACHERS)
_CALIBRATION_STEPS = 20
_GENEROUS = 1.3
"""Steps are counted in advance, and games get shorter while habits are learned: imitation gets its share."""
_LOOKS = 10


@dataclass
class Clock:
    """CPU seconds of this process since its start, looks at the dev split apart; `dev` is what they saw."""

    apart: float = 0.0
    dev: list[list[float]] = field(default_factory=list)

    def spent(self) -> float:
        return time.process_time() - self.apart

    def look(self, policy: Any) -> None:
        """Note (CPU seconds spent, what the policy solves of dev)."""
        spent, began = self.spent(), time.process_time()
        rate = play(policy, boards.patches(), boards.dev(), boards.MAX_TURNS).solve_rate
        self.dev.append([round(spent, 1), rate])
        self.apart += time.process_time() - began


def teach(policy: Any, teacher: Habits, seed: int, budget_s: float, clock: Clock) -> int:
    """Train `policy` in place until at least about `budget_s` CPU seconds are spent; returns the steps taken.

    One schedule from start to end: that of the warm start's habits, but for its length. The length comes from
    the time of a few steps on a copy, which count as spent.
    """
    plan = habits.Plan(habits=teacher)
    board, _ = boards.learning("habits", seed, plan.mazes)

    def run(learner: Any, steps: int, look: Callable[[int], None]) -> None:
        def loss(rng: np.random.Generator) -> torch.Tensor:
            batch = boards.sample(board, plan.games, rng)
            games = demonstrators.play(batch, teacher, plan.noise, boards.MAX_TURNS, rng)
            return learn.game_loss(learner, boards.patches(), games, board.side, frozen_vision=True)

        learner.model.visual.requires_grad_(False)
        with tempfile.TemporaryDirectory() as folder:
            learn.minimize(
                loss,
                [learner.model.language_model, learner.lm_head],
                Schedule(steps, plan.acquire.rate, plan.acquire.warmup),
                seeds=(seed, steps),
                state_file=Path(folder) / "state.pt",
                on_progress=lambda step, _: look(step),
            )

    for _ in range(2):  # the first steps of a process are slower
        began = clock.spent()
        run(copy.deepcopy(policy), _CALIBRATION_STEPS, lambda step: None)
    per_step_s = (clock.spent() - began) / _CALIBRATION_STEPS
    steps = affordable(budget_s - clock.spent(), per_step_s)
    every = max(1, steps // _LOOKS // learn.EVERY) * learn.EVERY
    run(policy, steps, lambda step: clock.look(policy) if step % every == 0 or step == steps else None)
    return steps


def affordable(left_s: float, per_step_s: float) -> int:
    """The steps that use up the CPU time left, and one where none is."""
    return max(1, round(_GENEROUS * left_s / per_step_s))


class _Script:
    """A policy that gives the answers of a game already played, so that the evaluator judges it."""

    def __init__(self, answers: dict[str, list[str]]):
        self._answers = answers

    def act(self, conversations: list[Conversation]) -> Sequence[str]:
        turns = [(self._answers[c.key.partition("/")[0]], len(c.turns)) for c in conversations]
        return [answers[turn] if turn < len(answers) else "" for answers, turn in turns]


def _script(policy: Any, tasks: Sequence[Any], max_turns: int) -> _Script:
    """What a policy answers in games that the fast player plays now."""
    played = play(policy, boards.patches(), fields.from_mazes(tasks), max_turns)
    texts = (*words.ACTION_TEXTS, "")  # the last is for -1: an answer that was no action, or none
    answers = {
        task.digest: [texts[action] for action in actions]
        for task, actions in zip(tasks, played.actions, strict=True)
    }
    return _Script(answers)


def judge(run_dir: Path, policy: Any, name: str) -> dict[str, Any]:
    """Play a policy on the sealed splits of a run, under `<name>-<split>`; returns {split: summary}."""
    chosen = recipe.read_resolved(run_dir / "recipe.json").environment
    candidate = f"{name}:{_digest(policy)}"
    found = {}
    for split in SPLITS:
        tasks = [splits.row_task(row) for row in lineage.read_split(run_dir, split)]
        settings = EvaluationSettings(
            chosen.make(), max_turns=chosen.max_turns, reward=chosen.reward, policy=candidate
        )
        what = Play(split, f"{name}-{split}", tasks, settings, sealed_as=candidate)
        found[split] = plays.perform(run_dir, what, partial(_script, policy, tasks, chosen.max_turns))
    return found


def _digest(policy: Any) -> str:
    total = hashlib.sha256()
    for name, tensor in sorted(policy.state_dict().items()):
        total.update(name.encode() + tensor.numpy().tobytes())
    return total.hexdigest()[:16]


def read(run_dir: Path) -> dict[str, Any]:
    """The comparison so far. Raises DataError when the run's cost was not measured."""
    path = run_dir / COST
    if not path.is_file():
        raise DataError(
            f"{run_dir} holds no {COST}", "name a finished run of `make rehearse` or `make sweep`"
        )
    cost = read_json(path)
    run = {
        "cpu_s": cost["training_cpu_s"] + cost["cluster"]["cpu_s"],
        "wall_s": cost["training_wall_s"] + cost["cluster"]["wall_s"],
    }
    done = read_json(run_dir / FILE)["policies"] if (run_dir / FILE).is_file() else {}
    return {"run": run, "policies": done}


def add(run_dir: Path, base_dir: Path, name: str) -> None:
    """Make one of NAMES, judge it and write it into the comparison; the process must be a fresh one."""
    torch.set_num_threads(1)
    found, clock = read(run_dir), Clock()
    if name == "perception":
        policy, record = perception.load(perception.shipped())
        entry: dict[str, Any] = {"weights_sha256": record["weights_sha256"]}
    else:
        policy = _base(run_dir, base_dir)
        clock.look(policy)
        seed = lineage.read(run_dir)["recipe"]["seed"]
        steps = teach(policy, TEACHERS[name], seed, found["run"]["cpu_s"], clock)
        entry = {"teacher": asdict(TEACHERS[name]), "steps": steps}
        entry |= {"cpu_s": round(clock.spent(), 1), "dev": clock.dev}
    found["policies"][name] = entry | {"splits": judge(run_dir, policy, name)}
    write_json(run_dir / FILE, found)


def _base(run_dir: Path, base_dir: Path) -> Any:
    from transformers import Qwen3VLForConditionalGeneration

    wanted, digest = lineage.read(run_dir)["base"]["digest"], tree_digest(base_dir)
    if digest != wanted:
        raise DataError(
            f"{base_dir} has digest {digest[:16]}, the run's base {wanted[:16]}", "name the run's base"
        )
    return Qwen3VLForConditionalGeneration.from_pretrained(base_dir, dtype=torch.float32)


def main() -> None:
    parser = argparse.ArgumentParser(description="spend a run's CPU time on imitation instead")
    parser.add_argument("run_dir", type=Path, help="a finished run, which gets a comparison.json")
    parser.add_argument("base_dir", type=Path, help="the base that the run started from")
    parser.add_argument("--only", choices=NAMES, help="one part, in this process")
    options = parser.parse_args()
    try:
        if options.only:
            add(options.run_dir, options.base_dir, options.only)
            return
        missing = [name for name in NAMES if name not in read(options.run_dir)["policies"]]
        for name in missing:
            print(f"{name} ...", flush=True)
            own = [str(options.run_dir), str(options.base_dir), "--only", name]
            subprocess.run([sys.executable, "-m", "rehearsal.tiny.compare", *own], check=True)
    except SkypodError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    except subprocess.CalledProcessError as error:
        raise SystemExit(error.returncode) from None
    for name, part in read(options.run_dir)["policies"].items():
        rates = ", ".join(f"{split} {one['solve_rate']:.1%}" for split, one in part["splits"].items())
        print(f"{name:11s} {part.get('cpu_s', 0):7.1f} CPU-s  {rates}")


if __name__ == "__main__":
    main()
