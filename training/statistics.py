"""Exact statistics of solved-or-not counts, with the standard library alone."""

import math
from functools import lru_cache

_TINY = 1e-300


@lru_cache(maxsize=4096)
def clopper_pearson(successes: int, trials: int, level: float = 0.95) -> tuple[float, float]:
    """The exact two-sided interval of a share, as (low, high); (0, 1) without trials.

    It covers the true share with at least `level` probability (Clopper and Pearson, 1934).
    """
    if not 0 <= successes <= trials or not 0 < level < 1:
        raise ValueError(f"no interval for {successes} of {trials} at level {level}")
    tail = (1 - level) / 2
    low = 0.0 if successes == 0 else _beta_quantile(tail, successes, trials - successes + 1)
    high = 1.0 if successes == trials else _beta_quantile(1 - tail, successes + 1, trials - successes)
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


def _beta_quantile(probability: float, a: float, b: float) -> float:
    """Where `beta_cdf` reaches the probability, by bisection to the last bit."""
    low, high = 0.0, 1.0
    while low < (middle := (low + high) / 2) < high:
        if beta_cdf(middle, a, b) < probability:
            low = middle
        else:
            high = middle
    return (low + high) / 2
