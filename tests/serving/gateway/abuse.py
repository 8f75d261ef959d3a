"""A gateway before a real vLLM under everything at once, and what came of it.

    python -m tests.serving.gateway.abuse [--seconds 120] [--clients 16] [--out FILE]

A crowd asks and checks every answer against what its adapter said to that question before. Meanwhile others
vanish, dawdle, send broken pictures, wrong names and bodies too large; the live adapter is swapped every two
seconds; and at half time the engine is killed and started again at its address. Exit status 1 when an
accepted request got no answer, an answer belonged to another question, or something was served that should
have been refused.
"""

import asyncio
import json
import random
import signal
import sys
import tempfile
import time
from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import click

from serving import aliases
from serving.adapter import Adapter
from tests.serving.gateway import pictures
from tests.serving.gateway.conftest import user
from tests.serving.gateway.load import Question, Side, questions, running_gateway, tiny_adapters
from tests.serving.gateway.vllm_server import VllmServer, served


@dataclass
class Abuse:
    """One gateway and the folder of its files; `ends` counts how requests of each sort ended."""

    folder: Path
    gateway: Side
    control_url: str
    asked: list[Question]
    end: float = float("inf")
    ends: dict[str, Counter[str]] = field(default_factory=dict)
    wrong: list[str] = field(default_factory=list)
    swaps: int = 0

    @property
    def going(self) -> bool:
        return time.monotonic() < self.end

    def count(self, sort: str, end: str) -> None:
        self.ends.setdefault(sort, Counter())[end] += 1

    async def post(self, http: aiohttp.ClientSession, body: dict[str, Any]) -> tuple[int, dict[str, Any]]:
        headers = {"Authorization": f"Bearer {self.gateway.key}"}
        async with http.post(
            f"{self.gateway.url}/v1/chat/completions", json={"model": "maze", **body}, headers=headers
        ) as answer:
            content = await answer.json()
            if answer.status == 200 and content["model"] != f"maze:{answer.headers['X-Skypod-Adapter']}":
                self.wrong.append(f"{content['model']} under the name of another")
            return answer.status, content

    async def crowd(self, http: aiohttp.ClientSession, draw: random.Random) -> None:
        """Ask, and check what is answered. Every request has to end in an answer or a named refusal."""
        while self.going:
            question = draw.choice(self.asked)
            try:
                status, content = await self.post(http, question.body)
            except (aiohttp.ClientError, TimeoutError) as error:
                self.count("crowd", type(error).__name__)
                self.wrong.append(f"an accepted request was lost: {type(error).__name__}")
                continue
            self.count("crowd", "answered" if status == 200 else content["error"]["code"])
            if status == 200 and not question.fits(content):
                self.wrong.append("an answer of another question")
            if status >= 500:
                await asyncio.sleep(0.2)

    async def vanish(self, http: aiohttp.ClientSession, draw: random.Random) -> None:
        """Ask, and go away at any moment."""
        while self.going:
            try:
                async with asyncio.timeout(draw.uniform(0.0, 0.3)):
                    await self.post(http, {**draw.choice(self.asked).body, "stream": draw.random() < 0.5})
                self.count("vanishing", "stayed")
            except (TimeoutError, aiohttp.ClientError):
                self.count("vanishing", "gone")

    async def dawdle(self, http: aiohttp.ClientSession, draw: random.Random) -> None:
        """Promise a body and send it byte by byte, for a while."""
        port = urlsplit(self.gateway.url).port
        while self.going:
            _, writer = await asyncio.open_connection("127.0.0.1", port)
            head = (
                f"POST /v1/chat/completions HTTP/1.1\r\nHost: g\r\nAuthorization: Bearer {self.gateway.key}"
            )
            writer.write(f"{head}\r\nContent-Length: 5000\r\n\r\n".encode())
            for _ in range(10):
                writer.write(b"{")
                await asyncio.sleep(0.1)
            writer.transport.abort()
            self.count("slow", "gone")

    async def break_rules(self, http: aiohttp.ClientSession, draw: random.Random) -> None:
        """Send what must be refused with a status of the client's."""
        bad = {name: make() for name, (make, *_) in pictures.BAD.items()}
        pixels = ("png of more pixels", "too many bytes")  # Within the default limits.
        bodies = [
            {"messages": [user([{"type": "image_url", "image_url": {"url": url}}])]}
            for name, url in bad.items()
            if name not in pixels
        ]
        bodies += [
            {"model": "nobody", "messages": [user("a")]},
            {"messages": [user("left " * 4000)]},
            {"messages": [user("a" * 100_000)]},
            {"messages": [user("a")], "max_tokens": 10**9},
            {"messages": [user("a")], "guided_regex": "(a+)+$"},
            {"messages": [user("a")], "user": "x" * 17 * 2**20},
        ]
        while self.going:
            try:
                status, content = await self.post(http, draw.choice(bodies))
            except aiohttp.ClientError:
                # The connection of a body too large closes while it is still being sent.
                self.count("rule breaking", "closed")
                continue
            self.count("rule breaking", content.get("error", {}).get("code", "served"))
            if status == 200:
                self.wrong.append("something was served that should have been refused")

    async def swap(self, http: aiohttp.ClientSession, adapters: list[Adapter]) -> None:
        """Another adapter goes live every two seconds, and the one before has to drain."""
        path, headers = self.folder / "aliases.json", {"Authorization": f"Bearer {self.gateway.key}"}
        while self.going:
            await asyncio.sleep(2)
            known = aliases.read(path)
            (other,) = [one.name for one in adapters if one.name != known.live]
            aliases.change(path, known, live=other, previous=known.live)
            address = f"{self.control_url}/adapters/{known.live}?wait_s=120"
            async with http.get(address, headers=headers) as answer:
                if not (await answer.json())["drained"]:
                    self.wrong.append("a replaced adapter did not drain")
            self.swaps += 1


async def run(
    folder: Path, server: VllmServer, adapters: list[Adapter], seconds: float, clients: int
) -> Abuse:
    """All of it against one gateway."""
    async with running_gateway(folder, server.url, adapters[0].name) as (side, _, control_url):
        abuse = Abuse(folder, side, control_url, questions(4, (4, 4)))
        timeout = aiohttp.ClientTimeout(180)
        async with (
            aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0), timeout=timeout) as http,
            asyncio.TaskGroup() as group,
        ):
            for place in range(clients):
                group.create_task(abuse.crowd(http, random.Random(place)))
            for place in range(4):
                group.create_task(abuse.vanish(http, random.Random(100 + place)))
            for place in range(2):
                group.create_task(abuse.dawdle(http, random.Random(200 + place)))
                group.create_task(abuse.break_rules(http, random.Random(300 + place)))
            group.create_task(abuse.swap(http, adapters))
            await asyncio.sleep(seconds / 2)
            server.stop(signal.SIGKILL)
            await asyncio.to_thread(server.start)
            # The crowd asked on all the while, and has to be served again.
            abuse.end = time.monotonic() + seconds / 2
            before = abuse.ends["crowd"]["answered"]
        if abuse.ends["crowd"]["answered"] <= before:
            abuse.wrong.append("nobody was served after the engine's new start")
        return abuse


@click.command()
@click.option("--seconds", type=float, default=120.0)
@click.option("--clients", type=int, default=16)
@click.option("--out", type=click.Path(path_type=Path), default=None)
def main(seconds: float, clients: int, out: Path | None) -> None:
    """Run it, print the counts, and write them to --out."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        adapters = tiny_adapters(folder, 2)
        with served(folder, adapters) as server:
            abuse = asyncio.run(run(folder, server, adapters, seconds, clients))
    found = {
        "swaps": abuse.swaps,
        "ends": {sort: dict(counts) for sort, counts in abuse.ends.items()},
        "wrong": dict(Counter(abuse.wrong)),
    }
    click.echo(json.dumps(found, indent=2))
    if out:
        out.write_text(json.dumps(found, indent=2) + "\n")
    sys.exit(1 if abuse.wrong else 0)


if __name__ == "__main__":
    main()
