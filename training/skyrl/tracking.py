"""SkyRL's log of each step, reduced to our metrics, written as JSON lines and guarded."""

import json
from pathlib import Path
from typing import Any

from ray.util.metrics import Gauge

from training.errors import DataError
from training.events import EventLog
from training.metrics import METRICS, from_skyrl
from training.recipe import Recipe


class JsonlTracker:
    """Takes the place of SkyRL's `Tracking`: one object per step in metrics.jsonl and one event."""

    def __init__(self, run_dir: Path, recipe: Recipe, events: EventLog):
        self._path = run_dir / "metrics.jsonl"
        self._raw = run_dir / "logs" / "skyrl.jsonl"
        self._raw.parent.mkdir(parents=True, exist_ok=True)
        self._recipe = recipe
        self._events = events
        self._gauges = {m.name: Gauge(m.gauge, m.meaning, ("run",)) for m in METRICS.values()}
        self._run = {"run": run_dir.name}

    def log(self, data: dict[str, Any], step: int, commit: bool = False) -> None:
        """Called by the trainer once per step; evaluations before the first step are not steps."""
        raw = {k: float(v) for k, v in data.items() if hasattr(v, "__float__")}
        _append(self._raw, {"step": step, **raw})
        row = self.row(data, step)
        metrics = {name: value for name, value in row.items() if name != "step"}
        for name, value in metrics.items():
            self._gauges[name].set(value, self._run)
        if {"train_solve_rate", "step_seconds"} <= metrics.keys():
            _append(self._path, row)
            self._events.emit("step", steps=self._recipe.optimization.steps, **row)
            self._check_gap(step, metrics)

    def row(self, data: dict[str, Any], step: int) -> dict[str, Any]:
        """What metrics.jsonl holds of a step, from SkyRL's log of it."""
        samples = self._recipe.rollout.samples_per_maze
        logs = {**data, "reward/avg_pass_at_n": data.get(f"reward/avg_pass_at_{samples}")}
        return {"step": step, **from_skyrl(logs)}

    def _check_gap(self, step: int, metrics: dict[str, float]) -> None:
        """A stale or wrong adapter in the engine shows here first."""
        limit = self._recipe.optimization.max_logprob_gap
        gap = metrics.get("logprob_gap_mean")
        if gap is None:
            raise DataError(
                f"step {step} reported no log-probability gap", "the engine must return log-probabilities"
            )
        if not gap <= limit:
            raise DataError(
                f"step {step}: trainer and engine differ by {gap:.3g} nats on average, more than {limit:.3g}",
                "the engine does not serve the adapter being trained; see logs/skyrl.jsonl of the run",
            )

    def log_exception(self, error: BaseException, step: int = 0) -> None:
        self._events.emit("error", step=step, message=f"{type(error).__name__}: {error}"[:2000])

    def log_samples_to_table(self, *args: Any, **kwargs: Any) -> None:
        """Only for trackers with tables; episodes are kept by the evaluator."""

    def finish(self) -> None:
        """Every line is on disk already."""


def _append(path: Path, row: dict[str, Any]) -> None:
    with path.open("a") as file:
        file.write(json.dumps(row) + "\n")
