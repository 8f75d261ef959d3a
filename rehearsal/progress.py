"""What the rehearsal shows while it runs: one line per stage, live, and a table of times at the end."""

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from rich.console import Console
from rich.markup import escape
from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn
from rich.table import Table


@dataclass
class Stage:
    """A running stage; `note` becomes part of its finished line."""

    title: str
    _progress: Progress
    _task: int
    note: str = ""
    seconds: float = 0.0

    def update(self, text: str) -> None:
        """Say what is happening now."""
        self._progress.update(self._task, detail=text)

    def advance(self, done: float, total: float, text: str = "") -> None:
        """Show a bar."""
        self._progress.update(self._task, completed=done, total=total, detail=text)


@dataclass
class Stages:
    """Runs stages and remembers how long each took."""

    console: Console
    finished: list[Stage] = field(default_factory=list)

    @contextmanager
    def stage(self, title: str) -> Iterator[Stage]:
        progress = Progress(
            SpinnerColumn(),
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TimeElapsedColumn(),
            TextColumn("{task.fields[detail]}", style="dim", markup=False),
            console=self.console,
            transient=True,
            disable=not self.console.is_terminal,
        )
        if not self.console.is_terminal:
            self.console.print(f"... {title}", highlight=False)
        started = time.monotonic()
        with progress:
            stage = Stage(title, progress, progress.add_task(title, total=None, detail=""))
            try:
                yield stage
            except BaseException:
                self.console.print(f"[red]x[/] {title} ({time.monotonic() - started:.1f} s)", highlight=False)
                raise
        stage.seconds = time.monotonic() - started
        self.finished.append(stage)
        tail = f"  [dim]{escape(stage.note)}[/]" if stage.note else ""
        self.console.print(
            f"[green]\u2713[/] {title} [cyan]{stage.seconds:.1f} s[/]{tail}", highlight=False, soft_wrap=True
        )

    def timings(self) -> list[dict[str, float | str]]:
        """[{"stage", "seconds"}] in order, for timings.json."""
        return [{"stage": stage.title, "seconds": round(stage.seconds, 2)} for stage in self.finished]

    def table(self, total_s: float, peak_gib: float, disk_gib: float) -> Table:
        table = Table(title="Where the time went", title_justify="left", show_edge=False)
        table.add_column("stage")
        table.add_column("seconds", justify="right")
        for stage in self.finished:
            table.add_row(stage.title, f"{stage.seconds:.1f}")
        table.add_section()
        table.add_row("total", f"{total_s:.1f}")
        table.add_row("peak memory of this rehearsal", f"{peak_gib:.1f} GiB")
        table.add_row("disk of environments, caches and this run", f"{disk_gib:.1f} GiB")
        return table


class MemoryWatch:
    """Samples how much of the machine's memory is taken since it started."""

    def __init__(self, interval_s: float = 0.5):
        self._interval_s = interval_s
        self._start = available_bytes()
        self._lowest = self._start
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)

    def __enter__(self) -> "MemoryWatch":
        self._thread.start()
        return self

    def __exit__(self, *error: object) -> None:
        self._stop.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._stop.wait(self._interval_s):
            self._lowest = min(self._lowest, available_bytes())

    @property
    def peak_gib(self) -> float:
        return (self._start - self._lowest) / 2**30


def available_bytes() -> int:
    """Memory that new processes could take (Linux `MemAvailable`)."""
    for line in Path("/proc/meminfo").read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    raise RuntimeError("/proc/meminfo has no MemAvailable")
