"""What the gateway costs, and what it does under load: the same requests to the engine itself and through it.

    python -m tests.serving.gateway.load [--engine vllm|scripted] [--tokens 1-31] [--out FILE]

Starts the engine and the gateway on loopback, both in processes of their own, and asks in a closed loop at
each concurrency. Direct and gateway rounds alternate, so that a change of the machine's load meets both. Each
pair of rounds gives the share of throughput and what is added to the median latency; the rows have the
means over pairs, with 95 % intervals. Every answer is compared with the one that its question must get.
"""

import asyncio
import json
import multiprocessing
import os
import platform
import statistics
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import aiohttp
import click
import numpy as np
import psutil

from serving import aliases, tensors
from serving.adapter import Adapter, package
from serving.aliases import Aliases
from serving.gateway import keys
from serving.manifest import WEIGHTS
from tests.serving.gateway import pictures
from tests.serving.gateway.conftest import LIVE, user
from tests.serving.gateway.scripted_engine import ScriptedEngine
from tests.serving.gateway.vllm_server import served
from tests.serving.test_vllm import PYTHON, ROOT, START_S, environment
from training.statistics import mean_interval

RIGHTS = ("chat", "control")
LEVELS = (1, 2, 4, 8, 16, 32, 64)
ROUNDS = 8
CONFIG = """
public_name = "maze"
keys = "keys.json"
aliases = "aliases.json"
port = 0
control_port = 0
[upstream]
url = "{url}"
model_id = "maze"
mixes_safely = true
[limits]
in_flight = 64
"""


@dataclass
class Round:
    """What one round of a side gave: seconds per answer by question, and how long it took."""

    latencies: dict[int, list[float]] = field(default_factory=dict)
    elapsed_s: float = 0.0

    @property
    def all(self) -> list[float]:
        return [one for many in self.latencies.values() for one in many]

    @property
    def per_s(self) -> float:
        return len(self.all) / self.elapsed_s

    def added_ms(self, direct: "Round") -> float:
        """By how much this round's answers came later than those to the same questions in another."""
        both = self.latencies.keys() & direct.latencies.keys()
        middle = statistics.median
        return 1000 * middle(middle(self.latencies[n]) - middle(direct.latencies[n]) for n in both)


@dataclass
class Side:
    """One way to the engine, and what was measured on it: rounds, kinds of failures."""

    url: str
    model: str
    key: str = ""
    rounds: list[Round] = field(default_factory=list)
    failures: Counter[str] = field(default_factory=Counter)

    async def ask(self, http: aiohttp.ClientSession, question: "Question", into: Round) -> None:
        began = time.perf_counter()
        headers = {"Authorization": f"Bearer {self.key}"} if self.key else {}
        try:
            async with http.post(
                f"{self.url}/v1/chat/completions",
                json={**question.body, "model": self.model},
                headers=headers,
            ) as answer:
                content = await answer.json()
        except (aiohttp.ClientError, TimeoutError) as error:
            self.failures[type(error).__name__] += 1
            return
        if answer.status != 200:
            self.failures[f"status {answer.status} {content['error'].get('code')}"] += 1
            return
        into.latencies.setdefault(question.number, []).append(time.perf_counter() - began)
        if not question.fits(content):
            self.failures["another question's answer"] += 1

    def row(self) -> dict[str, Any]:
        """Percentiles in ms, answers per second, failures."""
        latencies = [one for each in self.rounds for one in each.all]
        cut = statistics.quantiles(latencies, n=100, method="inclusive")
        return {
            "answers": len(latencies),
            **{f"p{p}_ms": round(cut[p - 1] * 1000, 2) for p in (50, 95, 99)},
            "per_s": round(len(latencies) / sum(one.elapsed_s for one in self.rounds), 2),
            "failures": dict(self.failures),
        }


@dataclass
class Question:
    """A request without its model, and what each model said to it first: greedy answers repeat."""

    number: int
    body: dict[str, Any]
    answers: dict[str, str] = field(default_factory=dict)

    def fits(self, content: dict[str, Any]) -> bool:
        """Whether this answer is the one that this question gets from the model that it names."""
        said = content["choices"][0]["message"]["content"]
        return self.answers.setdefault(content["model"], said) == said


def questions(images: int, tokens: tuple[int, int]) -> list[Question]:
    """Different conversations, each of `images` pictures; their answers have as many `tokens`, from least to
    most in equal steps, and long and short ones stand side by side."""
    least, most = tokens
    found = []
    for i in range(32):
        parts: list[dict[str, Any]] = [{"type": "text", "text": f"maze {i}"}]
        for place in range(images):
            url = pictures.data_url(pictures.plain(64, 64, seed=100 * i + place))
            parts.append({"type": "image_url", "image_url": {"url": url}})
        length = least + round((most - least) * (13 * i % 32) / 31)
        body = {"messages": [user(parts)], "max_tokens": length, "ignore_eos": True, "temperature": 0.0}
        found.append(Question(i, body))
    return found


async def measure(side: Side, concurrency: int, seconds: float, asked: list[Question]) -> None:
    """One round: `concurrency` clients that each ask again as soon as they are answered."""
    found, began = Round(), time.perf_counter()
    end = began + seconds

    async def client(http: aiohttp.ClientSession, place: int) -> None:
        while time.perf_counter() < end:
            await side.ask(http, asked[place % len(asked)], found)
            place += concurrency

    connector = aiohttp.TCPConnector(limit=0)
    async with aiohttp.ClientSession(connector=connector, timeout=aiohttp.ClientTimeout(120)) as http:
        await asyncio.gather(*(client(http, place) for place in range(concurrency)))
    found.elapsed_s = time.perf_counter() - began
    side.rounds.append(found)


async def table(
    direct: Side, gateway: Side, process: psutil.Process, seconds: float, asked: list[Question]
) -> list[dict[str, Any]]:
    """One row per concurrency. `process` is the gateway's: its CPU time per answer depends least on what else
    the machine does."""
    rows = []
    for warm in (direct, gateway):
        await measure(Side(warm.url, warm.model, warm.key), 4, min(seconds, 5), asked)
    for level in LEVELS:
        sides = [Side(one.url, one.model, one.key) for one in (direct, gateway)]
        spent_s = sum(process.cpu_times()[:2])
        for turn in range(ROUNDS):
            for side in sides if turn % 2 else reversed(sides):
                await measure(side, level, seconds / ROUNDS, asked)
        one, other = (side.row() for side in sides)
        pairs = list(zip(sides[0].rounds, sides[1].rounds, strict=True))
        rows.append(
            {
                "concurrency": level,
                "direct": one,
                "gateway": other,
                "p50_added_ms": mean([after.added_ms(before) for before, after in pairs]),
                "throughput_share": mean([after.per_s / before.per_s for before, after in pairs]),
                "gateway_cpu_ms": round(
                    1000 * (sum(process.cpu_times()[:2]) - spent_s) / other["answers"], 3
                ),
            }
        )
        click.echo(json.dumps(rows[-1]))
    return rows


def mean(values: list[float]) -> dict[str, Any]:
    """The mean and its 95 % interval."""
    low, high = mean_interval(values)
    return {"mean": round(statistics.fmean(values), 3), "interval": [round(low, 3), round(high, 3)]}


@asynccontextmanager
async def running_gateway(
    folder: Path, url: str, live: str
) -> AsyncIterator[tuple[Side, psutil.Process, str]]:
    """python -m serving.gateway before `url`: the way to it, its process, its control address."""
    (folder / "gateway.toml").write_text(CONFIG.format(url=url))
    key = keys.add(folder / "keys.json", "load", may=RIGHTS, requests_per_minute=10**7, concurrency=10**4)
    aliases.write(folder / "aliases.json", Aliases(version=1, live=live))
    with (folder / "gateway.log").open("wb") as log:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "serving.gateway", "--config", str(folder / "gateway.toml")),
            cwd=ROOT,
            stdout=asyncio.subprocess.PIPE,
            stderr=log,
        )
    first = json.loads(await process.stdout.readline())

    async def swallow() -> None:
        while await process.stdout.read(2**16):
            pass

    reading = asyncio.create_task(swallow())
    try:
        side = Side(f"http://127.0.0.1:{first['port']}", "maze", key)
        yield side, psutil.Process(process.pid), f"http://127.0.0.1:{first['control_port']}"
    finally:
        process.terminate()
        await process.wait()
        await reading


@contextmanager
def scripted(token_s: float) -> Iterator[tuple[str, str]]:
    """An engine that only waits, as long as its tokens take: what remains is the gateway itself."""
    ours, theirs = multiprocessing.Pipe()
    process = multiprocessing.Process(target=_script, args=(theirs, token_s), daemon=True)
    process.start()
    try:
        yield f"http://127.0.0.1:{ours.recv()}", LIVE
    finally:
        process.terminate()
        process.join()


def _script(connection: Any, token_s: float) -> None:
    async def run() -> None:
        engine = ScriptedEngine("maze", f"maze:{LIVE}")
        engine.token_s = token_s
        await engine.start()
        connection.send(engine.port)
        await asyncio.Event().wait()

    asyncio.run(run())


def tiny_adapters(folder: Path, count: int) -> list[Adapter]:
    """A tiny Qwen3-VL in `folder`/base and adapters of it in `folder`/adapters, each of other weights."""
    command = [str(PYTHON), "-m", "tests.serving.peft_export", str(folder)]
    subprocess.run(command, cwd=ROOT, env=environment(), check=True, timeout=START_S)
    file = folder / "export" / WEIGHTS
    weights = tensors.parse(file.read_bytes(), str(file))
    found = []
    for scale in range(1, count + 1):
        scaled = {name: tensors.from_array(one.array() / np.float32(scale)) for name, one in weights.items()}
        file.write_bytes(tensors.serialize(scaled))
        about = {"base_dir": folder / "base", "run_id": "load", "evaluation_digest": "none"}
        found.append(package(folder / "export", folder / "adapters", **about))
    return found


@contextmanager
def vllm(folder: Path) -> Iterator[tuple[str, str]]:
    """The tiny Qwen3-VL with one adapter in vLLM's CPU build."""
    (adapter,) = tiny_adapters(folder, 1)
    with served(folder, [adapter]) as server:
        yield server.url, adapter.name


@click.command()
@click.option("--engine", type=click.Choice(["vllm", "scripted"]), default="vllm")
@click.option("--seconds", type=float, default=24.0, help="Per concurrency and side.")
@click.option("--images", type=int, default=4)
@click.option("--tokens", default="4", help="Of each answer, or the least and the most: 1-31.")
@click.option("--token-ms", default=0.0, help="What the scripted engine takes for a token, without any CPU.")
@click.option("--out", type=click.Path(path_type=Path), default=None)
def main(engine: str, seconds: float, images: int, tokens: str, token_ms: float, out: Path | None) -> None:
    """Measure, print one JSON line per concurrency, and write all of it to --out."""

    async def run(folder: Path, url: str, live: str) -> list[dict[str, Any]]:
        async with running_gateway(folder, url, live) as (gateway, process, _):
            direct = Side(url, f"maze:{live}")
            return await table(direct, gateway, process, seconds, questions(images, bounds))

    least, _, most = tokens.partition("-")
    bounds = int(least), int(most or least)
    load_before = os.getloadavg()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        with vllm(folder) if engine == "vllm" else scripted(token_ms / 1000) as (url, live):
            rows = asyncio.run(run(folder, url, live))
    found = {
        "at": datetime.now(UTC).isoformat(timespec="seconds"),
        "engine": engine,
        "images": images,
        "tokens": tokens,
        "token_ms": token_ms,
        "cpus": os.cpu_count(),
        "machine": platform.platform(),
        "load_before": load_before,
        "rows": rows,
    }
    if out:
        out.write_text(json.dumps(found, indent=2) + "\n")


if __name__ == "__main__":
    main()
