"""What the gateway does for a client: answers, streams, names, rights and rates."""

import asyncio
import json

import numpy as np
import pytest

from serving.client import ChatPolicy
from serving.endpoint import Endpoint
from serving.gateway import keys
from tests.serving.gateway.conftest import CANARY, LIVE, OLD, user
from training.evaluate import Conversation

pytestmark = pytest.mark.anyio


def content(answer) -> str:
    return answer.json()["choices"][0]["message"]["content"]


def kind(answer) -> tuple[int, str]:
    """Status and code of an error in OpenAI's shape."""
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "param", "code"}
    assert error["message"]
    return answer.status_code, error["code"]


async def test_the_public_name_is_answered_by_the_live_adapter_and_the_answer_says_so(gateway, engine):
    answer = await gateway.chat("which way?")
    assert answer.status_code == 200
    assert content(answer) == f"maze:{LIVE} heard which way?"
    assert answer.json()["model"] == f"maze:{LIVE}"
    assert answer.headers["X-Skypod-Adapter"] == LIVE
    assert answer.headers["X-Skypod-Variant"] == "live"
    assert answer.headers["X-Request-Id"] == engine.headers[0]["X-Request-Id"]


async def test_a_stream_comes_piece_by_piece(gateway, engine):
    engine.more.clear()
    body = {"model": "maze", "messages": [user("hello")], "stream": True}
    headers = {"Authorization": f"Bearer {gateway.key}"}
    async with gateway.http.stream("POST", "/v1/chat/completions", json=body, headers=headers) as answer:
        assert answer.headers["Content-Type"].startswith("text/event-stream")
        assert answer.headers["X-Skypod-Adapter"] == LIVE
        lines = answer.aiter_lines()
        event = json.loads((await anext(lines)).removeprefix("data: "))
        assert event == {"model": f"maze:{LIVE}", "choices": [{"delta": {"content": f"maze:{LIVE}"}}]}
        engine.more.set()
        rest = [line async for line in lines if line]
    assert len(rest) == 3
    assert rest[-1] == "data: [DONE]"


async def test_a_policy_plays_through_it_as_through_the_engine_itself(gateway, engine):
    picture = np.zeros((16, 16, 3), np.uint8)
    asked = [Conversation(f"k/{i}", picture + i, text=f"maze {i}") for i in range(12)]

    def play(url: str, model: str, key: str | None) -> list[str]:
        Endpoint(url, key).wait_until_served(model, timeout_s=5)
        with ChatPolicy(url, model, key, temperature=1.0) as policy:
            return policy.act(asked)

    direct = await asyncio.to_thread(play, engine.url, f"maze:{LIVE}", None)
    bodies, engine.bodies = engine.bodies, []
    through = await asyncio.to_thread(play, gateway.url, "maze", gateway.key)
    assert through == direct == [f"maze:{LIVE} heard maze {i}" for i in range(12)]
    assert sorted(map(str, map(_sorted, engine.bodies))) == sorted(map(str, map(_sorted, bodies)))


def _sorted(body: dict) -> list:
    return sorted(body.items())


async def test_the_engine_gets_what_was_checked_and_nothing_else(gateway, engine):
    body = {
        "model": "maze",
        "messages": [
            {"role": "system", "content": "be brief"},
            {**user("hello"), "name": None},
            {"role": "assistant", "content": None, "tool_calls": [], "refusal": None},
            user([{"type": "text", "text": "\ud800 and on"}]),
        ],
        "max_completion_tokens": 9,
        "temperature": 0.5,
        "top_p": None,
        "user": "someone",
        "metadata": {"a": "b"},
    }
    assert (await gateway.post(body)).status_code == 200
    assert engine.bodies == [
        {
            "model": f"maze:{LIVE}",
            "messages": [
                {"role": "system", "content": "be brief"},
                user("hello"),
                {"role": "assistant", "content": ""},
                user([{"type": "text", "text": "\ud800 and on"}]),
            ],
            "max_tokens": 9,
            "temperature": 0.5,
        }
    ]


async def test_every_answer_is_bounded_also_when_nobody_asks_for_a_bound(start, engine):
    gateway = await start(tokens=100)
    await gateway.chat()
    await gateway.chat(n=4)
    assert [body["max_tokens"] for body in engine.bodies] == [100, 25]
    assert kind(await gateway.chat(max_tokens=101)) == (400, "invalid_request")
    assert kind(await gateway.chat(max_tokens=51, n=2)) == (400, "invalid_request")


async def test_names_beside_the_public_one_are_for_keys_that_may_probe(gateway):
    gateway.alias(canary=CANARY, previous=OLD)
    await gateway.control("/aliases")
    named = {
        "maze@live": LIVE,
        "maze@canary": CANARY,
        "maze@previous": OLD,
        "maze@base": "base",
        CANARY: CANARY,
        f"maze:{OLD}": OLD,
    }
    for model, adapter in named.items():
        assert kind(await gateway.chat(model=model)) == (403, "forbidden")
        answer = await gateway.chat(model=model, key=gateway.probe_key)
        assert (answer.headers["X-Skypod-Adapter"], answer.headers["X-Skypod-Variant"]) == (adapter, "named")
        assert answer.json()["model"] == ("maze" if adapter == "base" else f"maze:{adapter}")
    listed = {}
    for key in (gateway.key, gateway.probe_key):
        answer = await gateway.http.get("/v1/models", headers={"Authorization": f"Bearer {key}"})
        listed[key] = [entry["id"] for entry in answer.json()["data"]]
    assert listed[gateway.key] == ["maze"]
    assert set(listed[gateway.probe_key]) >= set(named) - {CANARY}


async def test_a_key_that_may_not_probe_does_not_learn_what_is_up(gateway):
    names = [
        *("maze@live", "maze@canary", "maze@previous", "maze@base"),
        *(LIVE, CANARY, f"maze:{CANARY}", "by-hand", "maze:by-hand"),
    ]

    async def answers() -> list[tuple[int, str]]:
        return [kind(await gateway.chat(model=name)) for name in names]

    before = await answers()
    gateway.alias(canary=CANARY, previous="by-hand")
    await gateway.control("/aliases")
    assert await answers() == before == [(403, "forbidden")] * 7 + [(404, "model_not_found")] * 2
    assert kind(await gateway.chat(model="by-hand", key=gateway.probe_key)) == (404, "upstream_refused")


async def test_an_alias_that_nobody_holds_is_told_to_those_who_may_probe(gateway):
    for alias in ("canary", "previous"):
        answer = await gateway.chat(model=f"maze@{alias}", key=gateway.probe_key)
        assert kind(answer) == (503, f"no_{alias}_adapter")


@pytest.mark.parametrize(
    "model",
    ["gpt-4", "maze@latest", "maze@", "", "maze:../../etc-aaaaaaaaaaaa", "maze:maze-AAAAAAAAAAAA", "maze:"],
)
async def test_a_model_that_does_not_exist_never_reaches_the_engine(gateway, engine, model):
    assert kind(await gateway.chat(model=model, key=gateway.probe_key)) == (404, "model_not_found")
    assert engine.bodies == []


async def test_an_adapter_that_the_engine_lacks_is_the_probes_mistake_and_the_public_names_trouble(
    gateway, engine
):
    stranger = "maze-dddddddddddd"
    answer = await gateway.chat(model=stranger, key=gateway.probe_key)
    assert kind(answer) == (404, "upstream_refused")
    assert "does not exist" in answer.json()["error"]["message"]
    engine.models.remove(f"maze:{LIVE}")
    answer = await gateway.chat()
    assert kind(answer) == (503, "adapter_missing")
    assert LIVE in answer.json()["error"]["message"]
    assert answer.headers["Retry-After"]


async def test_without_a_known_key_nothing_is_said(gateway, engine):
    for header in (
        None,
        "",
        "Bearer",
        "Bearer wrong",
        f"Basic {gateway.key}",
        f"Bearer {gateway.key[:-1]}",
        "Bearer ü",
    ):
        headers = {} if header is None else {"Authorization": header.encode()}
        answer = await gateway.http.post("/v1/chat/completions", content=b"{}", headers=headers)
        assert kind(answer) == (401, "unauthenticated")
        assert answer.headers["WWW-Authenticate"] == "Bearer"
        assert kind(await gateway.http.get("/v1/models", headers=headers)) == (401, "unauthenticated")
    assert kind(await gateway.chat(key=gateway.control_key)) == (403, "forbidden")
    assert engine.bodies == []


async def test_other_paths_and_methods_do_not_exist(gateway):
    headers = {"Authorization": f"Bearer {gateway.key}"}
    for method, path in [
        ("POST", "/v1/completions"),
        ("POST", "/v1/load_lora_adapter"),
        ("GET", "/metrics"),
        ("GET", "/v1/models/../../health"),
        ("POST", "//v1/chat/completions"),
        ("GET", "/docs"),
    ]:
        assert kind(await gateway.http.request(method, path, headers=headers)) == (404, "not_found")
    assert kind(await gateway.http.get("/v1/chat/completions", headers=headers)) == (405, "not_found")


async def test_a_key_beyond_its_rate_waits_and_the_others_do_not(gateway, engine):
    slow = keys.add(gateway.settings.keys, "slow", requests_per_minute=3)
    await gateway.until_known(slow)
    statuses = [(await gateway.chat(key=slow)).status_code for _ in range(3)]
    refused = await gateway.chat(key=slow)
    assert statuses.count(200) == 2  # The first of the three was the one that found it known.
    assert kind(refused) == (429, "rate_limited")
    assert 1 <= int(refused.headers["Retry-After"]) <= 20
    assert (await gateway.chat()).status_code == 200


async def test_a_key_has_so_many_requests_at_once(gateway, engine):
    narrow = keys.add(gateway.settings.keys, "narrow", concurrency=2)
    await gateway.until_known(narrow)
    engine.gate.clear()
    both = [asyncio.create_task(gateway.chat(key=narrow)) for _ in range(2)]
    await engine.until(lambda engine: len(engine.running) == 2)
    assert kind(await gateway.chat(key=narrow)) == (429, "too_many_at_once")
    engine.gate.set()
    assert [(await task).status_code for task in both] == [200, 200]
    assert (await gateway.chat(key=narrow)).status_code == 200


async def test_keys_are_taken_away_without_a_restart_and_a_broken_file_changes_nothing(gateway):
    gateway.settings.keys.write_text('{"keys": [')
    await gateway.until_metric("skypod_gateway_keys_trouble", 1)
    assert (await gateway.chat()).status_code == 200
    gateway.settings.keys.unlink()
    fresh = keys.add(gateway.settings.keys, "fresh")
    await gateway.until_known(fresh)
    assert kind(await gateway.chat()) == (401, "unauthenticated")


async def test_the_engine_sees_its_own_key_and_never_the_clients(start, engine, tmp_path):
    (tmp_path / "engine.key").write_text("sk-engine\n")
    gateway = await start(upstream={"key_file": tmp_path / "engine.key"})
    await gateway.chat(headers={"Cookie": "a=b", "X-Forwarded-For": "10.0.0.1"})
    assert engine.headers[0]["Authorization"] == "Bearer sk-engine"
    assert gateway.key not in str(engine.headers[0])
    assert not {"Cookie", "X-Forwarded-For"} & set(engine.headers[0])


async def test_health_needs_no_key_and_readiness_needs_the_engine(gateway, engine):
    assert (await gateway.http.get("/live")).status_code == 200
    assert (await gateway.http.get("/ready")).json() == {"status": "ready"}
    await engine.stop()
    answer = await gateway.http.get("/ready")
    assert answer.status_code == 503
    assert "does not answer" in answer.json()["reason"]
    assert (await gateway.http.get("/live")).status_code == 200
    await engine.start()
    assert (await gateway.http.get("/ready")).status_code == 200
