"""The page of a sweep: what every seed came to, and what all of them say together, from sweep.json alone."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from markupsafe import Markup

from training.files import read_object, write_atomic
from training.report import charts, html
from training.sweep import FILE

NAME = "sweep.html"
_COLOURS = ("c-after", "c-served", "c-before", "c-ceiling", "c-train")
SPLITS = {
    "test": "the published 64",
    "test-512": "512 fresh mazes of the same kind",
    "ood": "other mazes: bigger, mirrored, recoloured",
}


def write(folder: Path) -> Path:
    """Write `sweep.html` beside a sweep's `sweep.json` and return its path."""
    path = folder / NAME
    write_atomic(path, html.encoded(render(read_object(folder / FILE))))
    return path


def render(found: Mapping[str, Any]) -> str:
    """The page of a sweep, `training.sweep.collect`'s data."""
    return html.template("sweep.html.j2").render(
        found=found,
        splits=SPLITS,
        dev=_curve(found, "dev", "Dev solve rate of each seed"),
        train=_curve(found, "train", "Train solve rate of each seed"),
        commits=sorted({str(run["commit"]) for run in found["runs"]}),
        bases=sorted({str(run["base"]) for run in found["runs"]}),
        looks=[(run, look) for run in found["runs"] for look in run["looks"]],
        costs=[(run, run["cost"]) for run in found["runs"] if run["cost"]],
    )


def _curve(found: Mapping[str, Any], key: str, title: str) -> Markup | None:
    series = []
    for at, run in enumerate(found["runs"]):
        points = [(step, rate) for step, rate in run[key]]
        colour = _COLOURS[at % len(_COLOURS)]
        series.append(charts.Series(f"seed {run['seed']}", colour, points, dots=key == "dev"))
    return Markup(charts.Lines(title, "step", series, percent=True).svg()) if series else None
