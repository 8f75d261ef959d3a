"""The maze as VisGym itself shows it: its pictures, its prompt, its feedback, its moves.

VisGym (github.com/visgym/VisGym, commit COMMIT) is needed only where episodes are played; it is never
imported for drawing tasks, auditing them, or replaying records. Each game starts from one of our mazes, so
splits, digests and audits are those of the environment "maze".
"""

import inspect
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from importlib import import_module
from typing import Any, ClassVar

import numpy as np

from training.environments.base import Observation
from training.environments.maze import MazeTasks, MazeWorld
from training.errors import SubstrateError
from training.mazes import WALL, Maze, Square
from training.protocol import ACTIONS, Action
from training.render import PALETTES, Palette

COMMIT = "0289034"
MODULE = "gymnasium.envs.maze_2d.maze_2d"
REMEDY = (
    f"put a checkout of visgym/VisGym at commit {COMMIT} on PYTHONPATH, and install pygame, cloudpickle "
    "and farama-notifications (its package is called gymnasium and takes the place of that one); "
    'or play the environment "maze"'
)
FORMAT = (
    "\n\nWrite that action and nothing else, without backticks. If you reason first, write the action behind "
    "it, between <action> and </action>."
)


class VisGymWorld:
    """One game inside VisGym, started from `maze`. Solved is its own end with its agent on its target."""

    def __init__(self, maze: Maze):
        height, width = maze.shape
        self._maze = maze
        self._game = _game_class()(maze_width=width, maze_height=height)
        start = {
            "maze_map": [[int(square == WALL) for square in row] for row in maze.rows],
            "agent_location": list(maze.start),
            "target_location": list(maze.goal),
        }
        _, self._info = self._game.reset(init_state=start)
        self._text = self._game.get_prompt() + FORMAT
        self.over = False

    @property
    def position(self) -> Square:
        """Where VisGym has its agent."""
        return _square(self._info, "agent")

    @property
    def solved(self) -> bool:
        return self.over and self.position == _square(self._info, "target")

    def observe(self) -> Observation:
        image = np.ascontiguousarray(self._game.render(), np.uint8)
        return Observation(_recoloured(image, PALETTES[self._maze.palette]), self._text)

    def act(self, action: str) -> bool:
        before = self.position
        _, _, terminated, truncated, self._info = self._game.step(str(action))
        self.over = bool(terminated or truncated)
        self._text = str(self._info["env_feedback"])
        return self.position != before

    def best_action(self) -> str:
        move = self._maze.best_move(self.position)
        return Action.STOP if move is None else ACTIONS[move]


@dataclass(frozen=True)
class VisGymEnvironment(MazeTasks):
    """One action is one square, as in VisGym. Records are replayed by our own rules, which are the same."""

    name: ClassVar[str] = "maze-visgym"
    reminder: ClassVar[str] = (
        "That was no action. Write one of "
        + ", ".join(ACTIONS)
        + ", alone or between <action> and </action>, without backticks."
    )

    def world(self, task: Maze) -> VisGymWorld:
        return VisGymWorld(task)

    def replay(self, task: Maze) -> MazeWorld:
        return MazeWorld(task, self.squares_per_move)


def _game_class() -> Any:
    """VisGym's class; SubstrateError where it is missing, or too old to start from a given maze."""
    try:
        found = import_module(MODULE).Maze2DEnv
    except (ImportError, AttributeError) as error:
        raise SubstrateError(f"VisGym cannot be imported here ({error})", REMEDY) from error
    if "init_state" not in inspect.signature(found.reset).parameters:
        raise SubstrateError("this VisGym cannot start from a given maze (reset has no init_state)", REMEDY)
    return found


def _square(info: Mapping[str, Any], name: str) -> Square:
    row, column = info[name]
    return int(row), int(column)


def _recoloured(image: np.ndarray, palette: Palette) -> np.ndarray:
    """The picture in another palette; VisGym has four flat colours, those of Palette()."""
    if palette == Palette():
        return image
    recoloured = image.copy()
    for name, colour in asdict(palette).items():
        recoloured[(image == getattr(Palette(), name)).all(-1)] = colour
    return recoloured
