"""Stage 1: a policy that sees mazes, taught by the oracle.

First the vision tower alone learns, with throw-away linear heads that must name, at every cell, what
`what_to_see` lists. Then the language model learns to read it: at a glance, from one turn anywhere in a maze,
and at last from whole games.

`python -m rehearsal.tiny.perception --out DIR --seed 0` makes the checkpoint that ships in `data/perception`
(about 215 CPU seconds; equal seeds give equal weights on one machine, and nearly equal ones elsewhere).
"""

from __future__ import annotations

import argparse
import json
import os
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from importlib import resources
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file, save_file

from rehearsal.tiny import atlas, boards, demonstrators, learn, model, vision
from rehearsal.tiny.fields import Fields
from rehearsal.tiny.journal import Journal, grades
from rehearsal.tiny.learn import Schedule
from training.audits.ancestry import Body
from training.errors import DataError
from training.files import file_digest, write_json

WEIGHTS, RECORD = "model.safetensors", "perception.json"
PARTS = ("see", "glance", "read")
SEE = Schedule(steps=700, rate=1.5e-3)
GLANCE = Schedule(steps=80, rate=1.5e-3, warmup=20)
READ = Schedule(steps=150, rate=1.5e-3, warmup=20)
FAR = 3
"""Distances from here on look alike."""
HEADS = (learn.DIRECTIONS, learn.DIRECTIONS, FAR + 1, 2)
"""Classes of each head, in the order of `what_to_see`."""
WEIGHTS_OF_HEADS = (1.0, 0.3, 0.3, 0.3)


@dataclass(frozen=True)
class Plan:
    """How much of what stage 1 learns from: mazes to draw, pictures and games per step, random moves.

    Pictures count for `see` and `glance`, games for `read`.
    """

    mazes: int = 8000
    see: Schedule = SEE
    glance: Schedule = GLANCE
    pictures: int = 128
    read: Schedule = READ
    games: int = 16
    noise: float = 0.15


def seeing_loss(
    policy: Any, heads: torch.nn.Linear, tiles: torch.Tensor, board: Fields, cells: np.ndarray
) -> torch.Tensor:
    """Weighted sum of the cross entropies of `heads` on the features of all cells of all pictures."""
    numbers = torch.from_numpy(atlas.codes(board, cells))
    features, _ = vision.encode(policy.model.visual, tiles, numbers, board.side)
    logits = heads(features).split(HEADS, 1)
    return sum(
        weight * F.cross_entropy(found, torch.from_numpy(right.reshape(-1)))
        for weight, found, right in zip(WEIGHTS_OF_HEADS, logits, what_to_see(board, cells), strict=True)
    )


def what_to_see(board: Fields, cells: np.ndarray) -> list[np.ndarray]:
    """What each cell's feature should tell, int [N, cells] for each of HEADS, the agent being on `cells`.

    The shortest way from that cell, the beeline from it, how far it is from the goal, and whether the agent
    is there.
    """
    games = np.arange(len(board))
    places = range(board.side**2)
    beelines = [demonstrators.beeline(board, np.full(len(board), place)) for place in places]
    here = np.zeros_like(board.flow)
    here[games, cells] = 1
    return [board.flow, np.stack(beelines, 1), np.minimum(board.distance, FAR), here]


def train(seed: int, plan: Plan, journal: Journal) -> Any:
    """The policy of stage 1; steps already in the journal's folder are not repeated."""
    policy = model.initialize(seed)
    heads = torch.nn.Linear(model.WIDTH, sum(HEADS))
    tiles = boards.patches()
    board, taught = boards.learning("perception", seed, plan.mazes)
    journal.note("perception-data", mazes=plan.mazes, digest=taught.digest)

    def see(rng: np.random.Generator) -> torch.Tensor:
        batch = boards.sample(board, plan.pictures, rng)
        return seeing_loss(policy, heads, tiles, batch, rng.integers(0, board.side**2, plan.pictures))

    def play(batch: Fields, turns: int, rng: np.random.Generator) -> torch.Tensor:
        games = demonstrators.play(batch, demonstrators.Habits(), plan.noise, turns, rng)
        return learn.game_loss(policy, tiles, games, board.side, frozen_vision=True)

    def glance(rng: np.random.Generator) -> torch.Tensor:
        batch = boards.sample(board, plan.pictures, rng)
        anywhere = replace(batch, start=rng.integers(0, board.side**2, plan.pictures))
        return play(anywhere, 1, rng)

    def read(rng: np.random.Generator) -> torch.Tensor:
        return play(boards.sample(board, plan.games, rng), boards.MAX_TURNS, rng)

    def study(
        name: str, loss_of: Callable[..., torch.Tensor], modules: list[torch.nn.Module], part: Schedule
    ) -> None:
        learn.minimize(
            loss_of,
            modules,
            part,
            seeds=(seed, PARTS.index(name)),
            state_file=journal.folder / f"{name}.pt",
            on_progress=lambda step, loss: journal.note(name, step=step, loss=loss),
        )

    study("see", see, [policy.model.visual, heads], plan.see)
    policy.model.visual.requires_grad_(False)
    language = [policy.model.language_model, policy.lm_head]
    study("glance", glance, language, plan.glance)
    study("read", read, language, plan.read)
    policy.model.visual.requires_grad_(True)
    return policy


def save(policy: Any, folder: Path, record: dict[str, Any]) -> None:
    """Write the weights, rounded to half precision, and the record that holds their digest."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {name: tensor.half().contiguous() for name, tensor in policy.state_dict().items()}
    save_file(weights, folder / WEIGHTS)
    write_json(folder / RECORD, record | {"weights_sha256": file_digest(folder / WEIGHTS)})


def load(folder: Path) -> tuple[Any, dict[str, Any]]:
    """A saved stage 1 as a float32 policy, and its record; DataError when it is missing or was changed."""
    remedy = "make it with `python -m rehearsal.tiny.perception --out DIR`"
    try:
        record = json.loads((folder / RECORD).read_text())
        found = file_digest(folder / WEIGHTS)
    except OSError as error:
        raise DataError(f"no stage 1 in {folder}: {error.strerror}", remedy) from None
    if found != record["weights_sha256"]:
        raise DataError(f"{folder / WEIGHTS} has digest {found}, not {record['weights_sha256']}", remedy)
    policy = model.initialize(0)
    policy.load_state_dict({name: tensor.float() for name, tensor in load_file(folder / WEIGHTS).items()})
    return policy, record


def taught(record: dict[str, Any]) -> Body:
    """The mazes that a saved stage 1 was taught. DataError when its seed does not give them any more."""
    _, body = boards.learning("perception", record["seed"], record["plan"]["mazes"])
    if body.digest != record["taught"]:
        raise DataError(
            f"stage 1 was taught mazes {record['taught'][:16]}, its seed now gives {body.digest[:16]}",
            "train stage 1 again: what it was taught cannot be declared",
        )
    return body


def shipped() -> Path:
    """Folder of the stage 1 that comes with this package."""
    return Path(str(resources.files("rehearsal.tiny"))) / "data" / "perception"


def make(out_dir: Path, seed: int) -> None:
    """Train stage 1 into `out_dir`, which appears in one step; a killed run continues where it was."""
    plan = Plan()
    request = {"seed": seed, "plan": asdict(plan)}
    journal = Journal(out_dir.with_name(out_dir.name + ".work"), request)
    policy = train(seed, plan, journal)
    partial = out_dir.with_name(out_dir.name + ".partial")
    save(policy, partial, {})
    rounded, _ = load(partial)
    _, taught = boards.learning("perception", seed, plan.mazes)
    found = {"grades": grades(rounded), "journal": journal.entries(), "taught": taught.digest}
    save(policy, partial, request | found)
    os.replace(partial, out_dir)
    journal.discard()


def main() -> None:
    parser = argparse.ArgumentParser(description="train stage 1, the policy that sees")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    torch.set_num_threads(1)
    make(options.out, options.seed)


if __name__ == "__main__":
    main()
