from collections.abc import Iterator

import pytest
from moto import mock_aws

from cdk_app import settings
from cdk_app.settings import Environment
from training import recipe as recipes
from training.recipe import Recipe

RECIPES = settings.FOLDER.parent / "recipes"


@pytest.fixture(scope="session")
def environment() -> Environment:
    """The paper's."""
    return settings.load("paper", {"region": "us-west-2", "network.zones": ["us-west-2a", "us-west-2b"]})


@pytest.fixture(scope="session")
def recipe() -> Recipe:
    return recipes.load(RECIPES / "maze-6gpu.toml")


@pytest.fixture
def moto(monkeypatch) -> Iterator[None]:
    """An empty AWS in this process, without the thousand machine images that moto loads by default."""
    monkeypatch.setenv("MOTO_EC2_LOAD_DEFAULT_AMIS", "false")
    with mock_aws():
        yield
