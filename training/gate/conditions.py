"""The conditions of a gate: each is one figure held against one threshold, and one sentence."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from training.gate.counts import OOD, Comparison, Rate, Test
from training.recipe import Gate


@dataclass(frozen=True)
class Condition:
    """One thing that has to hold; `found` and `needed` are the figures compared, `says` the sentence."""

    run: str
    name: str
    passed: bool
    found: float
    needed: float
    says: str


def conditions(
    thresholds: Gate,
    run: str,
    tests: Sequence[Test],
    rates: Sequence[Rate],
    comparisons: Sequence[Comparison],
) -> Iterator[Condition]:
    """What has to hold for one run; those against an incumbent only where there is one."""
    split = thresholds.split
    own = [one for one in comparisons if one.run == run and not one.variant]
    after = next(r for r in rates if (r.run, r.split, r.policy) == (run, split, "candidate"))
    base, ood = _find(own, split, "base"), _find(own, OOD, "base")
    yield Condition(
        run,
        "solve rate",
        after.low >= thresholds.min_solve_rate,
        after.low,
        thresholds.min_solve_rate,
        f"{after.solved} of the {after.n} tasks of {split} solved, {after.solve_rate:.1%} "
        f"{_interval(after)}: the interval has to begin at {thresholds.min_solve_rate:.1%} or above "
        f"(ceiling {after.ceiling:.1%})",
    )
    yield gained(thresholds, run, tests)
    yield Condition(
        run,
        "size of the gain",
        base.low > thresholds.min_gain,
        base.low,
        thresholds.min_gain,
        f"{_points(base.difference)} against the base {_interval(base)}: the interval has to begin above "
        f"{_points(thresholds.min_gain)}",
    )
    yield _lost(thresholds, run, base)
    yield Condition(
        run,
        "format",
        after.format_rate >= thresholds.min_format_rate,
        after.format_rate,
        thresholds.min_format_rate,
        f"{after.format_rate:.1%} of the turns were an action: at least {thresholds.min_format_rate:.1%} "
        "have to be",
    )
    yield _drop(run, "out of distribution", ood, thresholds.max_ood_drop)
    if incumbent := _find(own, split, "incumbent"):
        yield _drop(run, "no worse than the incumbent", incumbent, thresholds.max_incumbent_drop)
        yield _lost(thresholds, run, incumbent)


def gained(thresholds: Gate, run: str, tests: Iterable[Test]) -> Condition:
    """Whether the deciding test of a run (or of all) says that more was won than lost."""
    test = next(test for test in tests if test.run == run and test.decides)
    return Condition(
        run,
        "gain",
        test.won > test.lost and test.p_holm < thresholds.alpha,
        test.p_holm,
        thresholds.alpha,
        f"{test.won} tasks won and {test.lost} lost against the base: exact McNemar, two-sided, p = "
        f"{test.p_value:.2g}, {test.p_holm:.2g} after Holm; it has to be below {thresholds.alpha:g}",
    )


def _lost(thresholds: Gate, run: str, pair: Comparison) -> Condition:
    return Condition(
        run,
        f"tasks of the {pair.against} that were lost",
        pair.lost_share <= thresholds.max_lost_share,
        pair.lost_share,
        thresholds.max_lost_share,
        f"{pair.lost} of the {pair.lost + pair.both} tasks that the {pair.against} solved were lost, "
        f"{pair.lost_share:.1%}: at most {thresholds.max_lost_share:.1%} may be",
    )


def _drop(run: str, name: str, pair: Comparison, allowed: float) -> Condition:
    return Condition(
        run,
        name,
        pair.low >= -allowed,
        pair.low,
        -allowed,
        f"{_points(pair.difference)} against the {pair.against} on the {pair.n} tasks of {pair.split} "
        f"{_interval(pair)}: the interval must not begin below {_points(-allowed)}",
    )


def _find(comparisons: Iterable[Comparison], split: str, against: str) -> Comparison | None:
    return next((one for one in comparisons if (one.split, one.against) == (split, against)), None)


def _interval(of: Rate | Comparison) -> str:
    if isinstance(of, Comparison):
        return f"[{100 * of.low:+.1f}, {100 * of.high:+.1f}]"
    return f"[{of.low:.1%}, {of.high:.1%}]"


def _points(difference: float) -> str:
    """A difference of shares, in points."""
    return f"{100 * difference:+.1f} points"
