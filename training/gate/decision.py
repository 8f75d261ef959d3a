"""Decides whether a candidate passes: records and thresholds in, a decision with its evidence out.

Nothing here reads or writes a file, and nothing is decided by an estimate: a gain needs an exact test, and
every threshold is held against the end of an interval. Whoever looks often finds something, so tests that
are read together are adjusted together (Holm), and the more candidates of a run saw a sealed split, the
wider its intervals (alpha is divided by their number).
"""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from training.errors import DataError
from training.evaluate import paired
from training.gate import counts
from training.gate.conditions import Condition, conditions, gained
from training.gate.counts import OOD, Comparison, Rate, Records, Regression, Test, outcomes
from training.recipe import Gate
from training.statistics import holm, mcnemar_exact, mean_interval

ALL = "all runs"
"""Stands in place of a run's name where several are judged together."""


@dataclass(frozen=True)
class Look:
    """A further play of a sealed split; `records` is None where it has none of each task once.

    Of a play without any record only its entry says which split it was: it counts on each (`anywhere`).
    """

    candidate: str
    label: str
    split: str
    again: str | None
    records: Records | None
    anywhere: bool = False


@dataclass(frozen=True)
class Entrant:
    """One run: records by split of base and candidate, and every further look at a sealed split.

    `variants` maps the digest of an out-of-distribution task to its kind.
    """

    run: str
    candidate: str
    base: Mapping[str, Records]
    after: Mapping[str, Records]
    variants: Mapping[str, str] = field(default_factory=dict)
    looks: Sequence[Look] = ()

    def counted(self, split: str) -> list[Look]:
        """The looks at a split that could have been chosen instead: other candidates, other outcomes.

        Those of the base as well: under its name another's look would be hidden best.
        """
        base = self.base[split]
        known = {(self.candidate, outcomes(self.after[split])), (base[0].policy, outcomes(base))}
        found = []
        for look in self.looks:
            mark = (look.candidate, look.label if look.records is None else outcomes(look.records))
            if (look.split == split or look.anywhere) and mark not in known:
                known.add(mark)
                found.append(look)
        return found


@dataclass(frozen=True)
class Incumbent:
    """The policy that is served now: records by split."""

    run: str
    candidate: str
    records: Mapping[str, Records]


@dataclass(frozen=True)
class Seeds:
    """Several runs of one recipe on the gate's split. Intervals are Student's, over the runs.

    `won` and `lost` count tasks that more runs gained than lost, and the reverse: pairs of one task in
    several runs are not independent, tasks are. `every` is the number of tasks that all runs solve.
    """

    runs: int
    n: int
    every: int
    solved: int
    mean: float
    low: float
    high: float
    gain: float
    gain_low: float
    gain_high: float
    worst: str
    worst_rate: float
    won: int
    lost: int


@dataclass(frozen=True)
class Decision:
    """`passed` is true when every condition of every run holds."""

    passed: bool
    thresholds: dict[str, Any]
    candidates: dict[str, str]
    incumbent: dict[str, str] | None
    looks: dict[str, int]
    conditions: list[Condition]
    tests: list[Test]
    rates: list[Rate]
    comparisons: list[Comparison]
    regressions: list[Regression]
    seeds: Seeds | None

    @property
    def unmet(self) -> list[Condition]:
        return [condition for condition in self.conditions if not condition.passed]

    def to_json(self) -> dict[str, Any]:
        """The fields as plain values."""
        return asdict(self)


def decide(thresholds: Gate, entrants: Sequence[Entrant], incumbent: Incumbent | None = None) -> Decision:
    """Judge one run, or several of one recipe that differ in their seed: then all have to pass.

    DataError when evaluations that are to be paired are not of the same tasks and rules, or hold a task more
    than once: all that follows takes episodes for independent.
    """
    split, alpha = thresholds.split, thresholds.alpha
    for entrant in entrants:
        for played in (entrant.base, entrant.after, incumbent.records if incumbent else {}):
            _require_each_once(entrant.run, played)
    tests = [test for entrant in entrants for test in _tests(entrant, split, incumbent)]
    seeds = _seeds(entrants, split, 1 - alpha) if len(entrants) > 1 else None
    if seeds:
        p_value = mcnemar_exact(seeds.won, seeds.lost)
        tests.append(Test(ALL, split, "candidate against base", seeds.won, seeds.lost, p_value, decides=True))
    for test, adjusted in zip(tests, holm([test.p_value for test in tests]), strict=True):
        test.p_holm = adjusted
    rates: list[Rate] = []
    comparisons: list[Comparison] = []
    regressions: list[Regression] = []
    for entrant in entrants:
        for name, after in entrant.after.items():
            level = 1 - alpha / (1 + len(entrant.counted(name)))
            others = {"base": entrant.base[name]} | (
                {"incumbent": incumbent.records[name]} if incumbent else {}
            )
            for policy, records in (*others.items(), ("candidate", after)):
                rates.append(counts.rate(entrant.run, name, policy, records, level))
            for against, records in others.items():
                comparisons += _compare(entrant, name, against, records, level)
            regressions += counts.regressions(entrant.run, name, after, others)
    judged = [
        condition
        for entrant in entrants
        for condition in conditions(thresholds, entrant.run, tests, rates, comparisons)
    ]
    if seeds:
        judged.append(gained(thresholds, ALL, tests))
    return Decision(
        passed=all(condition.passed for condition in judged),
        thresholds=thresholds.model_dump(mode="json"),
        candidates={entrant.run: entrant.candidate for entrant in entrants},
        incumbent={"run": incumbent.run, "candidate": incumbent.candidate} if incumbent else None,
        looks={entrant.run: 1 + len(entrant.counted(split)) for entrant in entrants},
        conditions=judged,
        tests=tests,
        rates=rates,
        comparisons=comparisons,
        regressions=regressions,
        seeds=seeds,
    )


def _require_each_once(run: str, played: Mapping[str, Records]) -> None:
    for name, records in played.items():
        if (tasks := len({record.digest for record in records})) != len(records):
            raise DataError(
                f"{len(records)} episodes of {tasks} tasks of {name} cannot decide on {run!r}",
                "play every task once, greedily",
            )


def _tests(entrant: Entrant, split: str, incumbent: Incumbent | None) -> list[Test]:
    """Every test that a reader of the decision reads: this candidate, and those it could be exchanged for."""
    found = []
    for name in (name for name in entrant.after if name != OOD):
        pair = paired(entrant.base[name], entrant.after[name])
        what = "candidate against base"
        found.append(Test(entrant.run, name, what, pair.won, pair.lost, pair.p_value, decides=name == split))
        if incumbent:
            pair = paired(incumbent.records[name], entrant.after[name])
            what = "candidate against incumbent"
            found.append(Test(entrant.run, name, what, pair.won, pair.lost, pair.p_value))
        for look in entrant.counted(name):
            what = f"{look.candidate} ({look.label}) against base"
            if look.records is None:
                found.append(Test(entrant.run, name, what, None, None, 1.0))
            else:
                pair = paired(entrant.base[name], look.records)
                found.append(Test(entrant.run, name, what, pair.won, pair.lost, pair.p_value))
    return found


def _compare(entrant: Entrant, split: str, against: str, records: Records, level: float) -> list[Comparison]:
    """A whole split, and where its tasks are of several kinds each of them."""
    after = entrant.after[split]
    found = [counts.compare(entrant.run, split, against, records, after, level)]
    for name in sorted({entrant.variants[record.digest] for record in after} if split == OOD else ()):
        pair = (counts.of_variant(part, entrant.variants, name) for part in (records, after))
        found.append(counts.compare(entrant.run, split, against, *pair, level, variant=name))
    return found


def _seeds(entrants: Sequence[Entrant], split: str, level: float) -> Seeds:
    after = [outcomes(entrant.after[split]) for entrant in entrants]
    base = [outcomes(entrant.base[split]) for entrant in entrants]
    keys = [record.key for record in entrants[0].after[split]]
    net = [sum(key in one for one in after) - sum(key in one for one in base) for key in keys]
    rates = [len(solved) / len(keys) for solved in after]
    gains = [len(one) / len(keys) - len(other) / len(keys) for one, other in zip(after, base, strict=True)]
    (low, high), (gain_low, gain_high) = mean_interval(rates, level), mean_interval(gains, level)
    worst = min(range(len(rates)), key=rates.__getitem__)
    return Seeds(
        runs=len(entrants),
        n=len(keys),
        every=len(frozenset.intersection(*after)),
        solved=sum(map(len, after)),
        mean=sum(rates) / len(rates),
        low=max(0.0, low),
        high=min(1.0, high),
        gain=sum(gains) / len(gains),
        gain_low=max(-1.0, gain_low),
        gain_high=min(1.0, gain_high),
        worst=entrants[worst].run,
        worst_rate=rates[worst],
        won=sum(change > 0 for change in net),
        lost=sum(change < 0 for change in net),
    )
