"""Rows of a split as SkyRL's trainer wants them; nothing is tokenized or filtered."""

from collections.abc import Iterator
from typing import Any

from training.recipe import Recipe
from training.sampler import Sampler
from training.skyrl.gym_env import ENV_ID

_PROMPT = [{"role": "user", "content": "placeholder"}]
Item = tuple[list[dict[str, str]], str, dict[str, Any], str]


class TaskDataset:
    """`rows` as written by `training.splits`; the environment builds the real first message itself."""

    def __init__(self, rows: list[dict[str, Any]], recipe: Recipe):
        env = recipe.environment
        self._extras = {"environment": env.name, "options": env.options, "reward": env.reward}
        self._rows = rows

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, index: int) -> Item:
        row = self._rows[index]
        extras = {"task": row["task"], "data_source": row["split"], **self._extras}
        return [dict(m) for m in _PROMPT], ENV_ID, extras, str(index)

    @staticmethod
    def collate_fn(items: list[Item]) -> list[dict[str, Any]]:
        return [
            {"prompt": prompt, "env_class": env_class, "env_extras": extras, "uid": uid}
            for prompt, env_class, extras, uid in items
        ]


class StepLoader:
    """In the place of SkyRL's data loader, whose saved position skips an epoch: batches by their step.

    Each pass goes to the end of an epoch. `next_step` is set by whoever resumes.
    """

    def __init__(self, dataset: TaskDataset, sampler: Sampler):
        self._dataset, self._sampler = dataset, sampler
        self.next_step = 1

    def __len__(self) -> int:
        return self._sampler.steps_per_epoch

    def __iter__(self) -> Iterator[list[dict[str, Any]]]:
        epoch = self._sampler.epoch(self.next_step)
        while self._sampler.epoch(self.next_step) == epoch:
            rows = self._sampler.rows_of(self.next_step)
            self.next_step += 1
            yield self._dataset.collate_fn([self._dataset[row] for row in rows])
