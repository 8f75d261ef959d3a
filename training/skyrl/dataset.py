"""Rows of a split as SkyRL's data loader wants them; nothing is tokenized or filtered."""

from typing import Any

from training.recipe import Recipe
from training.skyrl.gym_env import ENV_ID

_PROMPT = [{"role": "user", "content": "placeholder"}]


class TaskDataset:
    """`rows` as written by `training.splits`; the environment builds the real first message itself."""

    def __init__(self, rows: list[dict[str, Any]], recipe: Recipe):
        env = recipe.environment
        self._extras = {"environment": env.name, "options": env.options, "reward": env.reward}
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> tuple[list[dict[str, str]], str, dict[str, Any], str]:
        row = self._rows[index]
        extras = {"task": row["task"], "data_source": row["split"], **self._extras}
        return [dict(m) for m in _PROMPT], ENV_ID, extras, str(index)

    @staticmethod
    def collate_fn(items: list[tuple[Any, ...]]) -> list[dict[str, Any]]:
        return [
            {"prompt": prompt, "env_class": env_class, "env_extras": extras, "uid": uid}
            for prompt, env_class, extras, uid in items
        ]
