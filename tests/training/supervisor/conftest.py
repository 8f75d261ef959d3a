import pytest

from tests.training.supervisor.world import World


@pytest.fixture
def world(tmp_path) -> World:
    return World(tmp_path)
