"""What VisGym's maze does, as recorded from its own code, and a stand-in that does no more than that.

PYTHONPATH=CHECKOUT python -m tests.training.visgym_contract     records it again (with VisGym importable)
"""

import ast
import json
from pathlib import Path
from typing import Any

import numpy as np

from training.mazes import published

RECORDED = Path(__file__).with_suffix(".json")
PX = 25
COLOURS = {"#": (169, 169, 169), ".": (255, 255, 255), "G": (255, 0, 0), "A": (0, 0, 255)}
ACTIONS = [f"('move', {move})" for move in (3, 0, 1, 0, 1, 1, 2)] + ["('stop', 'stop')"]
DIRECTIONS = ((0, 1), (-1, 0), (0, -1), (1, 0))


class Maze2DEnv:
    """Has the methods, arguments and return values of VisGym's class that were recorded, with other words."""

    def __init__(self, maze_width: int, maze_height: int):
        self._shape = (maze_height, maze_width)

    def get_prompt(self) -> str:
        return f"a maze of {self._shape[0]}x{self._shape[1]}"

    def reset(self, seed: int | None = None, options: Any = None, init_state: dict[str, Any] | None = None):
        self._map, self._agent, self._target = (
            np.array(init_state[name]) for name in ("maze_map", "agent_location", "target_location")
        )
        assert self._map.shape == self._shape
        return self.render(), self._info("")

    def step(self, action: str):
        verb, argument = ast.literal_eval(action)
        if verb == "stop":
            reached = bool((self._agent == self._target).all())
            return self.render(), float(reached), True, False, self._info("done")
        there = self._agent + DIRECTIONS[argument]
        if self._map[tuple(there)]:
            return self.render(), 0.0, False, False, self._info("a wall")
        self._agent = there
        return self.render(), 0.0, False, False, self._info("done")

    def render(self) -> np.ndarray:
        letters = np.where(self._map == 1, "#", ".")
        letters[tuple(self._target)] = "G"
        letters[tuple(self._agent)] = "A"
        cells = np.array([[COLOURS[letter] for letter in row] for row in letters], np.uint8)
        return cells.repeat(PX, 0).repeat(PX, 1)

    def _info(self, feedback: str) -> dict[str, Any]:
        return {"agent": self._agent, "target": self._target, "env_feedback": feedback}


def observe(maze_class: Any) -> dict[str, Any]:
    """Drives a class through the recorded session: what it gave back, its words by their kind only."""
    maze = published("easy")[0]
    game = maze_class(maze_width=9, maze_height=9)
    _, info = game.reset(
        init_state={
            "maze_map": [[int(square == "#") for square in row] for row in maze.rows],
            "agent_location": list(maze.start),
            "target_location": list(maze.goal),
        }
    )
    assert "9x9" in game.get_prompt()
    kinds: dict[str, int] = {}
    seen = [{"agent": _ints(info["agent"]), "picture": _letters(game.render())}]
    for action in ACTIONS:
        _, reward, terminated, truncated, info = game.step(action)
        feedback = kinds.setdefault(info["env_feedback"], len(kinds))
        seen.append(
            {
                "action": action,
                "agent": _ints(info["agent"]),
                "target": _ints(info["target"]),
                "reward": reward,
                "ended": [terminated, truncated],
                "feedback": feedback,
                "picture": _letters(game.render()),
            }
        )
    image = game.render()
    return {"shape": list(image.shape), "dtype": str(image.dtype), "seen": seen}


def _ints(square: Any) -> list[int]:
    return [int(part) for part in square]


def _letters(image: np.ndarray) -> list[str]:
    """The colours at the middle of each square; every pixel has one of the four."""
    letters = {colour: letter for letter, colour in COLOURS.items()}
    assert {tuple(pixel) for pixel in image.reshape(-1, 3).tolist()} <= set(letters)
    centres = image[PX // 2 :: PX, PX // 2 :: PX].tolist()
    return ["".join(letters[tuple(pixel)] for pixel in row) for row in centres]


if __name__ == "__main__":
    from gymnasium.envs.maze_2d.maze_2d import Maze2DEnv as Upstream

    RECORDED.write_text(json.dumps(observe(Upstream), indent=1) + "\n")
