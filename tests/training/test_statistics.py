import math

import pytest

from training.statistics import beta_cdf, clopper_pearson, mcnemar_exact

stats = pytest.importorskip("scipy.stats")


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
def test_intervals_agree_with_scipy(trials, level):
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


def test_beta_agrees_with_scipy():
    for x in (1e-6, 0.01, 0.3, 0.5, 0.77, 0.999):
        for a, b in ((0.5, 0.5), (1, 30), (29, 37), (500, 13), (3, 4000)):
            assert beta_cdf(x, a, b) == pytest.approx(stats.beta.cdf(x, a, b), rel=1e-9, abs=1e-14)


@pytest.mark.parametrize(
    ("wins", "losses"), [(0, 0), (1, 0), (6, 0), (5, 5), (9, 2), (2, 9), (20, 34), (700, 900)]
)
def test_mcnemar_agrees_with_scipy(wins, losses):
    expected = stats.binomtest(wins, wins + losses).pvalue if wins + losses else 1.0
    assert mcnemar_exact(wins, losses) == pytest.approx(expected, rel=1e-9)


def test_six_wins_without_a_loss_are_needed():
    assert mcnemar_exact(5, 0) > 0.05 > mcnemar_exact(6, 0)
    assert math.isclose(mcnemar_exact(6, 0), 2 / 64)
    with pytest.raises(ValueError, match="negative"):
        mcnemar_exact(-1, 3)
