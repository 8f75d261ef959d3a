"""Every environment as one SkyRL-Gym environment: multi-turn, one picture a turn, reward at the end."""

from typing import Any

from skyrl_gym.envs.base_text_env import BaseTextEnv, BaseTextEnvStepOutput

from training.conversation import user_message
from training.environments import Game, named

ENV_ID = "skypod"


class GameEnv(BaseTextEnv):
    """One game of one task; the task itself is in the dataset row, so a group plays the same one."""

    def __init__(self, env_config: Any = None, extras: dict[str, Any] | None = None):
        super().__init__()
        row = extras or {}
        self.max_turns = row["max_turns"]
        environment = named(row["environment"], **row["options"])
        self._game = Game(environment, environment.load(row["task"]), self.max_turns, row["reward"])

    def _observation(self) -> dict[str, Any]:
        return user_message(self._game.observation())

    def init(self, prompt: Any) -> tuple[list[dict[str, Any]], dict[str, Any]]:
        return [self._observation()], {}

    def step(self, action: str) -> BaseTextEnvStepOutput:
        self.turns += 1
        outcome = self._game.act(action)
        reward = self._game.result().score if outcome.done else 0.0
        observations = [] if outcome.done else [self._observation()]
        return BaseTextEnvStepOutput(observations=observations, reward=reward, done=outcome.done, metadata={})

    def get_metrics(self) -> dict[str, Any]:
        result = self._game.result()
        return {"solved": float(result.solved), "turns": result.turns, "format_ok": result.format_ok}

    @staticmethod
    def aggregate_metrics(metrics: list[dict[str, Any]]) -> dict[str, Any]:
        return (
            {key: sum(float(m[key]) for m in metrics) / len(metrics) for key in metrics[0]} if metrics else {}
        )
