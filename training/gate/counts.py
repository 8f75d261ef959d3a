"""What records of one split, or of two policies on one split, come to: plain figures for a decision."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass

from training.evaluate import EvaluationRecord, paired
from training.statistics import clopper_pearson, paired_difference

Records = Sequence[EvaluationRecord]
OOD = "ood"
"""The split of other kinds of tasks: no gain is tested there, only a drop is bounded."""


@dataclass(frozen=True)
class Rate:
    """Solved of one split by one policy; `low` and `high` are Clopper and Pearson's at `level`."""

    run: str
    split: str
    policy: str
    n: int
    solved: int
    solve_rate: float
    low: float
    high: float
    level: float
    ceiling: float
    format_rate: float


@dataclass(frozen=True)
class Comparison:
    """A candidate and what it is compared with, on the same tasks.

    `won` tasks only the candidate solved, `lost` only the other. `difference` is candidate - other in shares,
    `low` and `high` its score interval at `level`. `variant` is "" for a whole split.
    """

    run: str
    split: str
    against: str
    variant: str
    n: int
    both: int
    won: int
    lost: int
    neither: int
    difference: float
    low: float
    high: float
    level: float

    @property
    def lost_share(self) -> float:
        """Of the tasks that the other solved."""
        return self.lost / max(self.lost + self.both, 1)


@dataclass
class Test:
    """One exact McNemar test, two-sided; `p_holm` is adjusted for all tests of the decision.

    A candidate whose records are gone counts as a test that showed nothing (p = 1, no counts), which makes
    the adjustment of the others no smaller than it would be.
    """

    run: str
    split: str
    what: str
    won: int | None
    lost: int | None
    p_value: float
    p_holm: float = 1.0
    decides: bool = False


@dataclass(frozen=True)
class Regression:
    """A task that the candidate did not solve, though base, incumbent or both (`against`) did."""

    run: str
    split: str
    digest: str
    against: tuple[str, ...]
    optimal_turns: int
    turns: int


def rate(run: str, split: str, policy: str, records: Records, level: float) -> Rate:
    """Figures of one evaluation."""
    n, solved = len(records), sum(record.solved for record in records)
    low, high = clopper_pearson(solved, n, level)
    turns = sum(record.turns for record in records)
    return Rate(
        run=run,
        split=split,
        policy=policy,
        n=n,
        solved=solved,
        solve_rate=solved / n,
        low=low,
        high=high,
        level=level,
        ceiling=sum(record.solvable for record in records) / n,
        format_rate=sum(record.format_ok * record.turns for record in records) / turns,
    )


def compare(
    run: str, split: str, against: str, before: Records, after: Records, level: float, variant: str = ""
) -> Comparison:
    """Pairs two evaluations; DataError unless they are of the same tasks and rules."""
    pair = paired(before, after)
    low, high = paired_difference(pair.won, pair.lost, len(after), level)
    return Comparison(
        run=run,
        split=split,
        against=against,
        variant=variant,
        n=len(after),
        both=pair.both,
        won=pair.won,
        lost=pair.lost,
        neither=pair.neither,
        difference=(pair.won - pair.lost) / len(after),
        low=low,
        high=high,
        level=level,
    )


def of_variant(records: Records, variants: Mapping[str, str], name: str) -> list[EvaluationRecord]:
    """The records whose task is of one variant; `variants` maps a task's digest to it."""
    return [record for record in records if variants[record.digest] == name]


def regressions(run: str, split: str, after: Records, others: Mapping[str, Records]) -> list[Regression]:
    """What the candidate lost against each of `others` (name: records of the same tasks)."""
    solved = {name: outcomes(records) for name, records in others.items()}
    found = []
    for record in after:
        against = tuple(name for name in solved if record.key in solved[name])
        if against and not record.solved:
            found.append(Regression(run, split, record.digest, against, record.optimal_turns, record.turns))
    return found


def outcomes(records: Iterable[EvaluationRecord]) -> frozenset[str]:
    """The episodes that were solved, by key."""
    return frozenset(record.key for record in records if record.solved)
