"""The mazes of the warm start: which it may learn from, and which it is only measured on."""

from __future__ import annotations

from functools import cache, lru_cache

import numpy as np
import torch

from rehearsal.tiny import atlas, fields
from rehearsal.tiny.fields import Fields
from training import splits
from training.audits import ancestry
from training.audits.ancestry import Body
from training.environments.maze import MazeEnvironment
from training.mazes import Maze
from training.render import RenderStyle

ENVIRONMENT = MazeEnvironment(squares_per_move=2)
MAX_TURNS = 10
STYLE = RenderStyle()
DEV_GAMES = 128
_EPOCHS = {"perception": -1, "habits": -2}
"""Epochs no training run reaches, so that the warm start draws other mazes than the run that follows it."""


def learning(stage: str, seed: int, count: int) -> tuple[Fields, Body]:
    """`count` training mazes of a stage, as fields and as what is declared of them.

    None is an evaluation maze, up to symmetry. Each is shown in all symmetries: see `sample`.
    """
    mazes = _drawn(stage, seed, count)
    generator = {
        "function": "training.splits.draw_train",
        "environment": ENVIRONMENT.name,
        "seed": seed,
        "epoch": _EPOCHS[stage],
        "count": count,
    }
    taught = Body(stage, [ancestry.prints(maze) for maze in mazes], symmetries=True, generator=generator)
    return fields.from_mazes(mazes), taught


@lru_cache(maxsize=2)
def _drawn(stage: str, seed: int, count: int) -> list[Maze]:
    return [splits.row_task(row) for row in splits.draw_train(ENVIRONMENT, seed, count, epoch=_EPOCHS[stage])]


@cache
def test() -> Fields:
    """The 64 published mazes."""
    return fields.from_mazes([splits.row_task(row) for row in splits.evaluation_pool(ENVIRONMENT).test])


@cache
def dev() -> Fields:
    """The first DEV_GAMES development mazes."""
    rows = splits.evaluation_pool(ENVIRONMENT).dev[:DEV_GAMES]
    return fields.from_mazes([splits.row_task(row) for row in rows])


def ceiling(board: Fields) -> float:
    """Share of mazes that MAX_TURNS turns can solve."""
    return float((board.distance[np.arange(len(board)), board.start] < MAX_TURNS).mean())


def sample(board: Fields, count: int, rng: np.random.Generator) -> Fields:
    """`count` mazes drawn with replacement, each under a random symmetry."""
    return board.take(rng.integers(0, len(board), count)).turned(rng.integers(0, 8, count))


@cache
def patches() -> torch.Tensor:
    """The tiles of STYLE as the model takes them: float32 [TILES, values of a patch]."""
    return torch.from_numpy(atlas.patches(STYLE))
