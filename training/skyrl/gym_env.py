"""The maze as a SkyRL-Gym environment: multi-turn, one image a turn, reward at the end."""

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from training.episode import Episode, image_data_url
from training.mazes import Maze
from training.render import RenderStyle

ENV_ID = "skypod-maze"


class MazeGymEnv(BaseTextEnv):
    """One episode of one maze; the maze itself is in the dataset row, so a group plays the same one."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None):
        super().__init__()
        row = extras or {}
        self.max_turns = row["max_turns"]
        self._episode = Episode(
            Maze.from_json(row["maze"]),
            max_turns=self.max_turns,
            squares_per_move=row["squares_per_move"],
            style=RenderStyle(),
            reward=row["reward"],
        )

    def _observation(self) -> dict[str, Any]:
        url = image_data_url(self._episode.observation())
        return {"role": "user", "content": [{"type": "image_url", "image_url": {"url": url}}]}

    def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return [self._observation()], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        outcome = self._episode.act(action)
        reward = self._episode.result().score if outcome.done else 0.0
        observations = [] if outcome.done else [self._observation()]
        return BaseTextEnvStepOutput(observations=observations, reward=reward, done=outcome.done, metadata={})

    def get_metrics(self) -> dict[str, Any]:
        result = self._episode.result()
        return {"solved": float(result.solved), "turns": result.turns, "format_ok": result.format_ok}

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        return (
            {key: sum(float(m[key]) for m in metrics) / len(metrics) for key in metrics[0]} if metrics else {}
        )
