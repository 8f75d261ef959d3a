"""What a rollout counts of the gateway's requests, for and against an adapter."""

import asyncio

import pytest

from serving.rollout.rules import Rules, Seen
from serving.rollout.traffic import GatewayTraffic
from tests.serving.gateway.conftest import CANARY, LIVE
from tests.serving.gateway.scripted_engine import ERROR_EVENTS
from tests.serving.gateway.test_gateway import kind

pytestmark = pytest.mark.anyio


async def seen(gateway) -> tuple[Seen, Seen]:
    """What live and canary did so far."""
    traffic = GatewayTraffic(gateway.control_url, gateway.control_key)
    rules = Rules(requests=1, period_s=0)
    return await asyncio.to_thread(traffic.watch, LIVE, CANARY, {}, rules, lambda: False)


@pytest.fixture
async def judged(gateway):
    """A gateway whose public name is answered by the canary alone."""
    gateway.alias(canary=CANARY, canary_share=1.0)
    await gateway.control("/aliases")
    return gateway


@pytest.mark.parametrize("status", [400, 404, 413, 422])
async def test_what_a_client_asks_wrongly_counts_for_no_adapter(judged, engine, status):
    await judged.chat()
    engine.fault = lambda body: status if body.get("temperature") == -5 else None
    answers = [await judged.chat(temperature=-5) for _ in range(5)]
    # Of a model that the engine lacks the public name's clients are not to blame.
    missing = (503, "adapter_missing")
    assert {kind(answer) for answer in answers} == {
        missing if status == 404 else (status, "upstream_refused")
    }
    _, canary = await seen(judged)
    assert (canary.requests, canary.errors) == ((6, 5) if status == 404 else (1, 0))


async def test_what_the_engine_fails_at_counts_against_the_adapter(judged, engine):
    engine.fault = lambda body: 500
    assert kind(await judged.chat()) == (502, "upstream_error")
    assert (await seen(judged))[1] == Seen(1, 1, None)


@pytest.mark.parametrize("fault", ["fail", "trickle"])
async def test_an_error_within_a_stream_counts_against_the_adapter_and_reaches_the_client(
    judged, engine, fault
):
    engine.fault = lambda body: fault
    answer = await judged.chat(stream=True)
    assert answer.status_code == 200
    assert answer.content.endswith(b"\n\n" + ERROR_EVENTS)
    assert await judged.metric("skypod_gateway_requests_total", adapter=CANARY, outcome="upstream_error") == 1
    assert (await seen(judged))[1] == Seen(1, 1, None)


async def test_words_like_an_error_are_an_answer(judged):
    answer = await judged.chat('\ndata: {"error"', stream=True)
    assert "error" in answer.text
    _, canary = await seen(judged)
    assert (canary.requests, canary.errors) == (1, 0)


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("fault", ["empty", "foreign"])
async def test_what_is_no_answer_counts_against_the_adapter(judged, engine, fault, stream):
    engine.fault = lambda body: fault
    assert kind(await judged.chat(stream=stream)) == (502, "upstream_broke")
    assert (await seen(judged))[1] == Seen(1, 1, None)


@pytest.mark.parametrize("fault", [None, 500])
async def test_a_probes_requests_count_neither_as_answers_nor_by_their_time(judged, engine, fault):
    engine.fault = lambda body: fault
    for model in ("maze@canary", CANARY, "maze@live"):
        await judged.chat(model=model, key=judged.probe_key)
    assert await seen(judged) == (Seen(0, 0, None), Seen(0, 0, None))
    engine.fault = lambda body: None
    await judged.chat()
    live, canary = await seen(judged)
    assert (live, canary.requests, canary.errors) == (Seen(0, 0, None), 1, 0)
    assert canary.p95_s is not None
