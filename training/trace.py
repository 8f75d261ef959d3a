"""What each step of a run drew, played, earned and learned, small enough to keep: `trace.jsonl`.

Two runs that agree here are the same run; `training.differences` compares them.
"""

import hashlib
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

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
    """Rows in order of steps; an unfinished last line is left out, and the last word on a step counts."""
    if not path.is_file():
        return []
    rows = [json.loads(line) for line in path.read_text().split("\n")[:-1] if line]
    return [row for _, row in sorted({int(row["step"]): row for row in rows}.items())]


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
