"""Mazes as arrays: openings, shortest ways to the goal and the eight symmetries, for whole batches.

Cells are numbered row by row; directions are 0..3 = right, up, left, down, `STOP` = 4 means "at the goal".
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from rehearsal.tiny.tokenizer import STOP

if TYPE_CHECKING:
    from training.mazes import Maze

STEPS = ((0, 1), (-1, 0), (0, -1), (1, 0))
_FAR = 10_000


def neighbours(side: int) -> np.ndarray:
    """int [cells, 4]: the cell reached by each direction, or the cell itself at the border."""
    table = np.empty((side * side, 4), np.int64)
    for cell in range(side * side):
        row, column = divmod(cell, side)
        for direction, (down, right) in enumerate(STEPS):
            r, c = row + down, column + right
            table[cell, direction] = r * side + c if 0 <= r < side and 0 <= c < side else cell
    return table


def symmetries(side: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """The eight symmetries of a square as (cell to cell, direction to direction) index arrays."""
    rows, columns = np.divmod(np.arange(side * side), side)
    last, found = side - 1, []
    for transpose in (False, True):
        for flip_rows in (False, True):
            for flip_columns in (False, True):
                r, c = (columns, rows) if transpose else (rows, columns)
                r, c = (last - r if flip_rows else r), (last - c if flip_columns else c)
                turns = []
                for down, right in STEPS:
                    d, s = (right, down) if transpose else (down, right)
                    turns.append(STEPS.index((-d if flip_rows else d, -s if flip_columns else s)))
                found.append((r * side + c, np.array(turns)))
    return found


@dataclass(frozen=True)
class Fields:
    """N square mazes of one size.

    opened: bool [N, cells, 4], start and goal: int [N], distance: int [N, cells] steps to the goal,
    flow: int [N, cells], the direction of the shortest way to the goal, STOP on the goal.
    """

    side: int
    opened: np.ndarray
    start: np.ndarray
    goal: np.ndarray
    distance: np.ndarray
    flow: np.ndarray

    def __len__(self) -> int:
        return len(self.goal)

    def take(self, index: np.ndarray) -> Fields:
        """The chosen mazes, in the given order."""
        return Fields(
            self.side,
            self.opened[index],
            self.start[index],
            self.goal[index],
            self.distance[index],
            self.flow[index],
        )

    def turned(self, which: np.ndarray) -> Fields:
        """Each maze under its own symmetry; `which`: int [N] in 0..7."""
        parts = symmetries(self.side)
        cells, turns = np.stack([p[0] for p in parts]), np.stack([p[1] for p in parts])
        back_cells, back_turns = np.argsort(cells, 1)[which], np.argsort(turns, 1)[which]
        n = np.arange(len(self))
        opened = self.opened[n[:, None, None], back_cells[:, :, None], back_turns[:, None, :]]
        with_stop = np.concatenate([turns, np.full((8, 1), STOP)], 1)[which]
        flow = np.take_along_axis(with_stop, self.flow[n[:, None], back_cells], 1)
        return Fields(
            self.side,
            opened,
            cells[which, self.start],
            cells[which, self.goal],
            self.distance[n[:, None], back_cells],
            flow,
        )

    def moved(self, cells: np.ndarray, actions: np.ndarray) -> np.ndarray:
        """Cells [N] after one action each; a wall or STOP leaves a cell as it is."""
        n = np.arange(len(self))
        direction = np.minimum(actions, 3)
        free = (actions < STOP) & self.opened[n, cells, direction]
        return np.where(free, neighbours(self.side)[cells, direction], cells)


def build(side: int, opened: np.ndarray, start: np.ndarray, goal: np.ndarray) -> Fields:
    """Solve N mazes at once, by relaxing all distances until nothing changes."""
    reach = neighbours(side)
    n = np.arange(len(goal))
    distance = np.full(opened.shape[:2], _FAR, np.int64)
    distance[n, goal] = 0
    while True:
        through = np.where(opened, distance[:, reach], _FAR)
        best = np.minimum(distance, through.min(2) + 1)
        if (best == distance).all():
            break
        distance = best
    flow = np.where(opened, distance[:, reach], _FAR).argmin(2)
    flow[n, goal] = STOP
    return Fields(side, opened, start, goal, distance, flow)


def from_mazes(mazes: Sequence[Maze]) -> Fields:
    """Fields of square mazes of one size, cells every second square of `Maze.rows`."""
    walls = np.array([[list(row) for row in maze.rows] for maze in mazes]) == "#"
    side = walls.shape[1] // 2
    centre = slice(1, None, 2)
    free = [
        ~walls[:, centre, 2::2],
        ~walls[:, 0:-1:2, centre],
        ~walls[:, centre, 0:-1:2],
        ~walls[:, 2::2, centre],
    ]
    opened = np.stack(free, -1).reshape(len(mazes), side * side, 4)

    def cells(squares: list[tuple[int, int]]) -> np.ndarray:
        return np.array([(r // 2) * side + c // 2 for r, c in squares])

    return build(side, opened, cells([m.start for m in mazes]), cells([m.goal for m in mazes]))
