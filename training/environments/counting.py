"""Counting: one look at a board of discs and squares, one answer: how many of the kind asked for."""

import random
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any, ClassVar

import numpy as np

from training import symmetry
from training.environments.base import BIGGER, PLAIN, RECOLOURED, Environment, Observation
from training.errors import DataError
from training.protocol import action_text
from training.render import PALETTES

EMPTY, DISC, SQUARE = ".", "o", "x"
KINDS = {DISC: "discs", SQUARE: "squares"}
LEAST, MOST = 1, 9
SIDES = {PLAIN: 4, RECOLOURED: 4, BIGGER: 6}
LARGEST_SIDE = 16
CELL_PX, SIDE_MULTIPLE = 16, 32
REMEDY = "use tasks that this environment drew, or repair the data file"
_ANSWER = re.compile(r"""\(\s*(['"])count\1\s*,\s*([1-9])\s*\)""", re.ASCII)


@dataclass(frozen=True)
class Board:
    """One task: what lies where, one character of EMPTY, DISC and SQUARE per cell, and the kind to count.

    Raises DataError when no answer would be right: none of the kind, or more than can be answered.
    """

    rows: tuple[str, ...]
    kind: str
    palette: str = "visgym"

    def __post_init__(self) -> None:
        height, width = self.shape
        if not (1 <= height <= LARGEST_SIDE and 1 <= width <= LARGEST_SIDE):
            raise DataError(f"board of {height}x{width} cells: sides must be 1 to {LARGEST_SIDE}", REMEDY)
        if {len(row) for row in self.rows} != {width} or set(self._text) - {EMPTY, DISC, SQUARE}:
            raise DataError(f"board {self.rows!r:.80} is no rectangle of '.', 'o' and 'x'", REMEDY)
        if self.kind not in KINDS or self.palette not in PALETTES:
            raise DataError(f"board with kind {self.kind!r} and palette {self.palette!r}", REMEDY)
        if not LEAST <= self.count <= MOST:
            raise DataError(
                f"board has {self.count} {KINDS[self.kind]}; answers are {LEAST} to {MOST}", REMEDY
            )

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in cells."""
        return len(self.rows), len(self.rows[0]) if self.rows else 0

    @property
    def count(self) -> int:
        """The right answer."""
        return self._text.count(self.kind)

    @cached_property
    def digest(self) -> str:
        return symmetry.digest(self.shape, self.kind + self._text)

    @cached_property
    def layout_digest(self) -> str:
        return symmetry.digest(self.shape, self._text)

    @cached_property
    def canonical_digest(self) -> str:
        return symmetry.digest((1, 1), self.kind + self.canonical_layout_digest)

    @cached_property
    def canonical_layout_digest(self) -> str:
        return symmetry.canonical_digest(self.shape, self._text)

    def to_json(self) -> dict[str, Any]:
        return {"rows": list(self.rows), "kind": self.kind, "palette": self.palette}

    def picture(self) -> np.ndarray:
        """uint8 [height, width, 3], filled up with wall to sides of SIDE_MULTIPLE pixels."""
        colours = PALETTES[self.palette]
        shapes = {DISC: (_disc(), colours.agent), SQUARE: (_square(), colours.goal)}
        sides = (-(-cells * CELL_PX // SIDE_MULTIPLE) * SIDE_MULTIPLE for cells in self.shape)
        image = np.full((*sides, 3), colours.wall, np.uint8)
        for at, thing in enumerate(self._text):
            top, left = (CELL_PX * part for part in divmod(at, self.shape[1]))
            cell = image[top : top + CELL_PX, left : left + CELL_PX]
            cell[:] = colours.floor
            if thing in shapes:
                where, colour = shapes[thing]
                cell[where] = colour
        return image

    @property
    def _text(self) -> str:
        return "".join(self.rows)


class CountingWorld:
    """A board that is asked about once."""

    def __init__(self, board: Board):
        self._board = board
        self._answer: int | None = None

    @property
    def over(self) -> bool:
        return self._answer is not None

    @property
    def solved(self) -> bool:
        return self._answer == self._board.count

    def observe(self) -> Observation:
        kind = KINDS[self._board.kind]
        text = f"How many {kind} are there? Answer ('count', n) with n from {LEAST} to {MOST}."
        return Observation(self._board.picture(), text)

    def act(self, action: str) -> bool:
        self._answer = CountingEnvironment.actions.index(action) + LEAST
        return True

    def best_action(self) -> str:
        return CountingEnvironment.actions[self._board.count - LEAST]


@dataclass(frozen=True)
class CountingEnvironment(Environment):
    """Every count is equally likely, so that no constant answer is right more often than one in nine."""

    name: ClassVar[str] = "counting"
    actions: ClassVar[tuple[str, ...]] = tuple(f"('count', {n})" for n in range(LEAST, MOST + 1))
    reminder: ClassVar[str] = "That was no answer. Answer ('count', n) and nothing else."

    def load(self, data: Mapping[str, Any]) -> Board:
        if not isinstance(data, Mapping) or data.keys() != {"rows", "kind", "palette"}:
            found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
            raise DataError(f"a board needs rows, kind and palette, found {found}", REMEDY)
        rows = data["rows"]
        if not isinstance(rows, Sequence) or not all(isinstance(row, str) for row in rows):
            raise DataError(f"the rows of a board must be texts, found {rows!r:.80}", REMEDY)
        return Board(tuple(rows), str(data["kind"]), str(data["palette"]))

    def draw(self, rng: random.Random, variant: str = PLAIN) -> Board:
        side = SIDES[variant]
        kind, other = rng.sample((DISC, SQUARE), 2)
        things = kind * rng.randint(LEAST, MOST)
        things += other * rng.randint(0, min(MOST, side * side - len(things)))
        cells = list(things.ljust(side * side, EMPTY))
        rng.shuffle(cells)
        rows = tuple("".join(cells[at : at + side]) for at in range(0, side * side, side))
        return Board(rows, kind, "dusk" if variant == RECOLOURED else "visgym")

    def mirrored(self, task: Board) -> Board:
        return replace(task, rows=tuple(row[::-1] for row in task.rows))

    def optimal_turns(self, task: Board) -> int:
        return 1

    def parse(self, answer: str) -> str | None:
        found = _ANSWER.fullmatch(action_text(answer) or "")
        return f"('count', {found[2]})" if found else None

    def world(self, task: Board) -> CountingWorld:
        return CountingWorld(task)


def _disc() -> np.ndarray:
    """bool [px, px]"""
    down, right = np.mgrid[0:CELL_PX, 0:CELL_PX] - (CELL_PX - 1) / 2
    return down**2 + right**2 <= (0.3 * CELL_PX) ** 2


def _square() -> np.ndarray:
    """bool [px, px]"""
    down, right = np.abs(np.mgrid[0:CELL_PX, 0:CELL_PX] - (CELL_PX - 1) / 2)
    return np.maximum(down, right) <= 0.28 * CELL_PX
