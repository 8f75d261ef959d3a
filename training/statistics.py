"""Statistics of solved-or-not counts and of repeated runs, with the standard library alone."""

import math
from collections.abc import Callable, Sequence
from functools import lru_cache
from statistics import NormalDist, fmean, stdev

_TINY = 1e-300


@lru_cache(maxsize=4096)
def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a share, as (low, high); (0, 1) without trials.

    It covers the true share with at least `level` probability (Clopper and Pearson, 1934).
    """
    if not 0 <= successes <= trials or not 0 < level < 1:
        raise ValueError(f"no interval for {successes} of {trials} at level {level}")
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else beta_quantile(tail, successes, trials - successes + 1)
    high = 1.0 if successes == trials else beta_quantile(1 - tail, successes + 1, trials - successes)
    return low, high


def mcnemar_exact(wins: int, losses: int) -> float:
    """Two-sided p-value of paired outcomes: `wins` pairs went one way, `losses` the other.

    The pairs that agree say nothing; under no difference the others split like fair coins. 1 without any.
    """
    if wins < 0 or losses < 0:
        raise ValueError(f"counts of pairs cannot be negative: {wins}, {losses}")
    pairs = wins + losses
    smaller = sum(math.comb(pairs, k) for k in range(min(wins, losses) + 1))
    # Whole numbers up to the one division: 2**pairs overflows a float beyond 1023 pairs.
    doubled = 2 * smaller
    return 1.0 if doubled >= 1 << pairs else doubled / (1 << pairs)


@lru_cache(maxsize=4096)
def paired_difference(wins: int, losses: int, pairs: int, level: float = 0.95) -> tuple[float, float]:
    """The score interval of a difference of shares of the same `pairs`, as (low, high); (-1, 1) without any.

    `wins` pairs succeeded in the second share alone, `losses` in the first alone: (wins - losses) / pairs is
    the estimate. Tango (1998), Statistics in Medicine 17, 891-908: a difference is in the interval unless the
    score test rejects it. Its coverage is near `level` also for small shares (tests enumerate it), not exact.
    """
    if wins < 0 or losses < 0 or wins + losses > pairs or not 0 < level < 1:
        raise ValueError(f"no interval for {wins} and {losses} of {pairs} pairs at level {level}")
    if not pairs:
        return -1.0, 1.0
    z, estimate = NormalDist().inv_cdf((1 + level) / 2), (wins - losses) / pairs

    def rejected(difference: float) -> bool:
        return abs(wins - losses - pairs * difference) > z * _score_spread(wins, losses, pairs, difference)

    low = _bisect(-1.0, estimate, lambda d: not rejected(d)) if estimate > -1 else -1.0
    high = _bisect(estimate, 1.0, rejected) if estimate < 1 else 1.0
    return low, high


def _score_spread(wins: int, losses: int, pairs: int, difference: float) -> float:
    """Standard deviation of wins - losses where the shares truly differ by `difference`.

    What the difference leaves open, the share of losses, is at its maximum of likelihood: the larger root of
    2 n q^2 + linear q = losses difference (1 - difference).
    """
    linear = (2 * pairs - wins + losses) * difference - (wins + losses)
    root = math.sqrt(max(0.0, linear**2 + 8 * pairs * losses * difference * (1 - difference)))
    lost = (root - linear) / (4 * pairs)
    return math.sqrt(max(0.0, pairs * (2 * lost + difference * (1 - difference))))


def holm(p_values: Sequence[float]) -> list[float]:
    """P-values adjusted for all being read (Holm, 1979), in the order given.

    Those below alpha may be called significant together: the chance that any of them is so by luck is at
    most alpha, however the tests depend on one another.
    """
    adjusted, highest = [0.0] * len(p_values), 0.0
    for rank, at in enumerate(sorted(range(len(p_values)), key=p_values.__getitem__)):
        highest = max(highest, min(1.0, (len(p_values) - rank) * p_values[at]))
        adjusted[at] = highest
    return adjusted


def mean_interval(values: Sequence[float], level: float = 0.95) -> tuple[float, float]:
    """Student's interval of the mean that further runs like these would have; needs two values."""
    if len(values) < 2 or not 0 < level < 1:
        raise ValueError(f"no interval of the mean for {len(values)} values at level {level}")
    freedom = len(values) - 1
    # P(|T| > t) is the incomplete beta function of freedom / (freedom + t^2).
    share = beta_quantile(1 - level, freedom / 2, 0.5)
    half = math.sqrt(freedom * (1 - share) / share) * stdev(values) / math.sqrt(len(values))
    return fmean(values) - half, fmean(values) + half


def beta_cdf(x: float, a: float, b: float) -> float:
    """Regularized incomplete beta function I_x(a, b), by its continued fraction."""
    if x <= 0:
        return 0.0
    if x >= 1:
        return 1.0
    log_front = math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x)
    # The fraction converges fast on this side of the mean; the other side is its mirror.
    if x < (a + 1) / (a + b + 2):
        return math.exp(log_front) * _beta_fraction(x, a, b) / a
    return 1 - math.exp(log_front) * _beta_fraction(1 - x, b, a) / b


def _beta_fraction(x: float, a: float, b: float) -> float:
    """The continued fraction of the incomplete beta function, by Lentz's method."""
    ratio = 1.0
    inverse = 1 / _away_from_zero(1 - (a + b) * x / (a + 1))
    value = inverse
    for m in range(1, 10_000):
        even = m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m))
        odd = -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1))
        for term in (even, odd):
            inverse = 1 / _away_from_zero(1 + term * inverse)
            ratio = _away_from_zero(1 + term / ratio)
            value *= inverse * ratio
        if abs(inverse * ratio - 1) < 1e-15:
            return value
    raise ArithmeticError(f"incomplete beta function did not converge at {x}, {a}, {b}")


def _away_from_zero(value: float) -> float:
    return value if abs(value) > _TINY else _TINY


def beta_quantile(probability: float, a: float, b: float) -> float:
    """Where `beta_cdf` reaches the probability."""
    return _bisect(0.0, 1.0, lambda x: beta_cdf(x, a, b) >= probability)


def _bisect(low: float, high: float, reached: Callable[[float], bool]) -> float:
    """Where `reached` turns true between `low` and `high`, to the last bit."""
    while low < (middle := (low + high) / 2) < high:
        if reached(middle):
            high = middle
        else:
            low = middle
    return (low + high) / 2
