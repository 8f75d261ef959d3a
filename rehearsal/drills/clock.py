"""A wall clock that jumps: `python -m rehearsal.drills.clock FILE MODULE ARGUMENTS...` runs MODULE with it.

FILE holds by how many seconds the clock of MODULE's Python code is ahead, 0 where it is not there. The
machine's own clock is everybody's, and Linux gives no process a wall clock of its own; the C++ code of Ray
and vLLM, and the kernel that dates files, go by the machine's.
"""

import os
import runpy
import sys
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from training.files import write_atomic

FILE = "clock-offset"
"""In the run folder."""


def jump(run_dir: Path, seconds: float) -> None:
    """Move the clock of the run's driver and supervisor."""
    write_atomic(run_dir / FILE, str(seconds))


def date_files(run_dir: Path, seconds: float) -> None:
    """Date the run's files as far the other way: with a clock that went back, they are of the future. Nobody
    may be writing checkpoints."""
    date = time.time() - seconds
    for path in [run_dir / "lease.json", *(run_dir / "checkpoints").rglob("*")]:
        os.utime(path, (date, date))


def install(path: Path) -> None:
    """Give this process the clock of `path`."""
    true_time, true_time_ns = time.time, time.time_ns

    def ahead() -> float:
        try:
            return float(path.read_text())
        except (OSError, ValueError):
            return 0.0

    def shifted() -> float:
        return true_time() + ahead()

    def shifted_ns() -> int:
        return true_time_ns() + int(ahead() * 1e9)

    def broken_down(true: Callable[[float], time.struct_time], seconds: float | None = None) -> Any:
        return true(shifted() if seconds is None else seconds)

    # Partials, as functions of C are: a class that has a function of Python among its attributes binds it.
    time.time, time.time_ns = partial(shifted), partial(shifted_ns)
    time.gmtime, time.localtime = partial(broken_down, time.gmtime), partial(broken_down, time.localtime)


if __name__ == "__main__":
    install(Path(sys.argv[1]))
    sys.argv = sys.argv[2:]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)
