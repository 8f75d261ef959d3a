"""What a step's rollouts show: groups that teach, and pictures that engine and trainer see alike."""

import statistics

import pytest

from training import diagnostics
from training.errors import DataError
from training.metrics import METRICS

EQUAL = ["skypod/image_tokens_engine", "skypod/image_tokens_trainer"]


def test_a_group_whose_rewards_are_equal_counts_whatever_they_are():
    uids = ["a"] * 4 + ["b"] * 4 + ["c"] * 4
    rewards = [0.2] * 4 + [1.0] * 4 + [0.2, 1.0, 0.2, 1.0]
    found = diagnostics.groups(uids, rewards)
    assert found["skypod/zero_variance_groups"] == pytest.approx(2 / 3)
    assert found["skypod/reward_std_in_group"] == pytest.approx(statistics.pstdev([0.2, 1.0]) / 3)


def test_groups_are_found_by_name_not_by_place():
    mixed = diagnostics.groups(["a", "b", "a", "b"], [0.0, 1.0, 0.0, 1.0])
    assert mixed["skypod/zero_variance_groups"] == 1.0


def test_rounding_of_a_sum_of_rewards_is_no_variance():
    assert diagnostics.groups(["a", "a"], [0.1 + 0.2, 0.3])["skypod/zero_variance_groups"] == 1.0


def test_equal_image_tokens_are_counted():
    found = diagnostics.same_image_tokens([48, 32], [48, 32], [48, 32], [False, False])
    assert [found[key] for key in EQUAL] == [80, 80]


@pytest.mark.parametrize(
    ("engine", "sequence", "features"), [(32, 48, 48), (64, 48, 48), (48, 32, 48), (48, 48, 64)]
)
def test_an_episode_whose_pictures_differ_ends_the_run(engine, sequence, features):
    with pytest.raises(DataError, match=rf"episode 1 .* {engine} image tokens.* {sequence} .* {features}"):
        diagnostics.same_image_tokens([16, engine], [16, sequence], [16, features], [False, False])


def test_an_episode_that_grew_too_long_may_lack_its_last_picture_in_the_engine_only():
    assert diagnostics.same_image_tokens([32], [48], [48], [True])["skypod/image_tokens_trainer"] == 48
    with pytest.raises(DataError):
        diagnostics.same_image_tokens([64], [48], [48], [True])
    with pytest.raises(DataError):
        diagnostics.same_image_tokens([32], [48], [64], [True])


def test_every_diagnostic_is_a_metric():
    emitted = diagnostics.groups(["a"], [1.0]) | diagnostics.same_image_tokens([1], [1], [1], [False])
    assert emitted.keys() <= {metric.skyrl_key for metric in METRICS.values()}
