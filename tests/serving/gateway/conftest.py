import asyncio
import json
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AsyncExitStack
from pathlib import Path
from typing import Any

import httpx
import pytest
from PIL import Image

from serving import aliases
from serving.aliases import Aliases
from serving.gateway import keys, server
from serving.gateway.settings import Settings
from tests.serving.gateway.scripted_engine import ScriptedEngine

LIVE, CANARY, OLD = "maze-aaaaaaaaaaaa", "maze-bbbbbbbbbbbb", "maze-cccccccccccc"


@pytest.fixture
def anyio_backend() -> str:
    return "asyncio"


@pytest.fixture(autouse=True)
def pillow_as_before() -> Iterator[None]:
    """A gateway sets the limit of its process, which here is the tests'."""
    before = Image.MAX_IMAGE_PIXELS
    yield
    Image.MAX_IMAGE_PIXELS = before


@pytest.fixture
async def engine() -> AsyncIterator[ScriptedEngine]:
    engine = ScriptedEngine("maze", *(f"maze:{name}" for name in (LIVE, CANARY, OLD)))
    await engine.start()
    yield engine
    engine.gate.set()
    engine.more.set()
    await engine.stop()


class Running:
    """A gateway that listens, with a key of each kind and the file of its aliases."""

    def __init__(self, folder: Path, settings: dict[str, Any]):
        self.folder = folder
        self.key = keys.add(folder / "keys.json", "player", requests_per_minute=100_000, concurrency=1000)
        self.probe_key = keys.add(folder / "keys.json", "prober", may=("chat", "probe"))
        self.control_key = keys.add(folder / "keys.json", "operator", may=("control",))
        self.settings = Settings(
            public_name="maze",
            keys=folder / "keys.json",
            aliases=folder / "aliases.json",
            port=0,
            control_port=0,
            follow_s=0.05,
            **settings,
        )
        self.stop = asyncio.Event()
        self.url = self.control_url = ""

    def alias(self, **fields: Any) -> None:
        known = aliases.read(self.settings.aliases)
        aliases.change(self.settings.aliases, known, **fields)

    async def start(self) -> None:
        listening = asyncio.get_running_loop().create_future()
        self.task = asyncio.create_task(
            server.serve(self.settings, self.stop, lambda *ports: listening.set_result(ports))
        )
        await asyncio.wait({listening, self.task}, return_when=asyncio.FIRST_COMPLETED)
        if self.task.done():
            self.task.result()
        port, control = listening.result()
        self.port = port
        self.url, self.control_url = f"http://127.0.0.1:{port}", f"http://127.0.0.1:{control}"
        self.http = httpx.AsyncClient(base_url=self.url, timeout=30, trust_env=False)

    async def end(self) -> bool:
        await self.http.aclose()
        self.stop.set()
        return await self.task

    async def chat(
        self,
        text: str = "hello",
        model: str = "maze",
        key: str | None = None,
        headers: Any = None,
        **body: Any,
    ) -> httpx.Response:
        return await self.post({"messages": [user(text)], "model": model, **body}, key, headers)

    async def post(
        self, body: Any, key: str | None = None, headers: dict[str, str] | None = None
    ) -> httpx.Response:
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        sent = {"Authorization": f"Bearer {key or self.key}", **(headers or {})}
        return await self.http.post("/v1/chat/completions", content=content, headers=sent)

    async def until_known(self, key: str) -> None:
        """Wait until a new key has been read; asks for the models with it once more than in vain."""
        headers = {"Authorization": f"Bearer {key}"}

        async def known() -> bool:
            return (await self.http.get("/v1/models", headers=headers)).status_code != 401

        await until(known)

    async def until_metric(self, name: str, value: float, **labels: str) -> None:
        """Wait until a sample has a value."""

        async def reached() -> bool:
            return await self.metric(name, **labels) == value

        await until(reached)

    async def control(self, path: str) -> httpx.Response:
        """GET a path of the control port."""
        headers = {"Authorization": f"Bearer {self.control_key}"}
        async with httpx.AsyncClient(trust_env=False, timeout=30) as http:
            return await http.get(self.control_url + path, headers=headers)

    async def metric(self, name: str, **labels: str) -> float:
        """A sample's value, 0 where there is none."""
        for line in (await self.control("/metrics")).text.splitlines():
            if line.startswith(name) and all(f'{key}="{value}"' in line for key, value in labels.items()):
                return float(line.rsplit(" ", 1)[1])
        return 0.0


async def until(reached: Callable[[], Awaitable[bool]]) -> None:
    """Ask again and again, for what tells of itself only when asked."""
    async with asyncio.timeout(20):
        while not await reached():
            await asyncio.sleep(0.01)


def user(content: Any) -> dict[str, Any]:
    return {"role": "user", "content": content}


Start = Callable[..., Awaitable[Running]]


@pytest.fixture
async def start(engine: ScriptedEngine, tmp_path: Path) -> AsyncIterator[Start]:
    """Starts a gateway before the engine, with LIVE live; keywords are fields of [limits], of [upstream] and
    [drain] when named so."""
    async with AsyncExitStack() as stack:

        async def start(upstream: Any = None, drain: Any = None, tls: Any = None, **limits: Any) -> Running:
            folder = Path(tempfile.mkdtemp(dir=tmp_path))
            settings = {
                "upstream": {"url": engine.url, "model_id": "maze", "mixes_safely": True, **(upstream or {})},
                "limits": limits,
                "drain": {"deadline_s": 10, **(drain or {})},
                "tls": tls,
            }
            running = Running(folder, settings)
            aliases.write(running.settings.aliases, Aliases(version=1, live=LIVE))
            await running.start()
            stack.push_async_callback(running.end)
            return running

        yield start


@pytest.fixture
async def gateway(start: Start) -> Running:
    return await start()
