"""The gateway before a real vLLM server whose CPU build answers base requests wrongly in a mixed batch."""

import asyncio
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from serving import aliases, probe
from serving.adapter import Adapter
from serving.aliases import Aliases
from serving.client import ChatPolicy, Completion
from tests.serving.gateway import pictures
from tests.serving.gateway.conftest import Running, until, user
from tests.serving.gateway.vllm_server import served
from tests.serving.test_vllm import adapter, canaries, folder, other  # noqa: F401 (fixtures)
from training.evaluate import Conversation

pytestmark = [pytest.mark.anyio, pytest.mark.vllm]


@pytest.fixture(scope="module")
def engine_url(folder: Path, adapter: Adapter, other: Adapter) -> Iterator[str]:  # noqa: F811
    with served(folder, [adapter, other], stock=True) as server:
        yield server.url


@pytest.fixture
async def real(engine_url, adapter, other, tmp_path):  # noqa: F811
    """A gateway before vLLM, with one adapter live and the other as canary without a share."""
    upstream = {"url": engine_url, "model_id": "maze", "mixes_safely": False}
    running = Running(tmp_path, {"upstream": upstream})
    aliases.write(running.settings.aliases, Aliases(version=1, live=adapter.name, canary=other.name))
    await running.start()
    yield running
    await running.end()


def ask(url: str, model: str, key: str | None, asked: list[Conversation]) -> list[Completion]:
    with ChatPolicy(url, model, key) as policy:
        return policy.complete(asked, top=5)


def differ(some: list[Completion], others: list[Completion]) -> float:
    """Largest difference in nats between what should be the same answers; infinite for other tokens."""
    if [one.token_ids for one in some] != [one.token_ids for one in others]:
        return float("inf")
    pairs = [
        (a, b) for x, y in zip(some, others, strict=True) for a, b in zip(x.logprobs, y.logprobs, strict=True)
    ]
    return max(abs(a - b) for a, b in pairs)


async def test_the_probe_passes_through_the_gateway(real, folder, canaries):  # noqa: F811
    references = probe.read_references(folder / "references.json")

    def run() -> probe.Probe:
        with (
            ChatPolicy(real.url, "maze@base", real.probe_key) as base,
            ChatPolicy(real.url, "maze@live", real.probe_key) as live,
        ):
            return probe.run(base, live, canaries, references)

    (await asyncio.to_thread(run)).require()


async def test_base_and_adapters_asked_at_once_answer_as_if_alone(real, engine_url, adapter, other, canaries):  # noqa: F811
    names = {"maze@base": "maze", "maze@live": f"maze:{adapter.name}", "maze@canary": f"maze:{other.name}"}
    asked = canaries * 4
    alone = {
        public: await asyncio.to_thread(ask, engine_url, name, None, asked) for public, name in names.items()
    }

    async def together(url: str, models: dict[str, str], key: str | None) -> dict[str, float]:
        answers = await asyncio.gather(
            *(asyncio.to_thread(ask, url, model, key, asked) for model in models.values())
        )
        return {name: differ(alone[name], one) for name, one in zip(models, answers, strict=True)}

    through = await together(real.url, {name: name for name in names}, real.probe_key)
    assert max(through.values()) < probe.FP32_TOLERANCE
    # The fault is there: else the gateway's turns would have proved nothing.
    direct = await together(engine_url, names, None)
    assert direct["maze@base"] > 0.01


@pytest.mark.parametrize("name", sorted(pictures.GOOD))
async def test_vllm_takes_every_picture_that_passes(real, name):
    url = pictures.data_url(pictures.GOOD[name]())
    parts = [{"type": "image_url", "image_url": {"url": url}}]
    answer = await real.post({"model": "maze", "messages": [user(parts)], "max_tokens": 2})
    assert answer.status_code == 200, answer.text


async def test_streams_and_refusals_of_vllm_come_through(real, adapter):  # noqa: F811
    body = {"model": "maze", "messages": [user("which way?")], "max_tokens": 3, "stream": True}
    answer = await real.post(body)
    events = [line.removeprefix("data: ") for line in answer.text.splitlines() if line]
    assert events[-1] == "[DONE]"
    assert {json.loads(event)["model"] for event in events[:-1]} == {f"maze:{adapter.name}"}
    too_long = await real.chat("left " * 5000)
    assert too_long.status_code == 400
    assert "maximum context length" in too_long.json()["error"]["message"]


async def test_a_client_that_vanishes_makes_vllm_stop(real, engine_url):
    async def sample(name: str) -> float:
        text = (await real.http.get(f"{engine_url}/metrics")).text
        values = [line.rsplit(" ", 1)[1] for line in text.splitlines() if line.startswith(f"vllm:{name}")]
        return sum(map(float, values))

    async def running() -> bool:
        return await sample("num_requests_running") > 0

    async def idle() -> bool:
        return not await running()

    before = await sample("generation_tokens_total")
    body = {"model": "maze", "messages": [user("go")], "max_tokens": 900, "ignore_eos": True}
    request = asyncio.create_task(real.post(body))
    await until(running)
    request.cancel()
    await until(idle)
    assert await sample("generation_tokens_total") - before < 900
    assert await real.metric("skypod_gateway_requests_total", outcome="client_vanished") == 1
