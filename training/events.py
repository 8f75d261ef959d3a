"""What a run says while it runs: one JSON object per line, in a file of the run and in the job's log.

A follower reads either: the file where it shares the file system, the log through the Ray Jobs API elsewhere.
"""

import json
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "@skypod "


class EventLog:
    """Appends events. `stage` marks a phase, `step` and `evaluation` carry results."""

    def __init__(self, path: Path):
        self._path = path
        path.parent.mkdir(parents=True, exist_ok=True)

    def emit(self, event: str, **fields: Any) -> None:
        line = json.dumps({"time": round(time.time(), 3), "event": event, **fields})
        with self._path.open("a") as file:
            file.write(line + "\n")
        sys.stdout.write(f"{MARK}{line}\n")
        sys.stdout.flush()


def parse(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events among the lines of a job's log."""
    for line in lines:
        if line.startswith(MARK):
            yield json.loads(line[len(MARK) :])


def read(path: Path) -> list[dict[str, Any]]:
    """All events of a run; an unfinished last line is left out."""
    if not path.is_file():
        return []
    lines = path.read_text().split("\n")
    return [json.loads(line) for line in lines[:-1] if line]
