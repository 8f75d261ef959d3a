"""The warm start of the laptop: a checkpoint that sees mazes and plays them with bad habits.

`python -m rehearsal.tiny.warmstart --out DIR --seed N` starts from the shipped stage 1, `--stage1 DIR` from
another one, `--stage1 scratch` trains it first. A run that was killed continues where it was; DIR appears in
one step, with everything in it, when all is done.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import sys
from dataclasses import asdict
from pathlib import Path
from typing import Any

import torch

from rehearsal.tiny import boards, habits, model, perception
from rehearsal.tiny.journal import Journal, grades
from training.audits import ancestry
from training.audits.ancestry import Body
from training.errors import ConfigError, SkypodError
from training.files import tree_digest, write_json

RECORD = "warmstart.json"
SHIPPED, SCRATCH = "shipped", "scratch"


def make(out_dir: Path, seed: int, *, stage1: str = SHIPPED, quick: bool = False) -> dict[str, Any]:
    """Write the warm-start checkpoint to `out_dir` and return its record; an equal one is left as it is.

    `stage1` is SHIPPED, SCRATCH or a folder that `rehearsal.tiny.perception` wrote. `quick` teaches less.
    Raises ConfigError when something else is at `out_dir`, DataError when stage 1 cannot be used.
    """
    request = {"seed": seed, "stage1": stage1, "quick": quick}
    if out_dir.exists():
        return _existing(out_dir, request)
    torch.set_num_threads(1)
    journal = Journal(out_dir.with_name(out_dir.name + ".work"), request)
    policy, source, seen = _seeing(stage1, seed, journal)
    plan = habits.QUICK if quick else habits.Plan()
    habits.train(policy, seed, plan, journal)
    found = grades(policy)
    journal.note("grades", **found)
    partial = out_dir.with_name(out_dir.name + ".partial")
    shutil.rmtree(partial, ignore_errors=True)
    model.save(policy, partial)
    _, shown = boards.learning("habits", seed, plan.mazes)
    ancestry.declare(partial, [seen, shown])
    record = request | {
        "perception": source,
        "habits": asdict(plan),
        "grades": found,
        "cpu_s": journal.cpu_s(),
        "journal": journal.entries(),
        "model_digest": tree_digest(partial),
    }
    write_json(partial / RECORD, record)
    os.replace(partial, out_dir)
    journal.discard()
    return record


def _seeing(stage1: str, seed: int, journal: Journal) -> tuple[Any, dict[str, Any], Body]:
    """The policy of stage 1, where it is from, and what it was taught."""
    if stage1 == SCRATCH:
        plan = perception.Plan()
        policy = perception.train(seed, plan, journal)
        return policy, {"trained": asdict(plan)}, boards.learning("perception", seed, plan.mazes)[1]
    policy, record = perception.load(perception.shipped() if stage1 == SHIPPED else Path(stage1))
    source = {name: record[name] for name in ("seed", "weights_sha256", "grades")}
    journal.note("stage1", **source)
    return policy, source, perception.taught(record)


def _existing(out_dir: Path, request: dict[str, Any]) -> dict[str, Any]:
    try:
        record = json.loads((out_dir / RECORD).read_text())
    except (OSError, ValueError):
        raise ConfigError(f"{out_dir} is there and is no warm start", "name another folder") from None
    if any(record[name] != value for name, value in request.items()):
        raise ConfigError(
            f"{out_dir} holds a warm start of another request than {request}",
            "name another folder, or remove that one",
        )
    return record


def main() -> None:
    parser = argparse.ArgumentParser(description="make the checkpoint that the laptop's training starts from")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--stage1", default=SHIPPED, help=f"{SHIPPED} (default), {SCRATCH}, or a folder")
    parser.add_argument("--quick", action="store_true", help="teach less: for smoke tests")
    options = parser.parse_args()
    try:
        record = make(options.out, options.seed, stage1=options.stage1, quick=options.quick)
    except SkypodError as error:
        print(error, file=sys.stderr)
        raise SystemExit(error.exit_code) from None
    print(json.dumps({"out": str(options.out), "cpu_s": record["cpu_s"], **record["grades"]}))


if __name__ == "__main__":
    main()
