"""One game of one maze: what the policy sees, what its answers do, and what came of it."""

from dataclasses import dataclass

import numpy as np

from training import reward as rewards
from training.errors import ConfigError
from training.mazes import MOVES, Maze, Square
from training.protocol import ACTIONS, Action, parse, strip_end
from training.render import RenderStyle, draw, image_data_url

__all__ = ["Episode", "EpisodeResult", "Outcome", "image_data_url", "optimal_turns"]

KEPT_CHARACTERS = 200


@dataclass(frozen=True)
class Outcome:
    """What one answer did: the episode is over, the answer was an action, the agent moved."""

    done: bool
    valid: bool
    moved: bool


@dataclass(frozen=True)
class EpisodeResult:
    """What came of an episode.

    `solved` is the world's word alone: stopped on the goal. `score` is the named reward. `format_ok` is the
    share of turns that were actions. `actions` has one action text per turn, "" for an answer that was none;
    `malformed` has the beginnings of those answers, in order.
    """

    solved: bool
    score: float
    format_ok: float
    turns: int
    optimal_turns: int
    actions: tuple[str, ...]
    malformed: tuple[str, ...] = ()


def optimal_turns(maze: Maze, squares_per_move: int) -> int:
    """Fewest turns that solve the maze, the stop included."""
    return maze.moves // squares_per_move + 1


class Episode:
    """Plays one maze. A malformed answer burns a turn; only a stop on the goal solves; turns are limited.

    `squares_per_move` is 1 (VisGym: one action, one square) or 2 (one action, one cell).
    """

    def __init__(
        self,
        maze: Maze,
        max_turns: int,
        squares_per_move: int = 1,
        style: RenderStyle | None = None,
        reward: str = rewards.DEFAULT,
    ):
        if max_turns < 1:
            raise ConfigError(f"max_turns = {max_turns} leaves no turn to play", "use 1 or more")
        if squares_per_move not in (1, 2):
            raise ConfigError(
                f"squares_per_move = {squares_per_move}", "use 1 (one square) or 2 (one cell) a move"
            )
        self.maze = maze
        self.max_turns = max_turns
        self.squares_per_move = squares_per_move
        self.style = style or RenderStyle()
        self.position: Square = maze.start
        self.done = False
        self.solved = False
        self._reward = rewards.named(reward)
        self._actions: list[str] = []
        self._malformed: list[str] = []

    @property
    def turns(self) -> int:
        """Turns played, malformed answers included."""
        return len(self._actions)

    @property
    def format_ok(self) -> float:
        """Share of the turns so far that were actions; 0 before the first."""
        return sum(map(bool, self._actions)) / max(self.turns, 1)

    def observation(self) -> np.ndarray:
        """The picture of now: uint8 [height, width, 3]."""
        return draw(self.maze, self.position, self.style)

    def best_action(self) -> Action:
        """The action of an oracle here."""
        move = self.maze.best_move(self.position)
        return Action.STOP if move is None else ACTIONS[move]

    def act(self, text: str) -> Outcome:
        """Plays one answer of the policy; an error once the episode is over."""
        if self.done:
            raise RuntimeError("the episode is over")
        action = parse(text)
        self._actions.append(action.value if action else "")
        moved = False
        if action is None:
            self._malformed.append(strip_end(text)[:KEPT_CHARACTERS])
        elif action is Action.STOP:
            self.solved = self.position == self.maze.goal
        else:
            moved = self._move(action)
        self.done = action is Action.STOP or self.turns >= self.max_turns
        return Outcome(self.done, action is not None, moved)

    def result(self) -> EpisodeResult:
        """What came of it; of an episode that was cut short, what came of it so far."""
        return EpisodeResult(
            solved=self.solved,
            score=self._reward(self),
            format_ok=self.format_ok,
            turns=self.turns,
            optimal_turns=optimal_turns(self.maze, self.squares_per_move),
            actions=tuple(self._actions),
            malformed=tuple(self._malformed),
        )

    def _move(self, action: Action) -> bool:
        down, right = MOVES[action.move]
        row, column = self.position
        # With two squares a move the first is the wall or passage between the cells, the second is a cell.
        if not self.maze.is_open((row + down, column + right)):
            return False
        self.position = (row + down * self.squares_per_move, column + right * self.squares_per_move)
        return True
