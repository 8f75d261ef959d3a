"""The decision as one self-contained page: what was found and needed, and pictures of what was lost."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from training import seal
from training.evaluate import EvaluationRecord
from training.gate.counts import Regression
from training.gate.decision import Decision
from training.gate.evidence import CANDIDATE
from training.render import image_data_url
from training.report import charts, html, pictures

_COLOURS = {"base": "c-before", "incumbent": "c-served", "candidate": "c-after"}
FILMS = 4
"""Lost episodes of each run that are shown turn by turn."""


@dataclass(frozen=True)
class Lost:
    """A lost task as it was first seen, and the candidate's episode of it (empty beyond `FILMS`)."""

    regression: Regression
    image: str
    film: list[pictures.Frame]


def render(
    decision: Decision,
    written: Mapping[str, Any],
    records: Mapping[str, Mapping[str, Sequence[EvaluationRecord]]],
) -> str:
    """The page of a decision. `written` is its JSON; `records` is by run and label."""
    split = decision.thresholds["split"]
    return html.template("gate.html.j2").render(
        decision=decision,
        written=written,
        split=split,
        names=" and ".join(decision.candidates),
        chart=_chart(decision, split),
        lost=_lost(decision, records),
        repeats=[
            (run, {"played": None, **play})
            for run, evidence in written["evidence"].items()
            for play in (*evidence["plays"], *evidence["begun"])
            if play["again"] or "started" in play
        ],
        incumbent=decision.incumbent["run"] if decision.incumbent else None,
    )


def _chart(decision: Decision, split: str) -> Markup:
    several = len(decision.candidates) > 1
    bars = [
        charts.Bar(
            f"{rate.policy}, {rate.run}" if several else rate.policy,
            _COLOURS[rate.policy],
            rate.solve_rate,
            rate.low,
            rate.high,
            rate.ceiling,
        )
        for rate in decision.rates
        if rate.split == split
    ]
    return Markup(charts.intervals(bars))


def _lost(
    decision: Decision, records: Mapping[str, Mapping[str, Sequence[EvaluationRecord]]]
) -> dict[str, list[Lost]]:
    """By run, the deciding split first."""
    first = decision.thresholds["split"]
    found: dict[str, list[Lost]] = {run: [] for run in decision.candidates}
    for regression in sorted(decision.regressions, key=lambda one: (one.split != first, one.split)):
        episodes = {
            record.digest: record
            for record in records[regression.run][seal.label(CANDIDATE, regression.split)]
        }
        record, shown = episodes[regression.digest], found[regression.run]
        image = image_data_url(record.replay().observation().image)
        film = pictures.film(record) if len(shown) < FILMS else []
        shown.append(Lost(regression, image, film))
    return found
