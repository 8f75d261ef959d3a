"""Every environment through SkyRL-Gym's interface, fed by the rows of its splits as SkyRL feeds it."""

import base64
import io

import numpy as np
import pytest

pytest.importorskip("skyrl_gym")

import skyrl_gym
from PIL import Image

from training import recipe, splits
from training.environments import named
from training.skyrl.dataset import TaskDataset
from training.skyrl.gym_env import ENV_ID

SETTINGS = {
    "maze": {"name": "maze", "options": {"squares_per_move": 2}, "max_turns": 12},
    "counting": {"name": "counting", "max_turns": 2},
}


@pytest.fixture(scope="module", autouse=True)
def registered():
    skyrl_gym.envs.register(id=ENV_ID, entry_point="training.skyrl.gym_env:GameEnv")


def made(name: str, split: str, index: int):
    """The gym environment of a row, made as SkyRL's generator makes it, and the row's task."""
    chosen = recipe.Environment(**SETTINGS[name])
    built = splits.build(chosen.make(), 0, splits.Sizes(train=3, dev=3, test_512=3, ood=9))
    dataset = TaskDataset(list(dict(built)[split]), _Recipe(chosen))
    (item,) = dataset.collate_fn([dataset[index]])
    extras = item["env_extras"] | {"max_turns": chosen.max_turns}
    env = skyrl_gym.make(item["env_class"], env_config={}, extras=extras)
    return env, item, splits.row_task(dict(built)[split][index])


class _Recipe:
    def __init__(self, environment):
        self.environment = environment


def image_of(message) -> np.ndarray:
    url = message["content"][-1]["image_url"]["url"]
    return np.asarray(Image.open(io.BytesIO(base64.b64decode(url.split(",", 1)[1]))))


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize(("split", "index"), [("train", 0), ("test", 2), ("ood", 0), ("ood", 8)])
def test_an_oracle_is_paid_once_at_the_end(name, split, index):
    env, item, task = made(name, split, index)
    environment = named(name, **SETTINGS[name].get("options", {}))
    world = environment.world(task)
    prompt, _ = env.init(item["prompt"])
    rewards, done = [], False
    while not done:
        (message,) = prompt
        assert (image_of(message) == world.observe().image).all()
        action = world.best_action()
        world.act(action)
        step = env.step(f"<action>{action}</action><|im_end|>")
        prompt, done = step["observations"], step["done"]
        rewards.append(step["reward"])
    assert rewards == [0.0] * (environment.optimal_turns(task) - 1) + [1.0]
    assert env.get_metrics() == {"solved": 1.0, "turns": len(rewards), "format_ok": 1.0}


@pytest.mark.parametrize("name", SETTINGS)
def test_a_policy_that_answers_nothing_for_ever_ends_unpaid(name):
    env, item, _ = made(name, "dev", 1)
    env.init(item["prompt"])
    steps = [env.step("") for _ in range(SETTINGS[name]["max_turns"])]
    assert [step["done"] for step in steps] == [False] * (len(steps) - 1) + [True]
    assert sum(step["reward"] for step in steps) == 0
    assert env.get_metrics()["format_ok"] == 0


def test_rows_of_ood_are_played_as_they_are_to_be_seen():
    _, _, recoloured = made("maze", "ood", 8)
    env, item, bigger = made("maze", "ood", 0)
    assert (recoloured.palette, bigger.cells) == ("dusk", (5, 5))
    (message,), _ = env.init(item["prompt"])
    assert image_of(message).shape == (96, 96, 3)
    env, item, _ = made("maze", "ood", 8)
    (message,), _ = env.init(item["prompt"])
    assert (245, 235, 205) in {tuple(pixel) for pixel in image_of(message).reshape(-1, 3).tolist()}


def test_samples_of_a_group_are_asked_the_same():
    first, second = (made("counting", "train", 0) for _ in range(2))
    assert first[0].init(first[1]["prompt"]) == second[0].init(second[1]["prompt"])
