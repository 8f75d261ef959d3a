"""The process: its settings, its end, and what it writes down."""

import asyncio
import json
import os
import re
import signal
import ssl
import sys
from pathlib import Path

import httpx
import pytest

from rehearsal import tls
from serving import aliases
from serving.aliases import Aliases
from serving.gateway import keys, settings
from tests.serving.gateway import pictures
from tests.serving.gateway.conftest import CANARY, LIVE, until, user
from tests.serving.gateway.test_gateway import kind
from training.errors import ConfigError, SubstrateError

pytestmark = [pytest.mark.anyio, pytest.mark.slow]
ROOT = Path(__file__).parents[3]
CONFIG = """
public_name = "maze"
keys = "keys.json"
aliases = "aliases.json"
port = 0
control_port = 0

[upstream]
url = "{url}"
model_id = "maze"

[drain]
deadline_s = {deadline_s}
"""

HANGING = """
import threading
from serving import aliases
from serving.gateway.__main__ import main
from serving.gateway.records import write

read = aliases.read

def hang(path):
    if threading.current_thread() is not threading.main_thread():
        write("hangs")
        threading.Event().wait()
    return read(path)

aliases.read = hang
main()
"""


class Process:
    """python -m serving.gateway, as a deployment runs it."""

    def __init__(self, folder: Path, url: str, deadline_s: float):
        self.config = folder / "gateway.toml"
        self.config.write_text(CONFIG.format(url=url, deadline_s=deadline_s))
        self.command = (sys.executable, "-m", "serving.gateway", "--config", str(self.config))
        self.key = keys.add(folder / "keys.json", "player")
        self.events: list[dict] = []
        aliases.write(folder / "aliases.json", Aliases(version=1, live=LIVE))

    async def start(self) -> None:
        self.process = await asyncio.create_subprocess_exec(
            *self.command,
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
        )
        self.port = (await self.event("listening"))["port"]

    async def event(self, name: str) -> dict:
        while line := await asyncio.wait_for(self.process.stdout.readline(), 60):
            self.events.append(json.loads(line))
            if self.events[-1]["event"] == name:
                return self.events[-1]
        raise AssertionError((await self.process.stderr.read()).decode())

    async def chat(self) -> httpx.Response:
        headers = {"Authorization": f"Bearer {self.key}"}
        body = {"model": "maze", "messages": [user("hello")]}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            return await http.post(
                f"http://127.0.0.1:{self.port}/v1/chat/completions", json=body, headers=headers
            )

    async def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        assert (await self.event("draining"))["under_way"] == 3


@pytest.fixture
async def run(engine, tmp_path):
    """Starts a process with three accepted requests, of which none is answered yet."""
    started = []

    async def run(deadline_s: float) -> tuple[Process, list[asyncio.Task]]:
        process = Process(tmp_path, engine.url, deadline_s)
        await process.start()
        started.append(process.process)
        engine.gate.clear()
        tasks = [asyncio.create_task(process.chat()) for _ in range(3)]
        await engine.until(lambda engine: len(engine.running) == 3)
        return process, tasks

    yield run
    for process in started:
        if process.returncode is None:
            process.kill()
        await process.wait()


async def test_sigterm_ends_it_after_the_last_accepted_answer(run, engine):
    process, tasks = await run(30)
    await process.terminate()

    async def refused() -> bool:
        try:
            await process.chat()
        except httpx.ConnectError:
            return True
        return False

    await until(refused)
    assert process.process.returncode is None
    engine.gate.set()
    assert [(await task).status_code for task in tasks] == [200] * 3
    assert (await process.event("drained"))["cut"] == 0
    assert await asyncio.wait_for(process.process.wait(), 30) == 0
    assert await process.process.stderr.read() == b""


async def test_a_drain_has_a_deadline_and_its_exit_status_tells(run, engine):
    process, tasks = await run(0.2)
    await process.terminate()
    for task in tasks:
        with pytest.raises(httpx.TransportError):
            await task
    assert (await process.event("drained"))["cut"] == 3
    ends = [event["outcome"] for event in process.events if event["event"] == "request"]
    assert ends == ["cut_by_drain"] * 3
    assert await asyncio.wait_for(process.process.wait(), 30) == 1


async def test_answers_and_the_exit_status_outlive_whoever_reads_the_log(engine, tmp_path):
    process = Process(tmp_path, engine.url, deadline_s=30)
    reads, writes = os.pipe()
    buffered = {name: value for name, value in os.environ.items() if name != "PYTHONUNBUFFERED"}
    running = await asyncio.create_subprocess_exec(*process.command, cwd=ROOT, stdout=writes, env=buffered)
    os.close(writes)
    try:
        with open(reads) as log:
            process.port = json.loads(await asyncio.to_thread(log.readline))["port"]
        answers = [await process.chat() for _ in range(3)]
        assert [answer.status_code for answer in answers] == [200] * 3
        # It still follows its files, though it cannot say so.
        process.key = keys.add(tmp_path / "keys.json", "late")

        async def known() -> bool:
            return (await process.chat()).status_code == 200

        await until(known)
        running.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(running.wait(), 30) == 0
    finally:
        if running.returncode is None:
            running.kill()
            await running.wait()


async def test_a_reading_that_hangs_does_not_keep_it_from_its_end(engine, tmp_path):
    process = Process(tmp_path, engine.url, deadline_s=30)
    process.command = (sys.executable, "-c", HANGING, "--config", str(process.config))
    await process.start()
    try:
        await process.event("hangs")
        process.process.send_signal(signal.SIGTERM)
        assert await asyncio.wait_for(process.process.wait(), 30) == 0
    finally:
        if process.process.returncode is None:
            process.process.kill()
            await process.process.wait()


async def test_while_it_drains_it_is_not_ready_and_open_connections_close_after_their_answer(start, engine):
    gateway = await start(drain={"notice_s": 0.5})
    assert (await gateway.chat()).headers.get("Connection") != "close"
    gateway.stop.set()

    async def draining() -> bool:
        return (await gateway.http.get("/ready")).status_code == 503

    await until(draining)
    answer = await gateway.chat()
    assert (answer.status_code, answer.headers["Connection"]) == (200, "close")
    assert await gateway.task is True


async def test_requests_on_an_open_connection_are_refused_once_nothing_is_accepted(start, engine):
    gateway = await start()
    engine.gate.clear()
    body = json.dumps({"model": "maze", "messages": [user("hello")]}).encode()
    request = (
        f"POST /v1/chat/completions HTTP/1.1\r\nHost: gateway\r\nAuthorization: Bearer {gateway.key}\r\n"
        f"Content-Length: {len(body)}\r\n\r\n"
    ).encode() + body
    reader, writer = await asyncio.open_connection("127.0.0.1", gateway.port)
    writer.write(request.replace(b"/v1/chat/completions", b"/live").replace(b"POST", b"GET"))
    await asyncio.wait_for(reader.readuntil(b'"live"}'), 20)
    accepted = asyncio.create_task(gateway.chat())
    await engine.until(lambda engine: len(engine.running) == 1)
    gateway.stop.set()

    async def closed() -> bool:
        try:
            _, other = await asyncio.open_connection("127.0.0.1", gateway.port)
        except ConnectionRefusedError:
            return True
        other.close()
        return False

    await until(closed)
    writer.write(request)
    answer = await asyncio.wait_for(reader.read(), 20)
    assert b" 503 " in answer
    assert b'"draining"' in answer
    writer.close()
    engine.gate.set()
    assert (await accepted).status_code == 200
    assert len(engine.bodies) == 1


async def test_what_is_written_down_holds_no_word_picture_or_key(start, engine, capsys):
    gateway = await start()
    secret = "the-secret-of-the-maze"
    url = pictures.data_url(pictures.GOOD["png"]())
    parts = [{"type": "text", "text": secret}, {"type": "image_url", "image_url": {"url": url}}]
    await gateway.post({"model": "maze", "messages": [user(parts)]}, headers={"X-Conversation-Id": secret})
    await gateway.chat(secret, stream=True)
    await gateway.chat(secret, model=secret)
    await gateway.chat(secret, key=secret)
    await gateway.chat(secret, **{secret: 1})
    await gateway.http.get(f"/{secret}?{secret}", headers={"Authorization": f"Bearer {gateway.key}"})
    engine.fault = lambda body: 400
    await gateway.chat(secret)
    written, errors = capsys.readouterr()
    metrics = (await gateway.control("/metrics")).text
    for hidden in (secret, url[30:60], gateway.key, gateway.key[-20:]):
        assert hidden not in written + errors + metrics
    records = [json.loads(line) for line in written.splitlines()]
    requests = [record for record in records if record["event"] == "request"]
    assert [(r["status"], r["outcome"], r["images"]) for r in requests] == [
        (200, "ok", 1),
        (200, "ok", 0),
        (404, "model_not_found", 0),
        (401, "unauthenticated", 0),
        (400, "invalid_request", 0),
        (404, "not_found", 0),
        (400, "upstream_refused", 0),
    ]
    first = requests[0]
    assert (first["key"], first["adapter"], first["variant"]) == ("player", LIVE, "live")
    assert 0 <= first["queue_s"] <= first["first_byte_s"] <= first["total_s"]
    assert first["answer_bytes"] > 0
    assert len({record["request_id"] for record in requests}) == len(requests)


async def test_metrics_tell_the_adapters_apart(gateway, engine):
    gateway.alias(canary="maze-bbbbbbbbbbbb", canary_share=1.0)
    for _ in range(3):
        await gateway.chat(model="maze@live", key=gateway.probe_key)
    await gateway.control("/aliases")
    await gateway.chat()
    engine.fault = lambda body: 500
    await gateway.chat()
    total = "skypod_gateway_requests_total"
    assert await gateway.metric(total, adapter=LIVE, variant="named", outcome="ok") == 3
    assert await gateway.metric(total, adapter="maze-bbbbbbbbbbbb", variant="canary", outcome="ok") == 1
    assert await gateway.metric(total, adapter="maze-bbbbbbbbbbbb", outcome="upstream_error") == 1
    for histogram in ("request_seconds", "first_byte_seconds"):
        assert await gateway.metric(f"skypod_gateway_{histogram}_count", adapter=LIVE) == 3
        assert await gateway.metric(f"skypod_gateway_{histogram}_count", adapter="maze-bbbbbbbbbbbb") == 1


async def test_names_that_a_probe_invents_share_one_series(gateway, engine, capsys):
    invented = [f"maze-{number:012x}" for number in range(5)]
    for name in invented:
        await gateway.chat(model=name, key=gateway.probe_key)
    await gateway.chat(model=CANARY, key=gateway.probe_key)
    text = (await gateway.control("/metrics")).text
    assert not [name for name in (*invented, CANARY) if name in text]
    total = "skypod_gateway_requests_total"
    assert await gateway.metric(total, adapter="other", outcome="upstream_refused") == 5
    assert await gateway.metric(total, adapter="other", outcome="ok") == 1
    assert await gateway.metric("skypod_gateway_in_flight", adapter="other") == 0
    written = capsys.readouterr().out
    assert all(f'"adapter": "{name}"' in written for name in invented)


async def test_an_adapter_keeps_its_series_when_its_alias_is_taken_while_it_answers(gateway, engine):
    gateway.alias(canary=CANARY, canary_share=1.0)
    await gateway.control("/aliases")
    engine.gate.clear()
    asked = asyncio.create_task(gateway.chat())
    await engine.until(lambda engine: len(engine.running) == 1)
    gateway.alias(canary=None, canary_share=0.0)
    await gateway.control("/aliases")
    engine.gate.set()
    await asked
    assert await gateway.metric("skypod_gateway_requests_total", adapter=CANARY, variant="canary") == 1
    assert await gateway.metric("skypod_gateway_in_flight", adapter=CANARY) == 0


async def test_a_fault_of_our_own_is_told_without_its_words(start, engine, capsys, monkeypatch):
    gateway = await start()

    def fail(self):
        raise ValueError("the-secret-of-the-maze")

    monkeypatch.setattr("serving.gateway.chat.Chat.opening", fail)
    gateway.alias(canary="maze-bbbbbbbbbbbb", canary_share=0.5)
    await gateway.control("/aliases")
    assert kind(await gateway.chat()) == (500, "bug")
    written = capsys.readouterr()
    assert "the-secret-of-the-maze" not in written.out + written.err
    (bug,) = [json.loads(line) for line in written.out.splitlines() if '"bug", "error"' in line]
    assert bug["error"] == "ValueError"
    assert any("routing.py" in place for place in bug["at_lines"])


def test_the_guide_lists_every_code_of_an_error():
    source = "".join(path.read_text() for path in (ROOT / "serving" / "gateway").glob("*.py"))
    raised = re.findall(r'Refusal\(\s*\w+,\s*f?"([a-z_{}]+)"', source)
    raised += [code.format(alias=alias) for code in raised for alias in ("canary", "previous")]
    guide = (ROOT / "docs" / "how-to" / "serve.md").read_text()
    assert {"upstream_refused", "no_{alias}_adapter", "bad_image"} < set(raised)
    assert not [code for code in raised if "{" not in code and f"`{code}`" not in guide]


async def test_it_speaks_tls(start, tmp_path):
    ca, certificate, key = tls.write(tmp_path / "tls")
    gateway = await start(tls={"certificate": certificate, "key": key})
    context = ssl.create_default_context(cafile=str(ca))
    async with httpx.AsyncClient(verify=context, trust_env=False) as http:
        answer = await http.get(gateway.url.replace("http://", "https://") + "/live")
    assert answer.json() == {"status": "live"}


async def test_a_port_that_is_taken_is_named(start, engine):
    gateway = await start()
    gateway.settings = gateway.settings.model_copy(update={"port": gateway.port})
    first = gateway.task
    with pytest.raises(SubstrateError, match=f"cannot listen on 127.0.0.1:{gateway.port}"):
        await gateway.start()
    gateway.task = first


def test_settings_name_every_fault(tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG.format(url="ftp://x", deadline_s=0) + "\n[limits]\nimages = 0\ninflight = 3\n")
    with pytest.raises(ConfigError) as error:
        settings.read(path)
    for part in ("'ftp://x' is no address", "drain.deadline_s", "limits.images", "did you mean 'in_flight'?"):
        assert part in error.value.problem


@pytest.mark.parametrize(
    "url",
    [
        "http://user:hunter2@engine:8000",
        "http://hunter2@engine:8000",
        "ftp://user:hunter2@engine",
        "user:hunter2@engine:8000",
        "http://engine:8000/?key=hunter2",
        "http://engine:8000/#hunter2",
    ],
)
def test_an_address_with_a_secret_is_refused_without_quoting_it(tmp_path, url):
    path = tmp_path / "gateway.toml"
    path.write_text(CONFIG.format(url=url, deadline_s=5))
    with pytest.raises(ConfigError, match="key_file") as error:
        settings.read(path)
    assert "hunter2" not in str(error.value)


def test_paths_are_those_of_the_settings_folder(tmp_path):
    path = tmp_path / "gateway.toml"
    path.write_text(
        CONFIG.format(url="http://127.0.0.1:8000", deadline_s=5).replace(
            "[drain]", 'key_file = "e.key"\n[drain]'
        )
    )
    read = settings.read(path)
    assert (read.keys, read.aliases) == (tmp_path / "keys.json", tmp_path / "aliases.json")
    assert read.upstream.key_file == tmp_path / "e.key"
    with pytest.raises(ConfigError, match=r"e\.key cannot be read"):
        settings.upstream_key(read.upstream)


@pytest.mark.parametrize("content", ["", "\n", "hunter2\nhunter3\n", "hunter2 3", "hunter2\0", "hünter2"])
async def test_a_file_that_holds_no_key_of_the_engine_is_refused_at_the_start(start, tmp_path, content):
    (tmp_path / "engine.key").write_text(content)
    with pytest.raises(ConfigError, match=r"engine\.key holds no key") as error:
        await start(upstream={"key_file": tmp_path / "engine.key"})
    assert "hunter" not in str(error.value)


@pytest.mark.parametrize(
    ("content", "says"),
    [
        ("{", "not JSON"),
        ("[" * 200_000, "not JSON"),
        ('{"keys": [{"name": "a", "sha256": "sk-skypod-secret"}]}', "keys.0.sha256"),
        ('{"keys": [{"name": "a"}]}', "keys.0.sha256"),
        ('{"keys": [{"name": "A!", "sha256": "%s"}]}' % ("0" * 64), "keys.0.name"),
        ('{"keys": [{"name": "a", "sha256": "%s", "may": ["all"]}]}' % ("0" * 64), "keys.0.may"),
        (json.dumps({"keys": [{"name": "a", "sha256": digit * 64} for digit in "01"]}), "twice"),
    ],
)
def test_a_file_of_keys_that_is_none_is_refused_without_quoting_it(tmp_path, content, says):
    path = tmp_path / "keys.json"
    path.write_text(content)
    with pytest.raises(ConfigError, match=says) as error:
        keys.read(path)
    assert "sk-skypod-secret" not in str(error.value)


def test_a_key_is_kept_as_its_digest_only(tmp_path):
    path = tmp_path / "keys.json"
    token = keys.add(path, "first")
    keys.add(path, "second", may=("chat", "probe"))
    assert token not in path.read_text()
    assert [key.name for key in keys.read(path)] == ["first", "second"]
    with pytest.raises(ConfigError, match="'first' already"):
        keys.add(path, "first")
    with pytest.raises(ConfigError, match="name"):
        keys.add(path, "No Name")
