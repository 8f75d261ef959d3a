"""The report of a campaign for people: a table in a terminal, and the same as Markdown."""

from collections.abc import Iterator, Mapping, Sequence
from statistics import median
from typing import Any

from rich.table import Table

COLUMNS = ("run", "fault", "struck in", "detected s", "classified", "RTO s", "lost steps", "kept")


def rows(found: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """One row for each fault, in the order in which they struck."""
    for number, run in enumerate(found["runs"], 1):
        for strike in run["strikes"]:
            yield (
                str(number),
                strike["fault"],
                strike["doing"],
                _number(strike["detected_s"]),
                strike["classified"] or "-",
                _number(strike["rto_s"]),
                str(strike["lost_steps"]),
                "no: " + "; ".join(strike["problems"]) if strike["problems"] else "yes",
            )


def table(found: Mapping[str, Any]) -> Table:
    shown = Table(title="Faults, and whether each promise was kept", title_justify="left", show_edge=False)
    for column in COLUMNS:
        shown.add_column(column, overflow="fold")
    for row in rows(found):
        shown.add_row(*row)
    return shown


def lines(found: Mapping[str, Any]) -> list[str]:
    """The outcome in a few lines."""
    summary = found["summary"]
    told = [
        f"{summary['faults']} faults of {summary['kinds']} kinds in {summary['runs']} runs: "
        f"{summary['lost_steps']} finished steps trained again, {summary['identical']} of {summary['runs']} "
        "runs identical to the one without faults, to the bit"
    ]
    for run in found["runs"]:
        told.append(f"  {run['run']}: {run['comparison']}, {run['seconds']:.0f} s")
        told += [f"    not struck by us: {each}" for each in run.get("unprovoked", ())]
    return told + [f"broken: {problem}" for problem in summary["problems"]]


def markdown(found: Mapping[str, Any]) -> str:
    """By kind of fault: how many, the median and the worst of detection and recovery."""
    per_fault: dict[str, list[Mapping[str, Any]]] = {}
    for run in found["runs"]:
        for strike in run["strikes"]:
            per_fault.setdefault(strike["fault"], []).append(strike)
    head = ("fault", "times", "classified", "detected s", "RTO s", "lost steps", "promises kept")
    body = [
        (
            fault,
            str(len(strikes)),
            ", ".join(sorted({strike["classified"] or "-" for strike in strikes})),
            _spread([strike["detected_s"] for strike in strikes]),
            _spread([strike["rto_s"] for strike in strikes]),
            str(sum(strike["lost_steps"] for strike in strikes)),
            f"{sum(not strike['problems'] for strike in strikes)} of {len(strikes)}",
        )
        for fault, strikes in sorted(per_fault.items())
    ]
    return "\n".join(_markdown_row(row) for row in (head, ["---"] * len(head), *body)) + "\n"


def _markdown_row(cells: Sequence[str]) -> str:
    return f"| {' | '.join(cells)} |"


def _spread(values: Sequence[float | None]) -> str:
    known = [value for value in values if value is not None]
    if not known:
        return "-"
    return f"{median(known):.0f}, at most {max(known):.0f}" if len(known) > 1 else f"{known[0]:.0f}"


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.1f}"
