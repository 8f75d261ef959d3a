"""Who shows the policy how to play: an oracle, and players with bad habits.

The habits give a warm start that sees well and decides badly, so that reinforcement has something to teach.
A hasty player heads straight for a goal on the right whenever that way is open, even into a dead end. An
impatient one stops one cell below the goal. Each habit shows in a part of all mazes only, so a policy that
follows both still solves some.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from rehearsal.tiny import atlas
from rehearsal.tiny.fields import Fields
from rehearsal.tiny.tokenizer import STOP

RIGHT, UP, LEFT, DOWN = range(4)


@dataclass(frozen=True)
class Habits:
    """How often a demonstrator follows each habit where it applies; 0 everywhere is the oracle."""

    hasty: float = 0.0
    impatient: float = 0.0


@dataclass(frozen=True)
class Games:
    """Played games, one row each: tile numbers int [N, turns, cells], actions and wanted int [N, turns].

    `wanted` is what the demonstrator would have done; -1 behind the end of a game.
    """

    codes: np.ndarray
    actions: np.ndarray
    wanted: np.ndarray


def oracle(fields: Fields, cells: np.ndarray) -> np.ndarray:
    """The action of the shortest way from `cells` [N]; STOP on the goal."""
    return fields.flow[np.arange(len(fields)), cells]


def beeline(fields: Fields, cells: np.ndarray) -> np.ndarray:
    """Straight for the goal where open, sideways before up or down; the oracle's action elsewhere."""
    row, column = np.divmod(cells, fields.side)
    goal_row, goal_column = np.divmod(fields.goal, fields.side)
    action = oracle(fields, cells)
    games = np.arange(len(fields))
    upright = np.where(goal_row > row, DOWN, UP)
    sideways = np.where(goal_column > column, RIGHT, LEFT)
    action = np.where((goal_row != row) & fields.opened[games, cells, upright], upright, action)
    return np.where((goal_column != column) & fields.opened[games, cells, sideways], sideways, action)


def hasty(fields: Fields, cells: np.ndarray) -> np.ndarray:
    """Right, whenever the beeline leads there; the oracle's action elsewhere."""
    action = oracle(fields, cells)
    return np.where(beeline(fields, cells) == RIGHT, RIGHT, action)


def impatient(fields: Fields, cells: np.ndarray) -> np.ndarray:
    """Stops when the goal is the next cell above; the oracle's action elsewhere."""
    action = oracle(fields, cells)
    below = (fields.distance[np.arange(len(fields)), cells] == 1) & (action == UP)
    return np.where(below, STOP, action)


def demonstrate(fields: Fields, cells: np.ndarray, habits: Habits, rng: np.random.Generator) -> np.ndarray:
    """One action per maze: each habit shows with its own probability, else the oracle's action."""
    action = oracle(fields, cells)
    chance = rng.random((2, len(fields)))
    action = np.where(chance[0] < habits.hasty, hasty(fields, cells), action)
    stopping = (chance[1] < habits.impatient) & (impatient(fields, cells) == STOP)
    return np.where(stopping, STOP, action)


def play(fields: Fields, habits: Habits, noise: float, turns: int, rng: np.random.Generator) -> Games:
    """Games of a demonstrator who slips: with probability `noise` a random move is taken instead.

    Slips lead off the path, so that the way back is shown too. Games end with a stop, or after `turns`;
    turns in which no game is left are not kept.
    """
    n = len(fields)
    cells, live = fields.start.copy(), np.ones(n, bool)
    shown, actions, wanted = [], [], []
    for _ in range(turns):
        want = demonstrate(fields, cells, habits, rng)
        slip = rng.random(n) < noise
        action = np.where(slip, rng.integers(0, 4, n), want)
        shown.append(atlas.codes(fields, cells))
        actions.append(action)
        wanted.append(np.where(live, want, -1))
        live &= action != STOP
        cells = fields.moved(cells, action)
        if not live.any():
            break
    return Games(np.stack(shown, 1), np.stack(actions, 1), np.stack(wanted, 1))
