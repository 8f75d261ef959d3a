"""The maze of VisGym `maze_2d` in our own pictures: walk to the goal and stop there."""

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from training import maze_batches, symmetry
from training.environments.base import BIGGER, PLAIN, RECOLOURED, Environment, Observation, World
from training.errors import ConfigError, DataError
from training.mazes import MOVES, Maze, Square, generate, published
from training.protocol import ACTIONS, Action, parse
from training.render import PALETTES, RenderStyle, draw

CELLS = {PLAIN: (4, 4), RECOLOURED: (4, 4), BIGGER: (5, 5)}
OTHER_PALETTE = "dusk"


class MazeWorld:
    """A maze with its agent. Only a stop on the goal solves it; any stop ends it."""

    def __init__(self, maze: Maze, squares_per_move: int, style: RenderStyle | None = None):
        self.maze = maze
        self.position: Square = maze.start
        self.over = False
        self._stride = squares_per_move
        self._style = style or RenderStyle.named(maze.palette)

    @property
    def solved(self) -> bool:
        return self.over and self.position == self.maze.goal

    def observe(self) -> Observation:
        return Observation(draw(self.maze, self.position, self._style))

    def act(self, action: str) -> bool:
        move = Action(action).move
        if move is None:
            self.over = True
            return False
        down, right = MOVES[move]
        row, column = self.position
        # With two squares a move the first is the wall or passage between the cells, the second is a cell.
        if not self.maze.is_open((row + down, column + right)):
            return False
        self.position = (row + down * self._stride, column + right * self._stride)
        return True

    def best_action(self) -> str:
        move = self.maze.best_move(self.position)
        return Action.STOP if move is None else ACTIONS[move]


@dataclass(frozen=True)
class MazeTasks(Environment):
    """What environments of mazes have in common; one of them says how far a move goes."""

    actions: ClassVar[tuple[str, ...]] = ACTIONS
    squares_per_move = 1

    def load(self, data: Mapping[str, Any]) -> Maze:
        maze = Maze.from_json(data)
        if maze.palette not in PALETTES:
            raise DataError(
                f"maze {maze.digest} has the unknown palette {maze.palette!r}",
                f"use one of {', '.join(PALETTES)}",
            )
        return maze

    def draw(self, rng: random.Random, variant: str = PLAIN) -> Maze:
        maze = generate(rng, CELLS[variant])
        return replace(maze, palette=OTHER_PALETTE) if variant == RECOLOURED else maze

    def draw_digests(self, seeds: Sequence[str]) -> Sequence[tuple[str, str, str, str]]:
        return maze_batches.draw(seeds, CELLS[PLAIN]).digests()

    def mirrored(self, task: Maze) -> Maze:
        return task.transformed(symmetry.MIRROR)

    def published(self) -> Sequence[tuple[str, Maze]]:
        return [(f"visgym maze_2d/easy seed {seed}", maze) for seed, maze in enumerate(published("easy"))]

    def optimal_turns(self, task: Maze) -> int:
        return task.moves // self.squares_per_move + 1

    def parse(self, answer: str) -> str | None:
        return parse(answer)

    def world(self, task: Maze) -> World:
        return MazeWorld(task, self.squares_per_move)


@dataclass(frozen=True)
class MazeEnvironment(MazeTasks):
    """`squares_per_move` is 1 (VisGym: one action, one square) or 2 (one action, one cell).

    `cell_px` and `wall_px` are the size of a cell and of its walls in the picture.
    """

    name: ClassVar[str] = "maze"
    squares_per_move: int = 1
    cell_px: int = 16
    wall_px: int = 2

    def __post_init__(self) -> None:
        RenderStyle(cell_px=self.cell_px, wall_px=self.wall_px)  # refuses sizes that cannot be drawn
        if self.squares_per_move not in (1, 2):
            raise ConfigError(
                f"squares_per_move = {self.squares_per_move}", "use 1 (one square) or 2 (one cell) a move"
            )

    def world(self, task: Maze) -> World:
        sizes = {"cell_px": self.cell_px, "wall_px": self.wall_px}
        return MazeWorld(task, self.squares_per_move, RenderStyle.named(task.palette, **sizes))
