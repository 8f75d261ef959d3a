"""Every request of a rollout has a seed of its own, whatever the order in which requests come."""

import asyncio
from typing import Any

from training.skyrl.asker import Asker

IMAGE = 5


class Client:
    """Takes the place of SkyRL's inference client and remembers what it was asked."""

    def __init__(self, says: list[int] | None = None):
        self.asked: list[dict[str, Any]] = []
        self._says = says
        self.model_name = "base"

    async def generate(self, input_batch: dict[str, Any], model: str | None = None) -> dict[str, Any]:
        self.asked.append(input_batch)
        return {"response_ids": [[1]]} | ({"prompt_image_tokens": self._says} if self._says else {})


def ask(asker: Asker, episode: str, images: int = 1) -> None:
    batch = {
        "prompt_token_ids": [[1, *[IMAGE] * images, 2]],
        "session_ids": [episode],
        "sampling_params": {"temperature": 1.0},
    }
    asyncio.run(asker.generate(batch, model="policy"))


def seeds_of(order: list[str], run_seed: int = 0, step: int = 1) -> dict[tuple[str, int], int]:
    client = Client()
    asker = Asker(client, run_seed, IMAGE)
    asker.begin(step)
    for episode in order:
        ask(asker, episode)
    turns: dict[str, int] = {}
    found = {}
    for episode, batch in zip(order, client.asked, strict=True):
        turn = turns[episode] = turns.get(episode, -1) + 1
        found[episode, turn] = batch["sampling_params"]["seed"]
    return found


def test_a_seed_belongs_to_the_turn_not_to_the_moment():
    one = seeds_of(["3_0", "3_1", "3_0", "3_1", "7_0"])
    other = seeds_of(["7_0", "3_1", "3_1", "3_0", "3_0"])
    assert one == other
    assert len(set(one.values())) == 5


def test_another_run_seed_or_step_gives_other_seeds():
    order = ["3_0", "3_1"]
    found = [seeds_of(order), seeds_of(order, run_seed=1), seeds_of(order, step=2)]
    assert len({seed for one in found for seed in one.values()}) == 6


def test_what_else_is_asked_stays_as_it_is():
    client = Client()
    asker = Asker(client, 0, IMAGE)
    ask(asker, "3_0")
    assert client.asked[0]["sampling_params"]["temperature"] == 1.0
    assert asker.model_name == "base"


def test_the_engines_own_count_of_image_tokens_comes_before_ours():
    counted, told = Asker(Client(), 0, IMAGE), Asker(Client(says=[7]), 0, IMAGE)
    for images in (1, 2):
        ask(counted, "3_0", images)
        ask(told, "3_0", images)
    assert counted.image_tokens == {"3_0": 2}
    assert told.image_tokens == {"3_0": 7}
    counted.begin(2)
    assert counted.image_tokens == {}
