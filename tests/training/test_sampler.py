"""What a step trains on follows from seed and step alone."""

import pytest

from training.errors import ConfigError
from training.sampler import Sampler


def test_an_epoch_takes_each_row_once_and_leaves_out_what_fills_no_step():
    sampler = Sampler(rows=14, per_step=4, seed=3)
    drawn = [row for step in (1, 2, 3) for row in sampler.rows_of(step)]
    assert len(set(drawn)) == 12
    assert set(drawn) < set(range(14))


def test_a_sampler_that_starts_in_the_middle_draws_what_the_first_would_have():
    steps = range(1, 20)
    first = [Sampler(12, 4, seed=0).rows_of(step) for step in steps]
    assert [Sampler(12, 4, seed=0).rows_of(step) for step in reversed(steps)] == first[::-1]


def test_epochs_and_seeds_have_orders_of_their_own():
    orders = [tuple(Sampler(40, 4, seed).order(epoch)) for seed in (0, 1) for epoch in (0, 1, 2)]
    assert len(set(orders)) == 6


@pytest.mark.parametrize(("step", "epoch"), [(1, 0), (3, 0), (4, 1), (6, 1), (7, 2)])
def test_the_last_step_of_an_epoch_is_part_of_it(step, epoch):
    assert Sampler(12, 4, 0).epoch(step) == epoch


def test_too_few_rows_are_refused():
    with pytest.raises(ConfigError, match="3 training tasks do not fill one step of 4"):
        Sampler(3, 4, 0)
