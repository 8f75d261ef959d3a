"""Aliases: shares, staying with one adapter, changes under way, and draining."""

import asyncio
import threading

import pytest

from serving import aliases
from serving.aliases import Aliases
from serving.gateway import following, keys
from serving.gateway.following import Followed
from serving.gateway.keys import Key
from serving.gateway.routing import Router
from tests.serving.gateway.conftest import CANARY, LIVE, OLD, user
from tests.serving.gateway.test_gateway import kind

pytestmark = pytest.mark.anyio


async def test_a_canary_gets_its_share_and_keeps_its_conversations_when_the_share_grows(tmp_path):
    path, key = tmp_path / "aliases.json", Key(name="player", sha256="0" * 64)
    aliases.write(path, Aliases(live=LIVE))
    router = Router("maze", "maze", followed := Followed(path, aliases.read))
    names = [f"conversation-{i}" for i in range(2000)]
    taken: set[str] = set()
    for share in (0.0, 0.05, 0.3, 0.8, 1.0):
        aliases.change(path, aliases.read(path), canary=CANARY, canary_share=share)
        await followed.refresh()
        canary = {name for name in names if router.route("maze", key, lambda n=name: n).adapter == CANARY}
        assert len(canary) / len(names) == pytest.approx(share, abs=0.04)
        assert taken <= canary
        taken = canary


async def test_a_named_conversation_stays_with_its_adapter_whatever_it_asks(gateway):
    gateway.alias(canary=CANARY, canary_share=0.5)
    await gateway.control("/aliases")
    seen = set()
    for i in range(20):
        headers = {"X-Conversation-Id": f"conversation-{i}"}
        answers = [await gateway.chat(f"question {turn}", headers=headers) for turn in range(3)]
        assert len({answer.headers["X-Skypod-Adapter"] for answer in answers}) == 1
        seen |= {(a.headers["X-Skypod-Adapter"], a.headers["X-Skypod-Variant"]) for a in answers}
    assert seen == {(LIVE, "live"), (CANARY, "canary")}


async def test_without_a_name_a_conversation_is_known_by_its_first_question(gateway, engine):
    gateway.alias(canary=CANARY, canary_share=0.5)
    await gateway.control("/aliases")
    seen = set()
    for i in range(24):
        first = [user(f"question {i}")]
        turns = [*first, {"role": "assistant", "content": "left"}, user(f"and then, {i}?")]
        adapters = set()
        for messages in (first, turns, [{"role": "system", "content": "be brief"}, *turns]):
            answer = await gateway.post({"model": "maze", "messages": messages})
            adapters.add(answer.headers["X-Skypod-Adapter"])
        assert len(adapters) == 1
        seen |= adapters
    assert seen == {LIVE, CANARY}


async def test_a_change_takes_effect_at_once_and_what_was_accepted_ends_where_it_began(gateway, engine):
    engine.gate.clear()
    before = [asyncio.create_task(gateway.chat(f"early {i}")) for i in range(4)]
    await engine.until(lambda engine: len(engine.running) == 4)
    gateway.alias(live=CANARY, previous=LIVE)
    state = (await gateway.control("/aliases")).json()
    assert (state["version"], state["live"], state["previous"]) == (2, CANARY, LIVE)
    assert state["in_flight"] == {LIVE: 4}
    after = asyncio.create_task(gateway.chat("late"))
    await engine.until(lambda engine: len(engine.running) == 5)

    still = (await gateway.control(f"/adapters/{LIVE}")).json()
    assert still == {
        "adapter": LIVE,
        "aliases_version": 2,
        "routed": False,
        "in_flight": 4,
        "drained": False,
    }
    waiting = asyncio.create_task(gateway.control(f"/adapters/{LIVE}?wait_s=20"))
    engine.gate.set()
    assert (await waiting).json()["drained"] is True
    assert {a.headers["X-Skypod-Adapter"] for a in await asyncio.gather(*before)} == {LIVE}
    assert (await after).headers["X-Skypod-Adapter"] == CANARY
    assert (await gateway.control(f"/adapters/{CANARY}?wait_s=20")).json()["drained"] is False


async def test_it_follows_the_file_without_being_asked(gateway):
    gateway.alias(live=OLD)
    await gateway.until_metric("skypod_gateway_aliases_version", 2)
    assert (await gateway.chat()).headers["X-Skypod-Adapter"] == OLD


@pytest.mark.parametrize("content", ["", "{", "[]", '{"version": 7}', "\0"])
async def test_a_file_that_cannot_be_used_changes_nothing_but_is_told(gateway, content):
    gateway.settings.aliases.write_text(content)
    state = (await gateway.control("/aliases")).json()
    assert (state["version"], state["live"]) == (1, LIVE)
    assert "aliases.json" in state["trouble"]
    assert (await gateway.chat()).headers["X-Skypod-Adapter"] == LIVE
    assert await gateway.metric("skypod_gateway_aliases_trouble") == 1


async def test_a_file_whose_reading_hangs_is_told_and_holds_up_nothing_else(start, monkeypatch):
    read, goes_on = aliases.read, threading.Event()
    readers: list[threading.Thread] = []

    def hang(path):
        found = read(path)
        if threading.current_thread() is not threading.main_thread():
            readers.append(threading.current_thread())
            goes_on.wait()
        return found

    monkeypatch.setattr(aliases, "read", hang)
    monkeypatch.setattr(following, "_PATIENCE_S", 0.1)
    gateway = await start()
    try:
        for _ in range(2):
            state = (await gateway.control("/aliases")).json()
            assert (state["live"], "could not be read within" in state["trouble"]) == (LIVE, True)
        assert await gateway.metric("skypod_gateway_aliases_trouble") == 1
        await gateway.until_known(keys.add(gateway.settings.keys, "fresh"))
        assert len(readers) == 1
    finally:
        goes_on.set()
    gateway.alias(live=OLD)
    await gateway.until_metric("skypod_gateway_aliases_version", 2)
    assert await gateway.metric("skypod_gateway_aliases_trouble") == 0


async def test_an_older_state_is_not_followed(gateway):
    gateway.alias(live=CANARY)
    await gateway.control("/aliases")
    aliases.write(gateway.settings.aliases, Aliases(version=1, live=LIVE))
    assert "older" in (await gateway.control("/aliases")).json()["trouble"]
    gateway.settings.aliases.unlink()
    assert "older" in (await gateway.control("/aliases")).json()["trouble"]
    assert (await gateway.chat()).headers["X-Skypod-Adapter"] == CANARY


async def test_before_the_first_promotion_only_probes_are_answered(gateway):
    gateway.alias(live=None, canary=CANARY)
    await gateway.control("/aliases")
    assert kind(await gateway.chat()) == (503, "no_live_adapter")
    assert kind(await gateway.chat(model="maze@live", key=gateway.probe_key)) == (503, "no_live_adapter")
    assert (await gateway.chat(model="maze@canary", key=gateway.probe_key)).status_code == 200
    assert (await gateway.chat(model=OLD, key=gateway.probe_key)).status_code == 200


async def test_the_control_port_asks_for_a_key_that_may_control(gateway):
    for key, expected in ((gateway.key, 403), (gateway.probe_key, 403), ("none", 401)):
        gateway.control_key = key
        for path in ("/metrics", "/aliases", f"/adapters/{LIVE}"):
            assert kind(await gateway.control(path))[0] == expected


@pytest.mark.parametrize("wait_s", ["x", "-1", "nan", "inf", "301"])
async def test_a_wait_is_bounded(gateway, wait_s):
    assert kind(await gateway.control(f"/adapters/{LIVE}?wait_s={wait_s}")) == (400, "invalid_request")
