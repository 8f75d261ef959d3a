"""Reading the log files of containers."""

from __future__ import annotations

from pathlib import Path

LARGEST = 4 * 1024 * 1024


def read_log(path: Path, tail_lines: int | None = None) -> str:
    """The end of a log: at most 4 MiB, or the last `tail_lines` lines of that. "" where there is none."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, 2)
            file.seek(max(0, size - LARGEST))
            text = file.read().decode(errors="replace")
    except FileNotFoundError:
        return ""
    if tail_lines is None:
        return text
    return "".join(text.splitlines(keepends=True)[-tail_lines:]) if tail_lines else ""
