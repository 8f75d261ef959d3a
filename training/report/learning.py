"""What a run's page says of learning: sealed splits and who played them, diagnostics, imitation beside it."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from markupsafe import Markup

from training import seal
from training.errors import visible
from training.evaluate import Summary, paired, summarize
from training.report import charts
from training.report.run import Played, Run

_SAYS = {
    "test": "the published 64",
    "test-512": "fresh tasks of the same kind",
    "ood": "another distribution",
    "bigger": "larger",
    "mirrored": "mirror images of the published",
    "recoloured": "in other colours",
}
_POLICIES = {
    "imitation": "more supervised training, same imperfect demonstrators",
    "oracle": "more supervised training, oracle labels",
    "perception": "the policy before it was given bad habits (not reachable by imitating them)",
}


@dataclass(frozen=True)
class Sealed:
    """One sealed split, or one variant of it (`part`), before and after."""

    name: str
    part: bool
    foreign: bool
    before: Summary
    after: Summary
    won: int
    lost: int
    p_value: float

    @property
    def says(self) -> str:
        """What the name means, where the tasks are those that the recipe draws."""
        if self.foreign:
            return "changed by hand: not what the recipe draws"
        return _SAYS.get(self.name, "")


def sealed(run: Run) -> list[Sealed]:
    """Every sealed split that was played whole before and after, variants of `ood` below it."""
    rows = []
    for split in seal.SEALED:
        before, after = (run.evaluations.get(seal.label(when, split)) for when in ("baseline", "final"))
        if not before or not after or not _same_tasks(before, after):
            continue
        rows.append(_sealed(split, False, split in run.foreign, before, after))
        variants = {run.variants.get(record.digest, "") for record in before.records}
        if len(variants) > 1:
            rows += [_part(run, variant, before, after) for variant in sorted(variants)]
    return rows


def _same_tasks(one: Played, other: Played) -> bool:
    return {record.key for record in one.records} == {record.key for record in other.records}


def _part(run: Run, variant: str, before: Played, after: Played) -> Sealed:
    kept = (
        tuple(record for record in played.records if run.variants.get(record.digest, "") == variant)
        for played in (before, after)
    )
    return _sealed(
        variant, True, "ood" in run.foreign, *(Played(records, summarize(records)) for records in kept)
    )


def _sealed(name: str, part: bool, foreign: bool, before: Played, after: Played) -> Sealed:
    pair = paired(before.records, after.records)
    return Sealed(name, part, foreign, before.summary, after.summary, pair.won, pair.lost, pair.p_value)


def plays(run: Run) -> list[dict[str, Any]]:
    """The finished plays of sealed splits, oldest first, and those that were only begun (`played` is None);
    `repeat` where a candidate had played it before. `continued` says each time that it was gone on with."""
    ended, stops = run.manifest.get(seal.PLAYS, []), seal.continued(run.manifest)
    labels = {play["label"] for play in ended}
    begun = [play for play in run.manifest.get(seal.STARTED, []) if play["label"] not in labels]
    seen, found = set(), []
    for play in (*ended, *begun):
        key = (play["candidate"], play["split"])
        texts = ("candidate", "split", "label", "played", "started", "records", "again")
        shown = {text: visible(str(play[text])) if play.get(text) else None for text in texts}
        of_it = [_stop(one) for one in stops if one["label"] == play["label"]]
        found.append({**shown, "repeat": key in seen, "continued": "; ".join(of_it)})
        seen.add(key)
    return found


def _stop(one: Mapping[str, Any]) -> str:
    return visible(f"continued {one['at']} with {one['records']} records, {one['reached']} had been there")


@dataclass(frozen=True)
class Line:
    """One policy of the comparison; `cpu_s` is what it cost beyond the base, None where that says nothing."""

    name: str
    cpu_s: float | None
    test: Mapping[str, Any]
    test_512: Mapping[str, Any]


def comparison(run: Run) -> list[Line]:
    """The run beside imitation for the same CPU time, if that was made (comparison.json)."""
    made = run.imitation
    if not made:
        return []
    lines = []
    for when, name, cpu_s in (
        ("baseline", "base", 0.0),
        ("final", "this run: reinforcement", made["run"]["cpu_s"]),
    ):
        played = [run.evaluations.get(seal.label(when, split)) for split in ("test", "test-512")]
        if all(played):
            lines.append(Line(name, float(cpu_s), *(_shares(one.summary.to_json()) for one in played)))
    for name, says in _POLICIES.items():
        if part := made["policies"].get(name):
            cpu_s = None if part.get("cpu_s") is None else float(part["cpu_s"])
            lines.append(
                Line(says, cpu_s, *(_shares(part["splits"][split]) for split in ("test", "test-512")))
            )
    return lines


def _shares(summary: Mapping[str, Any]) -> dict[str, float]:
    return {key: float(summary[key]) for key in ("solve_rate", "low", "high")}


def imitation_curve(run: Run) -> Markup | None:
    """What imitation solved of dev by CPU time."""
    colours = {"imitation": "c-before", "oracle": "c-served"}
    series = [
        charts.Series(name, colours[name], [(cpu, rate) for cpu, rate in part["dev"]], dots=True)
        for name, part in run.imitation.get("policies", {}).items()
        if name in colours
    ]
    if not series:
        return None
    return Markup(charts.Lines("Dev solve rate by CPU time", "CPU seconds", series, percent=True).svg())


@dataclass(frozen=True)
class _Panel:
    """One small chart: metrics (name, legend) over steps."""

    title: str
    note: str
    metrics: Sequence[tuple[str, str]]
    percent: bool = False


_PANELS = (
    _Panel(
        "Groups of zero variance",
        "All samples of the maze got the same reward: nothing is learned from it.",
        [("zero_variance_groups", "groups")],
        percent=True,
    ),
    _Panel(
        "Reward",
        "Mean of the step, and standard deviation within a group, by which advantages are scaled.",
        [("reward_mean", "mean"), ("reward_std_in_group", "in group")],
    ),
    _Panel("Entropy", "Of the sampled tokens, in nats.", [("policy_entropy", "entropy")]),
    _Panel(
        "Length",
        "Turns per episode and tokens per answer.",
        [("train_turns", "turns"), ("answer_tokens", "tokens")],
    ),
    _Panel("Clipped", "Tokens whose ratio was clipped.", [("clip_ratio", "share")]),
    _Panel(
        "Image tokens",
        "What the engine was shown and what the trainer sees; the run ends where they differ.",
        [("image_tokens_engine", "engine"), ("image_tokens_trainer", "trainer")],
    ),
    _Panel("Gradient", "Norm before clipping.", [("grad_norm", "norm")]),
)


def diagnostics(run: Run) -> list[tuple[str, str, Markup]]:
    """(title, note, chart) for each panel that the run has figures for."""
    found = []
    for panel in _PANELS:
        series = []
        for (metric, name), colour in zip(panel.metrics, ("c-after", "c-before"), strict=False):
            points = [(row["step"], row[metric]) for row in run.metrics if metric in row]
            if points:
                series.append(charts.Series(name, colour, points))
        if series:
            chart = charts.Lines(panel.title, "step", series, percent=panel.percent, height=170, width=430)
            found.append((panel.title, panel.note, Markup(chart.svg())))
    return found
