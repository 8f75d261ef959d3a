"""Where the reference data of the project lies, and scripted policies that play by the maze itself."""

import json
import os
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.training import gate_run
from tests.training.checkpoint_files import OWN
from training.checkpoints.store import Store
from training.evaluate import Conversation
from training.mazes import MOVES, Maze
from training.protocol import ACTIONS, STOP, parse


@pytest.fixture(scope="session")
def golden() -> dict[str, Any]:
    """The published mazes as they were taken from VisGym; they have to be there in CI."""
    shared = os.environ.get("SKYPOD_SHARED_DIR") or Path(__file__).parents[3] / "shared"
    path = Path(shared) / "golden" / "visgym_maze2d.json"
    if not path.is_file():
        assert os.environ.get("CI") != "true", f"{path} has to be there when CI=true"
        pytest.skip(f"no reference data at {path}; set SKYPOD_SHARED_DIR")
    return json.loads(path.read_text())["sets"]


class Scripted:
    """Answers with `answer(maze, position, turn)`; follows the agent through its own past answers."""

    def __init__(
        self, mazes: Sequence[Maze], answer: Callable[[Maze, tuple[int, int], int], str], squares: int = 2
    ):
        self.mazes = {maze.digest: maze for maze in mazes}
        self.answer = answer
        self.squares = squares
        self.asked: list[list[str]] = []

    def act(self, conversations: list[Conversation]) -> list[str]:
        self.asked.append([conversation.key for conversation in conversations])
        return [self._one(conversation) for conversation in conversations]

    def _one(self, conversation: Conversation) -> str:
        maze = self.mazes[conversation.key.split("/")[0]]
        row, column = maze.start
        for text in conversation.answers:
            action = parse(text)
            if action and action.move is not None:
                down, right = MOVES[action.move]
                if maze.is_open((row + down, column + right)):
                    row, column = row + down * self.squares, column + right * self.squares
        return self.answer(maze, (row, column), len(conversation.turns))


def oracle(maze: Maze, position: tuple[int, int], turn: int) -> str:
    move = maze.best_move(position)
    return STOP if move is None else ACTIONS[move]


@pytest.fixture
def scripted() -> type[Scripted]:
    return Scripted


@pytest.fixture
def play_oracle() -> Callable[[Maze, tuple[int, int], int], str]:
    return oracle


@pytest.fixture(scope="session")
def sound(tmp_path_factory) -> Path:
    """A run that passes the gate; tests copy it before they change anything."""
    folder, one_in = tmp_path_factory.mktemp("gate"), gate_run.one_in
    return gate_run.make(folder / "one", folder / "base", before=one_in(3), after=one_in(40))


@pytest.fixture(scope="session")
def other(sound) -> Path:
    """A second seed of it that passes too; not to be changed."""
    return gate_run.reseed(sound, sound.parent / "two", 1, after=gate_run.one_in(25))


@pytest.fixture
def run(sound, tmp_path) -> Path:
    return shutil.copytree(sound, tmp_path / "one")


@pytest.fixture
def store(tmp_path: Path) -> Store:
    """An empty place for the checkpoints of a run."""
    return Store(tmp_path / "checkpoints", OWN, keep=3)
