"""The page itself: figures, charts and pictures put into the template."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from markupsafe import Markup

from training import seal
from training.files import write_atomic
from training.report import charts, html, learning, pictures
from training.report.run import Played, Run, read, run_part

NAME = "report.html"
_NAMES = {"baseline": "before", "final": "after", "served": "after, served"}
_COLOURS = {"baseline": "c-before", "final": "c-after", "served": "c-served"}
_LINEAGE = (
    *("run", "created", "finished", "commit", "image", "base", "data", "ceilings", "reward", "attempts"),
    *("checkpoints", "evaluations", "adapter", "serving"),
)
_PHASES = {
    "generate_seconds": "rollouts",
    "forward_seconds": "log-probabilities",
    "update_seconds": "policy update",
    "sync_seconds": "adapter to the engines",
    "checkpoint_seconds": "checkpoint",
    "evaluate_seconds": "evaluation",
}
_ELSEWHERE = ("recipe", seal.PLAYS, seal.STARTED, "audits", "gate")
"""Sections of the manifest that the page shows apart, or another page does."""


@dataclass(frozen=True)
class Row:
    """One line of the headline table."""

    name: str
    played: Played


def write(run_dir: Path) -> Path:
    """Write `report.html` into a run folder from what the folder holds, and return its path.

    Parts that are missing are named on the page. Raises DataError when the folder holds nothing of a run.
    """
    path = run_dir / NAME
    write_atomic(path, html.encoded(render(read(run_dir))))
    return path


def render(run: Run) -> str:
    """The page of a run: HTML with everything inside it."""

    def part[Part](name: str, what: str, make: Callable[[Run], Part], otherwise: Part) -> Part:
        return run_part(run, name, what, lambda _: make(run), otherwise)

    cells = _cells(run)
    return html.template("report.html.j2").render(
        run=run,
        name=run.manifest.get("run", run.folder.name),
        rows=[Row(_NAMES[label], run.evaluations[label]) for label in _NAMES if label in run.evaluations],
        headline=_intervals(run),
        curve=part("metrics.jsonl", "learning curve", _curve, None),
        gap=part("metrics.jsonl", "agreement of trainer and engine", _gap, None),
        alike=_served_alike(run),
        sealed=part("evaluations", "table of sealed splits", learning.sealed, []),
        plays=part("run.json", "table of sealed plays", learning.plays, []),
        compared=part("comparison.json", "table beside imitation", learning.comparison, []),
        imitation=part("comparison.json", "curve of imitation", learning.imitation_curve, None),
        diagnostics=part("metrics.jsonl", "diagnostics", learning.diagnostics, []),
        cells=cells,
        counts={kind: sum(cell.kind == kind for cell in cells) for kind in pictures.KINDS},
        strips=pictures.strips(cells),
        phases=part("metrics.jsonl", "times of the steps", _phases, []),
        total_s=sum(row["seconds"] for row in run.timings),
        lineage=part("run.json", "lineage", _lineage, []),
        miniature=any(attempt.get("backend") == "cpu" for attempt in run.manifest.get("attempts", [])),
    )


def _cells(run: Run) -> list[pictures.Cell]:
    if run.comparison is None or not run.before or not run.after:
        return []
    return pictures.grid(run.before.records, run.after.records)


def _intervals(run: Run) -> Markup | None:
    bars = []
    for label, name in _NAMES.items():
        if played := run.evaluations.get(label):
            summary = played.summary
            share = (summary.solve_rate, summary.low, summary.high, summary.ceiling)
            bars.append(charts.Bar(name, _COLOURS[label], *share))
    return Markup(charts.intervals(bars)) if bars else None


def _curve(run: Run) -> Markup | None:
    train = [(row["step"], row["train_solve_rate"]) for row in run.metrics if "train_solve_rate" in row]
    dev = run.dev()
    if not train and not dev:
        return None
    series = [charts.Series("train", "c-train", train)]
    levels = []
    if dev:
        points = [(step, played.summary.solve_rate) for step, played in dev]
        whiskers = [(played.summary.low, played.summary.high) for _, played in dev]
        series.append(charts.Series("dev", "c-after", points, whiskers, dots=True))
        levels.append(charts.Level("dev ceiling", dev[-1][1].summary.ceiling))
    chart = charts.Lines("Solve rate by training step", "step", series, levels, percent=True)
    return Markup(chart.svg())


def _gap(run: Run) -> Markup | None:
    series = []
    for metric, name, colour in (
        ("logprob_gap_mean", "mean", "c-after"),
        ("logprob_gap_max", "largest", "c-before"),
    ):
        points = [(row["step"], row[metric]) for row in run.metrics if metric in row]
        if points:
            series.append(charts.Series(name, colour, points, dots=len(points) < 40))
    if not series:
        return None
    limit = run.recipe.get("optimization", {}).get("max_logprob_gap")
    chart = charts.Lines(
        "Difference of log-probabilities between trainer and engine by step",
        "step",
        series,
        [charts.Level("limit", limit)] if limit else [],
        logarithmic=True,
        height=190,
    )
    return Markup(chart.svg())


def _served_alike(run: Run) -> tuple[int, int] | None:
    """(episodes that took the same actions served as in the trainer, episodes), None if not played."""
    served = run.evaluations.get("served")
    if not served or not run.after:
        return None
    actions = {record.key: record.actions for record in run.after.records}
    same = sum(actions.get(record.key) == record.actions for record in served.records)
    return same, len(served.records)


def _phases(run: Run) -> list[tuple[str, float, float]]:
    """(phase, seconds in all, seconds per step in which it ran)."""
    found = []
    for key, name in _PHASES.items():
        values = [row[key] for row in run.metrics if row.get(key)]
        if values:
            found.append((name, sum(values), sum(values) / len(values)))
    return found


def _lineage(run: Run) -> list[tuple[str, str]]:
    """What the run was made of and what came of it, as (what, value); the recipe stands apart."""
    manifest = run.manifest
    known = [key for key in _LINEAGE if key in manifest]
    others = [key for key in manifest if key not in (*_LINEAGE, *_ELSEWHERE)]
    rows: list[tuple[str, str]] = []
    for key in (*known, *others):
        value = manifest[key]
        if key == "evaluations":
            rows += [(f"evaluation {label}", entry["records"]) for label, entry in value.items()]
        elif key == "attempts":
            rows += [row for at, entry in enumerate(value, 1) for row in _flat(f"attempt {at}", entry)]
        elif key == "checkpoints":
            rows.append(("checkpoints at steps", _ranges([entry.get("step", "?") for entry in value])))
        else:
            rows += _flat(key, value)
    return rows


def _ranges(steps: Iterable[Any]) -> str:
    """1, 2, 3, 6 as "1-3, 6"; what is no number stays as it is."""
    groups: list[list[Any]] = []
    for step in steps:
        if groups and isinstance(step, int) and groups[-1][-1] == step - 1:
            groups[-1].append(step)
        else:
            groups.append([step])
    return ", ".join(f"{g[0]}-{g[-1]}" if len(g) > 1 else str(g[0]) for g in groups) or "none"


def _flat(name: str, value: Any) -> Iterable[tuple[str, str]]:
    if isinstance(value, dict) and name.endswith(("libraries", "ceilings")):
        # These read better in one line than in ten.
        yield name, ", ".join(f"{key} {part}" for key, part in value.items())
    elif isinstance(value, dict):
        for key, part in value.items():
            yield from _flat(f"{name} {key}", part)
    else:
        yield name, "" if value is None else str(value)
