"""Stage 2: the policy that sees takes over bad habits, and is left for reinforcement to correct.

Only the language model learns; the vision tower, and with it what is seen, stays as it is.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from rehearsal.tiny import boards, demonstrators, learn, perception
from rehearsal.tiny.demonstrators import Habits
from rehearsal.tiny.journal import Journal
from rehearsal.tiny.learn import Schedule

ACQUIRE = Schedule(steps=70, rate=1e-3, warmup=10)
SHOWN = Habits(hasty=0.75, impatient=0.75)


@dataclass(frozen=True)
class Plan:
    """How much of what stage 2 learns from: habits, mazes to draw, games per step, random moves."""

    habits: Habits = SHOWN
    mazes: int = 2000
    acquire: Schedule = ACQUIRE
    games: int = 16
    noise: float = 0.1


QUICK = Plan(mazes=400, acquire=Schedule(steps=40, rate=1.5e-3, warmup=5), games=10)


def train(policy: Any, seed: int, plan: Plan, journal: Journal) -> None:
    """Teach the habits to `policy` in place; steps already in the journal's folder are not repeated."""
    board, taught = boards.learning("habits", seed, plan.mazes)
    journal.note("habits-data", mazes=plan.mazes, digest=taught.digest)

    def acquire(rng: np.random.Generator) -> torch.Tensor:
        batch = boards.sample(board, plan.games, rng)
        games = demonstrators.play(batch, plan.habits, plan.noise, boards.MAX_TURNS, rng)
        return learn.game_loss(policy, boards.patches(), games, board.side, frozen_vision=True)

    policy.model.visual.requires_grad_(False)
    learn.minimize(
        acquire,
        [policy.model.language_model, policy.lm_head],
        plan.acquire,
        seeds=(seed, len(perception.PARTS)),
        state_file=journal.folder / "habits.pt",
        on_progress=lambda step, loss: journal.note("habits", step=step, loss=loss),
    )
    policy.model.visual.requires_grad_(True)
