"""Places with the engine: their number, the queue, and turns of base and adapters where mixing is unsafe."""

import asyncio
import random

import pytest

from serving.gateway.refusal import Refusal
from serving.gateway.slots import Slots
from tests.serving.gateway.conftest import CANARY, LIVE, until
from tests.serving.gateway.test_gateway import kind

pytestmark = pytest.mark.anyio


class Crowd:
    """Requests that hold places until told to leave."""

    def __init__(self, slots: Slots):
        self.slots = slots
        self.entered: list[str] = []
        self._leave: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task] = {}

    async def come(self, name: str) -> None:
        """A request comes; names in capitals are for the base."""
        self._leave[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._stay(name))
        await settle()

    async def leave(self, *names: str) -> None:
        for name in names:
            self._leave[name].set()
        await settle()

    async def _stay(self, name: str) -> None:
        async with self.slots.held(base=name.isupper()):
            self.entered.append(name)
            await self._leave[name].wait()


async def settle() -> None:
    """Let every task go on as far as it can: none of these tests waits for anything but the others."""
    for _ in range(10):
        await asyncio.sleep(0)


async def test_places_are_given_in_the_order_of_coming():
    crowd = Crowd(Slots(2, 10, 30, mixes=True))
    for name in ("a", "B", "c", "D", "e"):
        await crowd.come(name)
    assert crowd.entered == ["a", "B"]
    await crowd.leave("a")
    assert crowd.entered == ["a", "B", "c"]
    await crowd.leave("B", "c")
    assert crowd.entered == ["a", "B", "c", "D", "e"]
    await crowd.leave("D", "e")
    assert crowd.slots.waiting == 0


async def test_base_and_adapters_take_turns_and_nobody_overtakes_those_who_wait():
    crowd = Crowd(Slots(4, 10, 30, mixes=False))
    for name in ("a", "b", "C", "d", "E", "f"):
        await crowd.come(name)
    assert crowd.entered == ["a", "b"]
    await crowd.leave("a")
    assert crowd.entered == ["a", "b"]
    await crowd.leave("b")
    assert crowd.entered == ["a", "b", "C", "E"]
    await crowd.come("G")
    await crowd.leave("C", "E")
    assert crowd.entered == ["a", "b", "C", "E", "d", "f"]
    await crowd.leave("d", "f")
    assert crowd.entered[-1] == "G"


async def test_a_full_queue_and_a_long_wait_are_refused_and_leave_no_trace():
    crowd = Crowd(Slots(1, 1, 0.05, mixes=True))
    await crowd.come("a")
    await crowd.come("b")
    await crowd.come("c")
    with pytest.raises(Refusal) as full:
        await crowd.tasks["c"]
    assert (full.value.status, full.value.kind) == (503, "queue_full")
    with pytest.raises(Refusal) as late:
        await crowd.tasks["b"]
    assert (late.value.status, late.value.kind) == (503, "queue_timeout")
    assert crowd.slots.waiting == 0
    await crowd.leave("a")
    await crowd.come("d")
    assert crowd.entered == ["a", "d"]


async def test_who_gives_up_frees_the_way_for_the_others():
    crowd = Crowd(Slots(4, 10, 30, mixes=False))
    for name in ("a", "B", "c"):
        await crowd.come(name)
    crowd.tasks["B"].cancel()
    await settle()
    assert crowd.entered == ["a", "c"]


async def test_a_place_that_comes_with_the_cancellation_is_not_lost():
    crowd = Crowd(Slots(1, 10, 30, mixes=True))
    for name in ("a", "b", "c"):
        await crowd.come(name)
    crowd._leave["a"].set()
    # One step for `a` to leave and hand its place to `b`, which is cancelled before it takes notice.
    while not crowd.tasks["a"].done():
        await asyncio.sleep(0)
    crowd.tasks["b"].cancel()
    await settle()
    assert crowd.entered[-1] == "c"


@pytest.mark.parametrize("mixes", [False, True])
async def test_who_leaves_passes_over_those_that_have_just_given_up(mixes):
    crowd = Crowd(Slots(1, 10, 30, mixes))
    for name in ("a", "B", "c", "D", "e"):
        await crowd.come(name)
    crowd._leave["a"].set()
    # `a` runs before `B` and `D` take notice of their cancellation.
    crowd.tasks["B"].cancel()
    crowd.tasks["D"].cancel()
    await settle()
    assert crowd.tasks["a"].exception() is None
    assert crowd.entered == ["a", "c"]
    await crowd.leave("c", "e")
    assert crowd.entered == ["a", "c", "e"]
    assert (crowd.slots.waiting, crowd.slots._running) == (0, 0)


@pytest.mark.parametrize("seed", range(5))
async def test_under_any_crowd_kinds_never_meet_and_all_get_their_turn(seed):
    draw = random.Random(seed)
    slots = Slots(4, 1000, 30, mixes=False)
    inside: list[bool] = []
    done = 0

    async def visit(base: bool) -> None:
        nonlocal done
        for _ in range(draw.randrange(20)):
            await asyncio.sleep(0)
        async with slots.held(base):
            inside.append(base)
            try:
                assert len(set(inside)) == 1
                assert len(inside) <= 4
                for _ in range(draw.randrange(6)):
                    await asyncio.sleep(0)
            finally:
                inside.remove(base)
        done += 1

    tasks = [asyncio.create_task(visit(draw.random() < 0.4)) for _ in range(200)]
    cancelled = draw.sample(tasks, 30)
    for task in cancelled:
        for _ in range(draw.randrange(4)):
            await asyncio.sleep(0)
        task.cancel()
    results = await asyncio.gather(*tasks, return_exceptions=True)
    failed = [one for one in results if one is not None and not isinstance(one, asyncio.CancelledError)]
    assert failed == []
    assert done >= 170
    assert (slots.waiting, slots._running) == (0, 0)


@pytest.mark.parametrize("safe", [False, True])
async def test_an_engine_that_must_not_mix_never_sees_both_kinds(start, engine, safe):
    gateway = await start(upstream={"mixes_safely": safe})
    asked = [
        gateway.chat(str(i), model=model, key=gateway.probe_key)
        for i, model in enumerate(["maze", "maze@base", CANARY, "maze@base"] * 10)
    ]
    engine.gate.clear()
    tasks = [asyncio.create_task(one) for one in asked]

    async def all_accepted() -> bool:
        return sum((await gateway.control("/aliases")).json()["in_flight"].values()) == 40

    await until(all_accepted)
    if safe:
        await engine.until(lambda engine: len(engine.running) == 40)
    engine.gate.set()
    answers = await asyncio.gather(*tasks)
    assert [answer.status_code for answer in answers] == [200] * 40
    assert engine.mixed is safe
    for i, answer in enumerate(answers):
        model = ["maze:" + LIVE, "maze", "maze:" + CANARY, "maze"][i % 4]
        assert answer.json()["choices"][0]["message"]["content"] == f"{model} heard {i}"


async def test_the_engine_never_has_more_than_its_places(start, engine):
    gateway = await start(in_flight=3, queue=4)
    engine.gate.clear()
    tasks = [asyncio.create_task(gateway.chat(str(i))) for i in range(7)]
    await engine.until(lambda engine: len(engine.running) == 3)
    await gateway.until_metric("skypod_gateway_queued", 4)
    assert await gateway.metric("skypod_gateway_in_flight", adapter=LIVE) == 7
    assert kind(await gateway.chat("too many")) == (503, "queue_full")
    engine.gate.set()
    assert [(await task).status_code for task in tasks] == [200] * 7
    assert engine.most_running == 3
    assert await gateway.metric("skypod_gateway_in_flight", adapter=LIVE) == 0
