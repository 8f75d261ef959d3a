"""Seeds by name: the same everywhere, and different for everything that is named differently."""

from itertools import product

from training import seeds


def test_seeds_are_the_same_on_every_machine():
    assert seeds.derive(0, 3, "17", 5, 2) == 0x6BA6F58C8F1C3D99


def test_no_two_turns_of_a_run_share_a_seed():
    found = {seeds.derive(*name) for name in product(range(2), range(8), range(12), range(8), range(10))}
    assert len(found) == 2 * 8 * 12 * 8 * 10
    assert all(0 <= seed < 2**63 for seed in found)


def test_parts_do_not_run_into_each_other():
    assert len({seeds.derive(1, 23), seeds.derive(12, 3), seeds.derive("1", 23), seeds.derive("1,23")}) == 4
