"""The real gateway before a site's engine, and somebody who asks it while adapters come and go."""

import asyncio
import itertools
import threading
from collections.abc import Iterator
from concurrent.futures import Future
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import httpx

from serving.gateway import keys, server
from serving.gateway.settings import Settings, Upstream
from serving.rollout.site import Site
from serving.rollout.traffic import GatewayTraffic
from tests.serving.rollout.engine import MODEL_ID

PUBLIC_NAME = "maze"


@contextmanager
def watched(site: Site, engine_url: str, folder: Path) -> Iterator[tuple[str, str]]:
    """(address, key) of the public side of a gateway that follows the site's aliases; the site watches its
    control side."""
    file = folder / "keys.json"
    player = keys.add(file, "player", requests_per_minute=1_000_000, concurrency=64)
    operator = keys.add(file, "operator", may=("control",))
    settings = Settings(
        public_name=PUBLIC_NAME,
        keys=file,
        aliases=site.aliases,
        port=0,
        control_port=0,
        follow_s=0.05,
        upstream=Upstream(url=engine_url, model_id=MODEL_ID),
    )
    listening: Future = Future()
    ends: Future = Future()

    async def run() -> None:
        stop = asyncio.Event()
        ends.set_result((asyncio.get_running_loop(), stop))
        await server.serve(settings, stop, lambda *ports: listening.set_result(ports))

    thread = threading.Thread(target=asyncio.run, args=(run(),), daemon=True)
    thread.start()
    public, control = listening.result(30)
    site.traffic = GatewayTraffic(f"http://127.0.0.1:{control}", operator)
    yield f"http://127.0.0.1:{public}", player
    loop, stop = ends.result()
    loop.call_soon_threadsafe(stop.set)
    thread.join(30)


class Users:
    """Somebody who asks the public name one question after the other, each a conversation of its own."""

    def __init__(self, url: str, key: str, question: dict[str, Any]):
        self.answers: list[tuple[int, str]] = []
        headers = {"Authorization": f"Bearer {key}"}
        self._http = httpx.Client(base_url=url, headers=headers, timeout=60, trust_env=False)
        self._question = {"model": PUBLIC_NAME, **question}
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._ask, daemon=True)

    def _ask(self) -> None:
        for number in itertools.count():
            if self._stop.is_set():
                return
            asked = self._http.post(
                "/v1/chat/completions", json=self._question, headers={"X-Conversation-Id": str(number)}
            )
            self.answers.append((asked.status_code, asked.headers.get("X-Skypod-Adapter", "")))

    def __enter__(self) -> "Users":
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join()
