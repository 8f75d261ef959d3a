"""Mazes as data: wall grids of odd sides, their digests, their shortest paths, and how to draw more of them.

Grid convention (that of VisGym `maze_2d`): a maze of n x m cells is a grid of (2n+1) x (2m+1) squares.
Cells are the squares with odd row and odd column, the squares between two cells are walls or passages, and
the rest is wall. Positions are (row, column) in squares. Moves are numbered 0 right, 1 up, 2 left, 3 down.
"""

import json
import random
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache, cached_property, lru_cache
from importlib import resources
from operator import itemgetter
from typing import Any

from training import symmetry
from training.errors import ConfigError, DataError

Square = tuple[int, int]
Picker = Callable[[str], tuple[str, ...]]

MOVES: tuple[Square, ...] = ((0, 1), (-1, 0), (0, -1), (1, 0))
WALL, FLOOR = "#", "."
LONGEST_SIDE = 101
REMEDY = "use mazes that training.mazes made, or repair the data file"


@dataclass(frozen=True)
class Maze:
    """One task: where the walls are, where the agent starts and where it has to stop.

    `rows` holds one string of '#' (wall) and '.' (floor) per row; `palette` (of training.render.PALETTES)
    says how it is to be shown and is part of no digest. Raises DataError when the grid is not a maze of cells
    with a closed border, or when no path leads from start to goal.
    """

    rows: tuple[str, ...]
    start: Square
    goal: Square
    palette: str = "visgym"

    def __post_init__(self) -> None:
        height, width = self.shape
        _check_grid(self.rows, height, width)
        for name, (row, column) in (("start", self.start), ("goal", self.goal)):
            inside = 0 < row < height and 0 < column < width
            if not (inside and row % 2 and column % 2):
                raise DataError(f"maze {name} {(row, column)} is no cell of a {height}x{width} grid", REMEDY)
        if self.start == self.goal:
            raise DataError(f"maze start and goal are the same cell {self.start}", REMEDY)
        if self.start not in self.distances:
            raise DataError(f"maze has no path from {self.start} to {self.goal}", REMEDY)

    @property
    def shape(self) -> tuple[int, int]:
        """Height and width in squares."""
        return len(self.rows), len(self.rows[0]) if self.rows else 0

    @property
    def cells(self) -> tuple[int, int]:
        """Height and width in cells."""
        height, width = self.shape
        return height // 2, width // 2

    @cached_property
    def distances(self) -> dict[Square, int]:
        """Steps to the goal, in squares, of every square from which it can be reached."""
        rows = self.rows
        found = {self.goal: 0}
        queue = [self.goal]
        for row, column in queue:
            steps = found[row, column] + 1
            for down, right in MOVES:
                square = (row + down, column + right)
                if square not in found and rows[square[0]][square[1]] == FLOOR:
                    found[square] = steps
                    queue.append(square)
        return found

    @property
    def moves(self) -> int:
        """Length of the shortest path in squares; the stop action is not counted."""
        return self.distances[self.start]

    def is_open(self, square: Square) -> bool:
        """Whether the agent can stand on this square."""
        return self.rows[square[0]][square[1]] == FLOOR

    def best_move(self, position: Square) -> int | None:
        """The first move (0..3) of a shortest path from `position` to the goal; None on the goal."""
        steps = self.distances[position]
        for move, (down, right) in enumerate(MOVES):
            if self.distances.get((position[0] + down, position[1] + right), steps) < steps:
                return move
        return None

    def path(self) -> list[Square]:
        """The squares of a shortest path, start and goal included: `moves` + 1 of them."""
        squares = [self.start]
        while (move := self.best_move(squares[-1])) is not None:
            down, right = MOVES[move]
            squares.append((squares[-1][0] + down, squares[-1][1] + right))
        return squares

    @cached_property
    def digest(self) -> str:
        """Names this exact task: grid, start and goal (16 hexadecimal digits, as all digests of a maze)."""
        return symmetry.digest(self.shape, self._marked())

    @cached_property
    def layout_digest(self) -> str:
        """Names the grid alone, wherever start and goal are."""
        return symmetry.digest(self.shape, "".join(self.rows))

    @cached_property
    def canonical_digest(self) -> str:
        """Names the task up to the 8 rotations and reflections of the square."""
        return symmetry.canonical_digest(self.shape, self._marked())

    @cached_property
    def canonical_layout_digest(self) -> str:
        """Names the grid alone up to the 8 rotations and reflections of the square."""
        return symmetry.canonical_digest(self.shape, "".join(self.rows))

    def transformed(self, how: int) -> "Maze":
        """The same maze rotated or reflected; `how` is 0 (unchanged) to 7, see training.symmetry."""
        (height, width), text = symmetry.transformed(self.shape, self._marked(), how)
        start, goal = (divmod(text.index(mark), width) for mark in "SG")
        plain = text.replace("S", FLOOR).replace("G", FLOOR)
        rows = tuple(plain[row * width : (row + 1) * width] for row in range(height))
        return replace(self, rows=rows, start=start, goal=goal)

    def to_json(self) -> dict[str, Any]:
        """{"grid": [row, ...], "start": [row, column], "goal": ..., "palette"}: what `from_json` reads."""
        return {
            "grid": list(self.rows),
            "start": list(self.start),
            "goal": list(self.goal),
            "palette": self.palette,
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> "Maze":
        """Reads `to_json` or an entry of the published sets; other keys are ignored, `moves` is checked."""
        if not isinstance(data, Mapping) or not {"grid", "start", "goal"} <= data.keys():
            found = sorted(data) if isinstance(data, Mapping) else type(data).__name__
            raise DataError(f"a maze needs grid, start and goal, found {found}", REMEDY)
        grid = data["grid"]
        if not isinstance(grid, Sequence) or not all(isinstance(row, str) for row in grid):
            raise DataError(f"a maze grid must be a list of strings, found {grid!r:.80}", REMEDY)
        palette = data.get("palette", cls.palette)
        if not isinstance(palette, str):
            raise DataError(f"a maze palette must be a name, found {palette!r:.80}", REMEDY)
        maze = _checked(tuple(grid), *(_square(data[name], name) for name in ("start", "goal")), palette)
        if data.get("moves", maze.moves) != maze.moves:
            raise DataError(f"maze {maze.digest} says {data['moves']} moves, but has {maze.moves}", REMEDY)
        return maze

    def _marked(self) -> str:
        """The grid as one string with S on the start and G on the goal."""
        width = len(self.rows[0])
        squares = list("".join(self.rows))
        squares[self.start[0] * width + self.start[1]] = "S"
        squares[self.goal[0] * width + self.goal[1]] = "G"
        return "".join(squares)


@lru_cache(maxsize=4096)
def _checked(rows: tuple[str, ...], start: Square, goal: Square, palette: str) -> Maze:
    """A run's mazes are read again for every evaluation: each is checked and measured once."""
    return Maze(rows, start, goal, palette)


def generate(rng: random.Random | int, cells: tuple[int, int] = (4, 4)) -> Maze:
    """Draws a maze whose passages are a uniform spanning tree of the cells (Wilson's algorithm).

    `rng` is a generator or the seed of a new one; `cells` is (height, width). Start and goal are two
    opposite corners, each of the four ways equally likely.
    """
    height, width = cells
    if min(cells) < 1 or max(cells) * 2 + 1 > LONGEST_SIDE or height * width < 2:
        raise ConfigError(f"cannot make a maze of {height}x{width} cells", "use 2 to 50 cells a side")
    rng = rng if isinstance(rng, random.Random) else random.Random(rng)  # noqa: S311 (a replayable draw)
    grid = _carve(rng, height, width)
    last_row, last_column = 2 * height - 1, 2 * width - 1
    corners = (((1, 1), (last_row, last_column)), ((last_row, 1), (1, last_column)))
    start, goal = corners[rng.randrange(2)]
    if rng.randrange(2):
        start, goal = goal, start
    return Maze(grid, start, goal)


@cache
def published(name: str = "easy") -> tuple[Maze, ...]:
    """The 64 mazes of VisGym `maze_2d/<name>` seeds 0 to 63: "easy" (9x9 squares) or "hard" (11x11)."""
    if name not in ("easy", "hard"):
        raise ConfigError(f"unknown published maze set {name!r}", "use easy or hard")
    text = resources.files("training").joinpath("data", f"visgym_{name}.json").read_text(encoding="utf-8")
    return tuple(Maze.from_json(entry) for entry in json.loads(text)["mazes"])


def _carve(rng: random.Random, height: int, width: int) -> tuple[str, ...]:
    """Wilson's algorithm: loop-erased random walks join the tree until every cell is in it."""
    beside = neighbours(height, width)
    columns = 2 * width + 1
    squares = bytearray(WALL.encode() * (columns * (2 * height + 1)))
    in_tree = bytearray(height * width)
    root = rng.randrange(height * width)
    in_tree[root] = 1
    draw = rng.random
    for first in range(height * width):
        leaves_by: dict[int, int] = {}
        cell = first
        while not in_tree[cell]:
            options = beside[cell]
            # The last exit of every cell is the one that counts: overwriting it erases the loop.
            leaves_by[cell] = following = options[int(draw() * len(options))]
            cell = following
        cell = first
        while not in_tree[cell]:
            in_tree[cell] = 1
            following = leaves_by[cell]
            here, there = (
                columns * (2 * (at // width) + 1) + 2 * (at % width) + 1 for at in (cell, following)
            )
            squares[here] = squares[there] = squares[(here + there) // 2] = ord(FLOOR)
            cell = following
    text = squares.decode()
    return tuple(text[at : at + columns] for at in range(0, len(text), columns))


@cache
def neighbours(height: int, width: int) -> tuple[tuple[int, ...], ...]:
    """The cells beside each cell, both by number row by row, in the order of MOVES."""
    return tuple(
        tuple(
            (row + down) * width + column + right
            for down, right in MOVES
            if 0 <= row + down < height and 0 <= column + right < width
        )
        for row in range(height)
        for column in range(width)
    )


def _square(value: Any, name: str) -> Square:
    if not isinstance(value, Sequence) or len(value) != 2 or not all(type(part) is int for part in value):
        raise DataError(f"maze {name} must be [row, column], found {value!r:.40}", REMEDY)
    return value[0], value[1]


@cache
def _lattice(height: int, width: int) -> tuple[Picker, Picker]:
    """Pickers of the squares that must be wall (border, posts) and that must be floor (cells)."""
    walls, floors = [], []
    for row in range(height):
        for column in range(width):
            border = row in (0, height - 1) or column in (0, width - 1)
            if border or (row % 2 == 0 and column % 2 == 0):
                walls.append(row * width + column)
            elif row % 2 and column % 2:
                floors.append(row * width + column)
    return itemgetter(*walls), itemgetter(*floors, floors[0])


def _check_grid(rows: tuple[str, ...], height: int, width: int) -> None:
    if not (3 <= height <= LONGEST_SIDE and 3 <= width <= LONGEST_SIDE and height % 2 and width % 2):
        raise DataError(
            f"maze grid of {height}x{width} squares: sides must be odd, from 3 to {LONGEST_SIDE}", REMEDY
        )
    if any(len(row) != width for row in rows):
        raise DataError(f"maze grid rows have lengths {sorted({len(row) for row in rows})}", REMEDY)
    text = "".join(rows)
    if strange := set(text) - {WALL, FLOOR}:
        raise DataError(f"maze grid holds {sorted(strange)}, only '#' and '.' are squares", REMEDY)
    walls, floors = _lattice(height, width)
    if FLOOR in walls(text):
        raise DataError("maze grid has an opening in its border or a missing post", REMEDY)
    if WALL in floors(text):
        raise DataError("maze grid has a cell that is filled with wall", REMEDY)
