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
        client.expect(2)
        return await asyncio.gather(ask(client, 7), ask(client, 5))

    answers = asyncio.run(both())
    assert [answer["response_ids"] for answer in answers] == [[[7]], [[5]]]
    (call,) = engine.calls
    assert call["seeds"] == [5, 7]  # in the order of their names, whoever asked first
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


@pytest.mark.parametrize("slow", [5, 6, 7])
def test_a_batch_depends_on_no_conversations_speed(asked, slow):
    """Three conversations of two, two and one turns: the batches are the turns, whoever is late."""
    client, engine = asked

    async def converse(seed: int, turns: int) -> None:
        try:
            for _ in range(turns):
                if seed == slow:
                    for _ in range(50):
                        await asyncio.sleep(0)
                await ask(client, seed)
        finally:
            client.leave()

    async def all_of_them() -> None:
        client.expect(3)
        await asyncio.gather(converse(7, 2), converse(5, 2), converse(6, 1))

    asyncio.run(all_of_them())
    assert [call["seeds"] for call in engine.calls] == [[5, 6, 7], [5, 7]]


def test_a_conversation_that_fails_keeps_nobody_waiting(asked):
    client, _ = asked

    async def fail() -> None:
        client.leave()

    async def all_of_them() -> dict:
        client.expect(2)
        answer, _ = await asyncio.gather(ask(client, 7), fail())
        return answer

    assert asyncio.run(asyncio.wait_for(all_of_them(), 10))["response_ids"] == [[7]]
