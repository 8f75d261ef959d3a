"""Several episodes of each task: pass@k by counting, and intervals that hold what they promise."""

from itertools import combinations

import numpy as np
import pytest

from training.samples import clustered_interval, pass_at, pass_at_k
from training.statistics import clopper_pearson


@pytest.mark.parametrize("k", [1, 2, 3, 5])
def test_pass_at_k_counts_the_groups_that_hold_a_solved_episode(k):
    episodes = {count: [1] * count + [0] * (5 - count) for count in range(6)}
    solved = [0, 1, 2, 2, 4, 5]
    counted = np.mean([np.mean([any(g) for g in combinations(episodes[count], k)]) for count in solved])
    assert pass_at_k(solved, 5, k) == pytest.approx(counted, abs=1e-12)


def test_pass_at_k_is_unbiased_where_the_plug_in_is_not():
    draw = np.random.default_rng(0)
    chance = 0.3
    found = pass_at_k(draw.binomial(6, chance, 5_000).tolist(), 6, 4)
    assert found == pytest.approx(1 - (1 - chance) ** 4, abs=0.01)


def test_which_k_are_told():
    assert pass_at([1, 0], 1) == {"1": 0.5}
    assert list(pass_at([3, 0], 6)) == ["1", "2", "4", "6"]
    assert pass_at([3, 0], 6)["6"] == 0.5
    with pytest.raises(ValueError, match="pass@3 of 2"):
        pass_at_k([1], 2, 3)


@pytest.mark.parametrize("alike", [0.0, 0.3, 1.0])
@pytest.mark.parametrize("rate", [0.5, 0.95])
def test_the_interval_covers_however_alike_the_episodes_of_a_task_are(alike, rate):
    """`alike` is the correlation of two episodes of one task; 60 evaluations of 32 tasks, 4 samples each.

    Taking all 128 episodes for independent would cover 4 of 5 at 0.3 and 2 of 3 at 1.
    """
    draw = np.random.default_rng(7)
    shape = (60, 32)
    if alike == 0:
        chances = np.full(shape, rate)
    elif alike == 1:
        chances = (draw.random(shape) < rate).astype(float)
    else:
        strength = 1 / alike - 1
        chances = draw.beta(rate * strength, (1 - rate) * strength, shape)
    intervals = (clustered_interval(counts, 4) for counts in draw.binomial(4, chances).tolist())
    assert sum(low <= rate <= high for low, high in intervals) >= 55


def test_episodes_that_agree_count_as_one_and_independent_ones_as_many():
    alike = clustered_interval([4] * 32 + [0] * 32, 4)
    assert alike == pytest.approx(clopper_pearson(32, 64), abs=0.005)
    independent = clustered_interval(np.random.default_rng(1).binomial(4, 0.5, 256).tolist(), 4)
    low, high = clopper_pearson(512, 1024)
    assert independent[1] - independent[0] < 1.25 * (high - low)


def test_a_perfect_evaluation_is_bounded_by_its_tasks_not_by_its_episodes():
    perfect, almost = clustered_interval([8] * 64, 8), clustered_interval([8] * 63 + [7], 8)
    assert perfect == (pytest.approx(clopper_pearson(64, 64)[0], abs=0.002), 1.0)
    assert almost[0] == pytest.approx(perfect[0], abs=0.003)
    assert clustered_interval([0] * 64, 8) == (0.0, pytest.approx(1 - perfect[0]))
    assert clustered_interval([8], 8)[0] < 0.1


@pytest.mark.parametrize(("solved", "samples"), [([], 4), ([5], 4), ([-1], 4)])
def test_impossible_counts_are_refused(solved, samples):
    with pytest.raises(ValueError, match="no interval"):
        clustered_interval(solved, samples)
