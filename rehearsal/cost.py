"""What training cost on this machine: wall time and CPU time of the Ray nodes, evaluation apart."""

import os
import threading
import time
from bisect import bisect_left
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import psutil

from rehearsal.substrate import MARK
from training.files import read_json, write_json

FILE = "cost.json"
Sample = tuple[float, float]
"""(seconds since the epoch, CPU seconds so far)."""


class CpuWatch:
    """Samples the CPU time of this rehearsal's Ray nodes and of all that they started, ended ones included.

    They are the processes with our mark that run in the training environment.
    """

    def __init__(self, train_python: Path, interval_s: float = 2.0):
        self._home, self._mark = str(train_python.parent.parent), os.environ[MARK]
        self._interval_s = interval_s
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self.samples: list[Sample] = []

    def __enter__(self) -> "CpuWatch":
        self._sample()
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()
        self._sample()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._sample()

    def _sample(self) -> None:
        total = 0.0
        for process in psutil.process_iter():
            try:
                env = process.environ()
                if env.get(MARK) == self._mark and env.get("VIRTUAL_ENV") == self._home:
                    # A child that ended counts in its parent's "children", so no time is lost or twice there.
                    total += sum(process.cpu_times()[:4])
            except (psutil.NoSuchProcess, psutil.AccessDenied, psutil.ZombieProcess):
                continue
        # Between a child's end and its parent's notice its time is in neither.
        self.samples.append((time.time(), max([total, *(cpu for _, cpu in self.samples[-1:])])))


def between(samples: Sequence[Sample], start: float, end: float) -> float:
    """CPU seconds from `start` to `end`, by straight lines between samples."""

    def at(moment: float) -> float:
        index = bisect_left(samples, (moment,))
        if index in (0, len(samples)):
            return samples[min(index, len(samples) - 1)][1]
        (t0, c0), (t1, c1) = samples[index - 1 : index + 1]
        return c0 + (c1 - c0) * (moment - t0) / (t1 - t0)

    return at(end) - at(start)


def of_attempt(samples: Sequence[Sample], events: Iterable[Mapping[str, Any]]) -> dict[str, float]:
    """Wall and CPU seconds of one attempt at a run, evaluation apart; `events` are those of the run."""
    start, end = samples[0][0], samples[-1][0]
    windows, began = [], {}
    for event in events:
        if start <= event["time"] <= end:
            if event["event"] == "evaluating":
                began.setdefault(event["label"], event["time"])
            elif event["event"] == "evaluation":
                windows.append((began.pop(event["label"], event["time"]), event["time"]))
    windows += [(since, end) for since in began.values()]
    evaluation_wall = sum(later - earlier for earlier, later in windows)
    evaluation_cpu = sum(between(samples, *window) for window in windows)
    return {
        "training_wall_s": round(end - start - evaluation_wall, 1),
        "training_cpu_s": round(samples[-1][1] - samples[0][1] - evaluation_cpu, 1),
        "evaluation_wall_s": round(evaluation_wall, 1),
        "evaluation_cpu_s": round(evaluation_cpu, 1),
    }


def note(run_dir: Path, attempt: Mapping[str, float], cluster: Mapping[str, float]) -> None:
    """Add an attempt to the run's cost.json; `cluster` is what the start of its Ray nodes took.

    The totals hold all attempts, and the start of the nodes once.
    """
    path = run_dir / FILE
    attempts = [*(read_json(path)["attempts"] if path.is_file() else []), dict(attempt)]
    totals = {key: round(sum(one[key] for one in attempts), 1) for key in attempt}
    write_json(path, {"attempts": attempts, "cluster": dict(cluster), **totals})
