"""What clients and engines do wrong: every case has its answer, and the next request is served."""

import asyncio
import gzip
import json

import pytest

from tests.serving.gateway import pictures
from tests.serving.gateway.conftest import LIVE, user
from tests.serving.gateway.test_gateway import kind

pytestmark = [pytest.mark.anyio, pytest.mark.slow]


def asking(*urls: str) -> dict:
    parts = [{"type": "image_url", "image_url": {"url": url}} for url in urls]
    return {"model": "maze", "messages": [user([{"type": "text", "text": "which way?"}, *parts])]}


@pytest.mark.parametrize("name", sorted(pictures.GOOD))
async def test_usual_pictures_reach_the_engine_as_they_came(gateway, engine, name):
    url = pictures.data_url(pictures.GOOD[name]())
    for _ in range(2):
        assert (await gateway.post(asking(url, url))).status_code == 200
    sent = engine.bodies[-1]["messages"][0]["content"][1:]
    assert [part["image_url"]["url"] for part in sent] == [url, url]


@pytest.mark.parametrize("name", sorted(pictures.BAD))
async def test_bad_pictures_are_refused_before_the_engine(start, engine, name):
    gateway = await start(image_bytes=300_000, image_pixels=1_000_000)
    make, status, code = pictures.BAD[name]
    url = make()
    for _ in range(2):
        assert kind(await gateway.post(asking(url))) == (status, code)
    assert engine.bodies == []
    assert (await gateway.chat()).status_code == 200


async def test_pictures_are_counted_over_the_whole_conversation(start, engine):
    gateway = await start(images=3)
    url = pictures.data_url(pictures.GOOD["png"]())
    body = asking(url, url)
    body["messages"] += [{"role": "assistant", "content": "left"}, *asking(url)["messages"]]
    assert (await gateway.post(body)).status_code == 200
    body["messages"] += asking(url)["messages"]
    assert kind(await gateway.post(body)) == (400, "too_many_images")


NOT_FINITE = (b"NaN", b"Infinity", b"-Infinity", b"1e999", b"-1e999")


def sampling(field: bytes) -> bytes:
    """A body with a field that Python would not write like this."""
    return b'{"model": "maze", "messages": [{"role": "user", "content": "a"}], %s}' % field


@pytest.mark.parametrize(
    ("body", "says"),
    [
        (b"", "JSON"),
        (b"\xff\xfe\x00", "JSON"),
        (b"[1]", "object"),
        (b"[" * 100_000, "JSON"),
        *((sampling(b'"seed": ' + text), f"{text.decode()} is no finite number") for text in NOT_FINITE),
        (sampling(b'"logit_bias": {"5": 1e999}'), "1e999 is no finite number"),
        (sampling(b'"temperature": -0.%se4000' % (b"1" * 5000)), "is no finite number"),
        (sampling(b'"seed": ' + b"9" * 5000), "JSON"),
        ({"messages": [user("a")]}, "model"),
        ({"model": ["maze"], "messages": [user("a")]}, "model"),
        ({"model": "maze"}, "messages"),
        ({"model": "maze", "messages": []}, "messages"),
        ({"model": "maze", "messages": "hello"}, "messages"),
        ({"model": "maze", "messages": ["hello"]}, "roles"),
        ({"model": "maze", "messages": [{"role": "tool", "content": "a"}]}, "roles"),
        ({"model": "maze", "messages": [{"role": ["user"], "content": "a"}]}, "roles"),
        ({"model": "maze", "messages": [user(7)]}, "content"),
        ({"model": "maze", "messages": [user({"a": 1})]}, "content"),
        ({"model": "maze", "messages": [user(["a"])]}, "neither text nor a picture"),
        ({"model": "maze", "messages": [user([{"type": "text", "text": 7}])]}, "content"),
        ({"model": "maze", "messages": [user([{"type": "image_url", "image_url": "data:"}])]}, "neither"),
        ({"model": "maze", "messages": [user([{"type": "image_url", "image_url": {}}])]}, "no url"),
        (
            {
                "model": "maze",
                "messages": [user([{"type": "image_url", "image_url": {"url": "x"}, "uuid": "1"}])],
            },
            "neither",
        ),
        ({"model": "maze", "messages": [user([{"type": "image_embeds", "image_embeds": "AA"}])]}, "neither"),
        (
            {"model": "maze", "messages": [user([{"type": "video_url", "video_url": {"url": "x"}}])]},
            "neither",
        ),
        ({"model": "maze", "messages": [{**user("a"), "tool_calls": [{"id": 1}]}]}, "tool_calls"),
        ({"model": "maze", "messages": [user("a")], "tools": [{}]}, "tools"),
        ({"model": "maze", "messages": [user("a")], "chat_template": "{{ 7 * 7 }}"}, "chat_template"),
        ({"model": "maze", "messages": [user("a")], "mm_processor_kwargs": {}}, "mm_processor_kwargs"),
        ({"model": "maze", "messages": [user("a")], "guided_regex": "(a+)+"}, "guided_regex"),
        ({"model": "maze", "messages": [user("a")], "\u001b[31m" + "x" * 500: 1}, "\\x1b[31mx"),
        ({"model": "maze", "messages": [user("a")], "stream": "yes"}, "stream"),
        ({"model": "maze", "messages": [user("a")], "n": 0}, "n is not"),
        ({"model": "maze", "messages": [user("a")], "n": True}, "n is not"),
        ({"model": "maze", "messages": [user("a")], "n": 10**30}, "at most 1024"),
        ({"model": "maze", "messages": [user("a")], "max_tokens": -1}, "max_tokens"),
        ({"model": "maze", "messages": [user("a")], "max_tokens": 1.5}, "max_tokens"),
        ({"model": "maze", "messages": [user("a")], "max_tokens": 5, "max_completion_tokens": 6}, "differ"),
        ({"model": "maze", "messages": [user("a")] * 300}, "300 messages"),
    ],
)
async def test_bodies_that_cannot_be_taken_are_told_why(gateway, engine, body, says):
    answer = await gateway.post(body)
    assert kind(answer) == (400, "invalid_request")
    assert says in answer.json()["error"]["message"]
    assert len(answer.content) < 500
    assert engine.bodies == []


async def test_sizes_are_bounded(start, engine):
    gateway = await start(text_chars=1000, body_bytes=20_000)
    assert (await gateway.chat("x" * 1000)).status_code == 200
    assert kind(await gateway.chat("x" * 1001)) == (413, "text_too_long")
    assert kind(await gateway.post(b" " * 20_001)) == (413, "body_too_large")

    async def endless():
        while True:
            yield b" " * 10_000

    headers = {"Authorization": f"Bearer {gateway.key}"}
    answer = await gateway.http.post("/v1/chat/completions", content=_some(endless(), 5), headers=headers)
    assert kind(answer) == (413, "body_too_large")
    plain = {"model": "maze", "messages": [user("hello")]}
    packed = gzip.compress(b" " * 10**7)
    answer = await gateway.post(packed, headers={"Content-Encoding": "gzip"})
    assert kind(answer) == (415, "encoded_body")
    assert len(engine.bodies) == 1
    answer = await gateway.post(plain, headers={"Content-Encoding": "Identity"})
    assert answer.status_code == 200


async def _some(pieces, count: int):
    for _ in range(count):
        yield await anext(pieces)


async def test_a_large_body_is_checked_as_a_small_one(gateway, engine):
    url = pictures.data_url(pictures.noise(700, 700))
    assert len(url) > 2**20
    assert (await gateway.post(asking(url))).status_code == 200
    assert kind(await gateway.post(asking(url[:-200_000]))) == (400, "bad_image")


def head(gateway, length: int) -> bytes:
    lines = [
        "POST /v1/chat/completions HTTP/1.1",
        "Host: gateway",
        f"Authorization: Bearer {gateway.key}",
        f"Content-Length: {length}",
    ]
    return "\r\n".join(lines).encode() + b"\r\n\r\n"


async def test_a_client_that_sends_too_slowly_is_let_go(start):
    gateway = await start(body_s=0.1, idle_s=0.2)
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head(gateway, 1000) + b'{"model"')
    assert b" 408 " in await asyncio.wait_for(reader.readline(), 20)
    assert b"body_timeout" in await asyncio.wait_for(reader.read(), 20)
    writer.close()
    # One that does not even finish its headers hears nothing and is closed.
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head(gateway, 1000)[:50])
    assert await asyncio.wait_for(reader.read(), 20) == b""
    writer.close()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/models", "/live", "/nowhere"])
async def test_an_expectation_that_nobody_knows_is_answered(gateway, path):
    method = "POST" if path.endswith("completions") else "GET"
    answer = await gateway.http.request(method, path, headers={"Expect": "bogus"})
    assert answer.status_code == 417
    assert answer.headers["Content-Type"].startswith("text/plain")


@pytest.mark.parametrize("stream", [False, True])
async def test_a_client_that_vanishes_stops_the_engine_and_frees_its_place(start, engine, stream):
    gateway = await start(in_flight=1)
    body = json.dumps({"model": "maze", "messages": [user("hello")], "stream": stream}).encode()
    (engine.more if stream else engine.gate).clear()
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head(gateway, len(body)) + body)
    await engine.until(lambda engine: len(engine.running) == 1)
    if stream:
        await asyncio.wait_for(reader.readuntil(b"data: "), 20)
    waiting = asyncio.create_task(gateway.chat("next"))
    writer.transport.abort()
    await engine.until(lambda engine: engine.aborted == 1)
    engine.gate.set()
    assert (await waiting).status_code == 200
    assert await gateway.metric("skypod_gateway_requests_total", outcome="client_vanished") == 1
    assert await gateway.metric("skypod_gateway_in_flight", adapter=LIVE) == 0


async def test_a_client_that_vanishes_from_the_queue_never_reaches_the_engine(start, engine):
    gateway = await start(in_flight=1)
    engine.gate.clear()
    first = asyncio.create_task(gateway.chat("first"))
    await engine.until(lambda engine: len(engine.running) == 1)
    body = json.dumps({"model": "maze", "messages": [user("impatient")]}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(head(gateway, len(body)) + body)
    await gateway.until_metric("skypod_gateway_queued", 1)
    writer.transport.abort()
    await gateway.until_metric("skypod_gateway_queued", 0)
    engine.gate.set()
    assert (await first).status_code == 200
    assert (await gateway.chat("last")).status_code == 200
    assert [body["messages"][0]["content"] for body in engine.bodies] == ["first", "last"]


async def test_a_client_that_does_not_read_its_stream_is_let_go(start, engine):
    gateway = await start(stall_s=0.2)
    engine.fault = lambda body: "flood"
    body = json.dumps({"model": "maze", "messages": [user("hello")], "stream": True}).encode()
    _, writer = await asyncio.open_connection("127.0.0.1", gateway.port, limit=2**10)
    writer.transport.pause_reading()
    writer.write(head(gateway, len(body)) + body)
    await engine.until(lambda engine: engine.aborted == 1)
    assert await gateway.metric("skypod_gateway_requests_total", outcome="client_stalled") == 1
    writer.transport.abort()


async def test_what_is_no_http_is_refused_in_plain_text(gateway):
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(b"GET /live HTTP/1.1\r\nno header\r\n\r\n")
    answer = await asyncio.wait_for(reader.read(), 20)
    writer.close()
    assert b" 400 " in answer.splitlines()[0]
    assert b"\r\nContent-Type: text/plain" in answer


async def test_noise_on_the_port_does_no_harm(gateway, capsys):
    for noise in (
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03",
        b"GET / HTTP/1.1\r\nAuthorization Bearer secret-in-a-broken-line\r\n\r\n",
        b"GET /" + b"a" * 20_000 + b" HTTP/1.1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\nContent-Length: 3\r\n\r\nabc",
        b"\r\n" * 1000,
    ):
        reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
        writer.write(noise)
        writer.write_eof()
        await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert (await gateway.chat()).status_code == 200
    said = capsys.readouterr()
    assert "secret-in-a-broken-line" not in said.out + said.err


@pytest.mark.parametrize(
    ("fault", "expected", "asked"),
    [
        (400, (400, "upstream_refused"), 1),
        (422, (422, "upstream_refused"), 1),
        (401, (502, "upstream_key"), 1),
        (302, (502, "upstream_error"), 1),
        (500, (502, "upstream_error"), 1),
        (503, (503, "upstream_busy"), 1),
        ("hang up", (502, "upstream_broke"), 2),
        ("break", (502, "upstream_broke"), 1),
        ("silence", (504, "upstream_timeout"), 1),
        ("flood", (502, "answer_too_large"), 1),
    ],
)
async def test_an_engine_that_fails_is_named_as_what_it_is(start, engine, fault, expected, asked):
    gateway = await start(upstream={"first_byte_s": 0.5}, answer_bytes=100_000)
    engine.fault = lambda body: fault
    answer = await gateway.chat()
    assert kind(answer) == expected
    assert len(engine.bodies) == asked
    engine.fault = lambda body: None
    assert (await gateway.chat()).status_code == 200
    assert await gateway.metric("skypod_gateway_requests_total", adapter=LIVE, outcome=expected[1]) == 1


async def test_a_connection_that_the_engine_closed_meanwhile_costs_nobody_an_answer(gateway, engine):
    assert (await gateway.chat()).status_code == 200
    hung_up = iter([True])
    engine.fault = lambda body: "hang up" if next(hung_up, False) else None
    assert (await gateway.chat("again")).status_code == 200
    assert len(engine.bodies) == 3


async def test_a_stream_that_breaks_says_so_in_the_stream(start, engine):
    gateway = await start(upstream={"first_byte_s": 0.5, "total_s": 0.5})
    for fault, expected in (("break", "upstream_broke"), (None, "upstream_timeout")):
        engine.fault = lambda body, fault=fault: fault
        if fault is None:
            engine.more.clear()
        answer = await gateway.chat(stream=True)
        assert answer.status_code == 200
        last = answer.text.strip().rpartition("data: ")[2]
        assert json.loads(last)["error"]["code"] == expected
        assert await gateway.metric("skypod_gateway_requests_total", outcome=expected) == 1


async def test_a_dead_engine_is_told_and_its_return_needs_no_restart(gateway, engine):
    engine.gate.clear()
    lost = [asyncio.create_task(gateway.chat(str(i))) for i in range(4)]
    await engine.until(lambda engine: len(engine.running) == 4)
    await engine.stop()
    assert {kind(await task)[0] for task in lost} <= {502, 503}
    down = await gateway.chat()
    assert kind(down) == (503, "upstream_unreachable")
    assert down.headers["Retry-After"]
    engine.gate.set()
    await engine.start()
    assert (await gateway.chat()).status_code == 200


async def test_a_crowd_of_conversations_is_never_mixed_up(start, engine):
    gateway = await start(in_flight=8)
    gateway.alias(canary="maze-bbbbbbbbbbbb", canary_share=0.5)
    await gateway.control("/aliases")
    answers = await asyncio.gather(*(gateway.chat(f"text {i}", stream=i % 3 == 0) for i in range(120)))
    for i, answer in enumerate(answers):
        adapter = answer.headers["X-Skypod-Adapter"]
        if i % 3:
            text = answer.json()["choices"][0]["message"]["content"]
        else:
            events = [line[6:] for line in answer.text.splitlines() if line.startswith("data: {")]
            text = " ".join(json.loads(event)["choices"][0]["delta"]["content"] for event in events)
        assert text == f"maze:{adapter} heard text {i}"
