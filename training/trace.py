"""What each step of a run drew, played, earned and learned, small enough to keep: `trace.jsonl`.

Two runs that agree here are the same run; `training.differences` compares them.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from training.errors import DataError, visible
from training.files import append_durably, write_atomic

FILE = "trace.jsonl"
Row = dict[str, Any]


def of_step(
    step: int,
    *,
    rows: Sequence[str],
    tokens: Sequence[Sequence[int]],
    logprobs: Sequence[Sequence[float]],
    rewards: Sequence[float],
) -> Row:
    """A step's rollouts by episode: its row, its tokens (digest), its mean log-probability, its reward."""
    return {
        "step": step,
        "rows": list(rows),
        "tokens": [_digest(list(episode)) for episode in tokens],
        "logprobs": [sum(episode) / max(len(episode), 1) for episode in logprobs],
        "rewards": [float(reward) for reward in rewards],
    }


def read(path: Path) -> list[Row]:
    """Rows in order of steps; an unfinished last line is left out, and the last word on a step counts.

    Raises DataError for any other line that is no row.
    """
    if not path.is_file():
        return []
    rows: dict[int, Row] = {}
    for number, line in enumerate(path.read_bytes().split(b"\n")[:-1], 1):
        if line:
            try:
                row = json.loads(line)
                rows[int(row["step"])] = row
            except (ValueError, LookupError, TypeError, RecursionError) as error:
                raise DataError(
                    f"line {number} of {path} is no step's: {visible(repr(error))}",
                    "restore the file, or take that line out",
                ) from None
    return [row for _, row in sorted(rows.items())]


def append(path: Path, row: Row) -> None:
    append_durably(path, json.dumps(row) + "\n")


def rewind(path: Path, step: int, last: Row | None) -> None:
    """Make the file end with `step`: what came after was lost, and `last` is the row of the step itself, in
    case the process died before it was written here. Without one the step has no row.
    """
    kept = [row for row in read(path) if row["step"] <= step]
    if last is not None and last["step"] not in {row["step"] for row in kept}:
        kept.append(last)
    if kept or path.exists():
        write_atomic(path, "".join(json.dumps(row) + "\n" for row in kept))


def _digest(value: Any) -> str:
    return hashlib.blake2s(json.dumps(value).encode(), digest_size=8).hexdigest()
