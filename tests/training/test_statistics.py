import math

import numpy as np
import pytest

from training.statistics import (
    beta_cdf,
    clopper_pearson,
    holm,
    mcnemar_exact,
    mean_interval,
    paired_difference,
)


@pytest.fixture(scope="module")
def stats():
    """Imported here: it takes two seconds, and each worker collects every file."""
    from scipy import stats

    return stats


@pytest.mark.parametrize(
    ("solved", "trials", "interval"),
    [
        (28, 64, (0.314, 0.567)),
        (48, 64, (0.626, 0.850)),
        (61, 64, (0.869, 0.990)),
        (62, 64, (0.892, 0.996)),
        (64, 64, (0.944, 1.0)),
        (497, 512, (0.952, 0.984)),
    ],
)
def test_intervals_as_published(solved, trials, interval):
    assert clopper_pearson(solved, trials) == pytest.approx(interval, abs=5e-4)


@pytest.mark.parametrize("trials", [1, 2, 7, 64, 512, 5000])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.999])
def test_intervals_agree_with_scipy(trials, level, stats):
    for solved in sorted({0, 1, trials // 3, trials // 2, trials - 1, trials}):
        expected = stats.binomtest(solved, trials).proportion_ci(level, method="exact")
        assert clopper_pearson(solved, trials, level) == pytest.approx(
            (expected.low, expected.high), abs=1e-9
        )


def test_interval_without_trials_knows_nothing():
    assert clopper_pearson(0, 0) == (0.0, 1.0)


@pytest.mark.parametrize("arguments", [(3, 2), (-1, 2), (1, 2, 0.0), (1, 2, 1.0)])
def test_impossible_counts_are_refused(arguments):
    with pytest.raises(ValueError, match="no interval"):
        clopper_pearson(*arguments)


def test_beta_agrees_with_scipy(stats):
    for x in (1e-6, 0.01, 0.3, 0.5, 0.77, 0.999):
        for a, b in ((0.5, 0.5), (1, 30), (29, 37), (500, 13), (3, 4000)):
            assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (1, 0), (6, 0), (5, 5), (9, 2), (2, 9), (20, 34), (700, 900)]
)
def test_mcnemar_agrees_with_scipy(wins, losses, stats):
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar_exact(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_six_wins_without_a_loss_are_needed():
    assert mcnemar_exact(5, 0) > 0.05 > mcnemar_exact(6, 0)
    assert math.isclose(mcnemar_exact(6, 0), 2 / 64)
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(-1, 3)


@pytest.mark.parametrize(
    ("wins", "losses", "pairs", "interval"),
    [
        # Fagerland, Lydersen and Laake, Statistical Analysis of Contingency Tables (2017), ch. 8: complete
        # response before and after consolidation therapy (Cavo et al., 2012).
        (6, 16, 161, (-0.1240, -0.0054)),
        # Limits that follow by hand from the score statistic: no pair differs, and z^2 / (n + z^2).
        (0, 0, 100, (-0.03700, 0.03700)),
    ],
)
def test_paired_differences_as_published(wins, losses, pairs, interval):
    assert paired_difference(wins, losses, pairs) == pytest.approx(interval, abs=5e-5)


def test_a_paired_interval_ends_where_the_score_test_begins_to_reject(stats):
    """The score test anew, its likelihood maximised numerically instead of by the closed form."""
    optimize = pytest.importorskip("scipy.optimize")

    def z(wins: int, losses: int, pairs: int, difference: float) -> float:
        def unlikely(lost: float) -> float:
            shares = (lost + difference, lost, 1 - 2 * lost - difference)
            return -float(np.dot((wins, losses, pairs - wins - losses), np.log(shares)))

        bounds = (max(0, -difference) + 1e-12, (1 - difference) / 2 - 1e-12)
        lost = optimize.minimize_scalar(unlikely, bounds=bounds, method="bounded", options={"xatol": 1e-12}).x
        return (wins - losses - pairs * difference) / math.sqrt(
            pairs * (2 * lost + difference - difference**2)
        )

    for counts in ((20, 5, 64), (1, 30, 64), (7, 7, 20), (300, 12, 1024)):
        for level in (0.9, 0.95, 0.99):
            low, high = paired_difference(*counts, level)
            limit = stats.norm.ppf((1 + level) / 2)
            assert (z(*counts, low), z(*counts, high)) == pytest.approx((limit, -limit), abs=1e-4)


@pytest.mark.parametrize("pairs", [20, 64])
def test_paired_intervals_cover_what_they_say(pairs, stats):
    """Every possible outcome of small experiments: on average 95 %, nowhere below 93 %.

    The low end alone, which a gate reads, is above the truth in at most 5 % where 2.5 % are meant.
    """
    counts = np.array([(won, lost) for won in range(pairs + 1) for lost in range(pairs + 1 - won)])
    limits = np.array([paired_difference(int(won), int(lost), pairs) for won, lost in counts])
    outcomes = np.c_[counts, pairs - counts.sum(1)]
    covered, above = [], []
    for win in np.linspace(0.005, 0.9, 16):
        for lose in np.linspace(0.005, min(0.6, 1 - win), 10):
            chance = stats.multinomial.pmf(outcomes, pairs, [win, lose, max(0.0, 1 - win - lose)])
            difference = win - lose
            too_high, too_low = limits[:, 0] > difference + 1e-9, limits[:, 1] < difference - 1e-9
            covered.append(1 - chance[too_high | too_low].sum())
            above.append(chance[too_high].sum())
    assert min(covered) > 0.93
    assert 0.948 < np.mean(covered) < 0.975
    assert max(above) < 0.05


def test_paired_differences_mirror_and_reach_the_ends():
    low, high = paired_difference(9, 2, 30)
    assert paired_difference(2, 9, 30) == pytest.approx((-high, -low), abs=1e-12)
    assert paired_difference(5, 0, 5)[1] == 1.0
    assert paired_difference(0, 5, 5)[0] == -1.0
    assert paired_difference(0, 0, 0) == (-1.0, 1.0)
    for counts in ((3, 3, 5), (-1, 0, 5), (1, 1, 5, 1.0)):
        with pytest.raises(ValueError, match="no interval"):
            paired_difference(*counts)


def test_holm_by_hand_and_with_ties():
    """Four tests: the smallest times 4, the next times 3, and no later one below an earlier one."""
    assert holm([0.03, 0.005, 0.04, 0.01]) == pytest.approx([0.06, 0.02, 0.06, 0.03])
    assert holm([0.02, 0.02]) == pytest.approx([0.04, 0.04])
    assert holm([0.9, 0.6]) == [1.0, 1.0]
    assert holm([0.2]) == [0.2]
    assert holm([]) == []


@pytest.mark.parametrize("values", [(0.9, 0.95), (0.953, 0.984, 0.969), (0.1, 0.5, 0.4, 0.7, 0.2)])
@pytest.mark.parametrize("level", [0.9, 0.95, 0.99])
def test_intervals_of_a_mean_agree_with_scipy(values, level, stats):
    expected = stats.t.interval(level, len(values) - 1, np.mean(values), stats.sem(values))
    assert mean_interval(values, level) == pytest.approx(expected, rel=1e-9)


def test_one_run_says_nothing_of_how_runs_differ():
    with pytest.raises(ValueError, match="no interval of the mean for 1 values"):
        mean_interval([0.9])
