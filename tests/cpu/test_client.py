"""The in-process client: equal questions travel in one call, each with the seed that it was given."""

import asyncio
from types import SimpleNamespace

import pytest

pytest.importorskip("skyrl")
pytest.importorskip("transformers")

from rehearsal.tiny import layout, tokenizer
from training.environments.maze import MazeEnvironment
from training.evaluate import Conversation
from training.skyrl.client import LocalClient
from training.skyrl.engine import Sample


class Engine:
    """Takes the place of the Ray actor and remembers its calls; answers with the seed it was given."""

    def __init__(self):
        self.calls: list[dict] = []
        self.generate = SimpleNamespace(remote=self._generate)

    async def _generate(self, requests, images, sampling, seeds):
        self.calls.append({"requests": requests, "images": images, "sampling": sampling, "seeds": seeds})
        return [Sample([seed], [0.0], "stop", image_tokens=16) for seed in seeds]


@pytest.fixture
def asked():
    from transformers.models.qwen2_vl.image_processing_pil_qwen2_vl import Qwen2VLImageProcessorPil

    processor = Qwen2VLImageProcessorPil(
        patch_size=16, temporal_patch_size=2, merge_size=1, image_mean=[0.5] * 3, image_std=[0.5] * 3
    )
    engine = Engine()
    return LocalClient([engine], tokenizer.build_tokenizer(), processor, "base"), engine


def question() -> list[dict]:
    environment = MazeEnvironment(squares_per_move=2)
    task = environment.published()[0][1]
    return Conversation("maze/0", environment.world(task).observe().image).messages()


async def ask(client: LocalClient, seed: int) -> dict:
    rendered = await client.render_chat_completion({"json": {"messages": question()}})
    sampling = {"temperature": 1.0, "seed": seed, "stop": None, "n": 1}
    batch = {
        "prompt_token_ids": [rendered["token_ids"]],
        "session_ids": [f"0_{seed}"],
        "sampling_params": sampling,
        "mm_features": [rendered["features"]],
    }
    return await client.generate(batch)


def test_each_answer_comes_from_its_own_seed_in_one_call(asked):
    client, engine = asked

    async def both() -> list[dict]:
        return await asyncio.gather(ask(client, 7), ask(client, 5))

    answers = asyncio.run(both())
    assert [answer["response_ids"] for answer in answers] == [[[7]], [[5]]]
    (call,) = engine.calls
    assert call["seeds"] == [7, 5]
    assert call["sampling"] == {"temperature": 1.0}
    assert call["requests"][0] == call["requests"][1]
    assert len(call["images"]) == 1


def test_the_trainers_copy_of_a_question_has_the_image_tokens_that_the_engine_makes_of_it(asked):
    client, engine = asked
    answer = asyncio.run(ask(client, 3))
    rendered = asyncio.run(client.render_chat_completion({"json": {"messages": question()}}))
    image = tokenizer.token_id(tokenizer.IMAGE)
    assert rendered["token_ids"] == list(layout.observation_ids(4))
    assert rendered["token_ids"].count(image) == 16 == answer["prompt_image_tokens"][0]
    ((ids, _),) = engine.calls[0]["requests"]
    assert ids.count(image) == 1
