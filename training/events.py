"""What a run says while it runs: one JSON object per line, in a file of the run and in the job's log.

A follower reads either: the file where it shares the file system, the log through the Ray Jobs API elsewhere.
"""

import json
import os
import sys
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

MARK = "@skypod "


class EventLog:
    """Appends events, each with its attempt. `stage` marks a phase, `step` and `evaluation` carry results."""

    def __init__(self, path: Path, attempt: int = 0, *, to_stdout: bool = True):
        self._path, self._attempt, self._to_stdout = path, attempt, to_stdout
        path.parent.mkdir(parents=True, exist_ok=True)
        if _is_torn(path):
            # A writer was killed within a line; what comes next is not to be lost with it.
            with path.open("a") as file:
                file.write("\n")

    def emit(self, event: str, **fields: Any) -> None:
        """To the job's log first, which has room when the run's file system has none."""
        line = json.dumps({"time": round(time.time(), 3), "event": event, "attempt": self._attempt, **fields})
        if self._to_stdout:
            # In one piece: Ray's own threads write to the same log.
            sys.stdout.write(f"{MARK}{line}\n")
            sys.stdout.flush()
        with self._path.open("a") as file:
            file.write(line + "\n")


def _is_torn(path: Path) -> bool:
    if not path.is_file() or not path.stat().st_size:
        return False
    with path.open("rb") as file:
        file.seek(-1, os.SEEK_END)
        return file.read(1) != b"\n"


def parse(lines: Iterable[str]) -> Iterator[dict[str, Any]]:
    """The events among the lines of a job's log, where others may have written into a line."""
    for line in lines:
        _, mark, rest = line.partition(MARK)
        if mark and (event := decode(rest)):
            yield event


def read(path: Path) -> list[dict[str, Any]]:
    """All events of a run; lines that a killed writer left unfinished are left out."""
    if not path.is_file():
        return []
    return [event for line in path.read_text().split("\n")[:-1] if (event := decode(line))]


def decode(line: str) -> dict[str, Any] | None:
    """The event that a line begins with; None for a line that is none."""
    try:
        event, _ = json.JSONDecoder().raw_decode(line)
    except ValueError:
        return None
    return event if isinstance(event, dict) and "event" in event else None
