"""What several sampled episodes of each task show: pass@k, and an interval that knows them for relatives."""

import math
from collections.abc import Sequence
from statistics import fmean, variance

from training.statistics import beta_quantile


def pass_at_k(solved: Sequence[int], samples: int, k: int) -> float:
    """Chance that at least one of `k` episodes of a task solves it, averaged over the tasks.

    `solved` counts each task's solved episodes of `samples`. Unbiased (Chen et al., 2021, arXiv:2107.03374):
    the share of the groups of k episodes that hold a solved one. ValueError unless 1 <= k <= samples.
    """
    if not 1 <= k <= samples:
        raise ValueError(f"pass@{k} of {samples} samples")
    return fmean(1 - math.comb(samples - count, k) / math.comb(samples, k) for count in solved)


def pass_at(solved: Sequence[int], samples: int) -> dict[str, float]:
    """pass@k for 1, 2, 4, ... and all `samples`, by k as a text."""
    powers = (1 << power for power in range(samples.bit_length()))
    return {str(k): pass_at_k(solved, samples, k) for k in sorted({*powers, samples})}


def clustered_interval(solved: Sequence[int], samples: int, level: float = 0.95) -> tuple[float, float]:
    """Two-sided interval of the solve rate over new tasks, from several episodes of each, as (low, high).

    Episodes of one task resemble each other, so they count for fewer than they are: Clopper and Pearson's
    interval is taken of the effective number of episodes (Korn and Graubard, 1998), which lies between one
    and all of a task's. It comes from the spread of the tasks' rates, to which one task that is always
    solved and one that never is are added: with few tasks, or equal ones, their spread says too little.
    """
    episodes = len(solved) * samples
    if not episodes or not all(0 <= count <= samples for count in solved):
        raise ValueError(f"no interval of {list(solved)[:5]}... solved of {samples} each")
    rates = [count / samples for count in solved] + [0.0, 1.0]
    middle = fmean(rates)
    effective = min(len(solved) * middle * (1 - middle) / variance(rates), episodes)
    rate, tail = sum(solved) / episodes, (1 - level) / 2
    hits, misses = effective * rate, effective * (1 - rate)
    low = beta_quantile(tail, hits, misses + 1) if rate > 0 else 0.0
    high = beta_quantile(1 - tail, hits + 1, misses) if rate < 1 else 1.0
    return low, high
