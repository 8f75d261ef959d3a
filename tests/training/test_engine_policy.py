"""The engine as a policy: what it is asked, and what becomes of a conversation that has grown too long."""

import asyncio
import threading

import pytest

from training.environments import named
from training.errors import ConfigError
from training.evaluate import EvaluationSettings, play, summarize
from training.mazes import published
from training.skyrl.policy import EnginePolicy


class Engine:
    """SkyRL's inference interface: ten tokens a message, and one for each character of an answer."""

    model_name = "adapter"

    def __init__(self, answer: str):
        self.answer, self.lengths = answer, []

    async def render_chat_completion(self, payload):
        chat = payload["json"]["messages"]
        texts = [message["content"] for message in chat if isinstance(message["content"], str)]
        return {"token_ids": [0] * (10 * len(chat) + sum(map(len, texts))), "features": None}

    async def generate(self, batch, model=None):
        self.lengths += map(len, batch["prompt_token_ids"])
        return {"responses": [self.answer], "response_ids": [[1]], "response_logprobs": [[-0.5]]}


@pytest.fixture
def loop():
    loop = asyncio.new_event_loop()
    thread = threading.Thread(target=loop.run_forever)
    thread.start()
    yield loop
    loop.call_soon_threadsafe(loop.stop)
    thread.join()
    loop.close()


def test_a_model_that_answers_for_ever_loses_its_mazes_and_not_the_evaluation(loop):
    engine = Engine("Let me think about it once more. " * 10)
    policy = EnginePolicy(engine, "adapter", {}, loop, longest=1000)
    records = play(policy, published("easy")[:3], EvaluationSettings(named("maze"), max_turns=9))
    assert max(engine.lengths) <= 1000
    assert len(engine.lengths) == 3 * 3, "the fourth question does not fit"
    assert {record.turns for record in records} == {9}
    assert summarize(records).solve_rate == summarize(records).format_rate == 0


def test_a_first_question_that_does_not_fit_is_a_wrong_setting(loop):
    policy = EnginePolicy(Engine("x"), "adapter", {}, loop, longest=9)
    with pytest.raises(ConfigError, match="takes 10 tokens, 9 are left"):
        play(policy, published("easy")[:1], EvaluationSettings(named("maze"), max_turns=9))


def test_a_conversation_that_fits_is_asked(loop):
    engine = Engine("('stop', 'stop')")
    policy = EnginePolicy(engine, "adapter", {}, loop, longest=10)
    (record,) = play(policy, published("easy")[:1], EvaluationSettings(named("maze"), max_turns=9))
    assert (record.actions, engine.lengths) == (("('stop', 'stop')",), [10])
