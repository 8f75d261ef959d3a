"""Which tasks a step trains on: a pure function of (seed, epoch, step), with no position to save."""

import numpy as np

from training.errors import ConfigError
from training.seeds import derive


class Sampler:
    """Every epoch goes through all `rows` once in an order of its own; what fills no whole step is left out.

    Steps count from 1. Raises ConfigError when the rows do not fill one step.
    """

    def __init__(self, rows: int, per_step: int, seed: int):
        if not 1 <= per_step <= rows:
            raise ConfigError(
                f"{rows} training tasks do not fill one step of {per_step}",
                "raise data.train_mazes, or lower optimization.mazes_per_step",
            )
        self.rows, self.per_step, self.seed = rows, per_step, seed
        self.steps_per_epoch = rows // per_step

    def epoch(self, step: int) -> int:
        """The epoch that a step is part of, from 0."""
        return (step - 1) // self.steps_per_epoch

    def order(self, epoch: int) -> list[int]:
        """All rows in the order of this epoch."""
        return np.random.default_rng(derive(self.seed, "order", epoch)).permutation(self.rows).tolist()

    def rows_of(self, step: int) -> list[int]:
        """The `per_step` rows that a step trains on."""
        first = (step - 1) % self.steps_per_epoch * self.per_step
        return self.order(self.epoch(step))[first : first + self.per_step]
