"""A scripted OpenAI-compatible engine on loopback, in the test's own event loop: real HTTP, and events that
tell what has happened and decide what happens next."""

import asyncio
import json
from collections.abc import Callable, Mapping
from typing import Any

from aiohttp import web

ERROR_EVENTS = b'data: {"error": {"message": "EngineCore died", "code": 500}}\n\ndata: [DONE]\n\n'
Fault = Callable[[dict[str, Any]], int | str | None]


class ScriptedEngine:
    """Serves `models`. A request waits while `gate` is closed, then says "<model> heard <last text>"; when it
    streams, in three pieces, of which the later ones wait for `more`.

    It takes `token_s` for each token that is asked for, and no CPU meanwhile.

    `fault(body)` may return a status, or hang up (no answer at all), break (the answer ends in its middle),
    silence (an answer that never begins), flood (one that never ends), empty (one of no bytes), foreign (that
    of another server), and when it streams, fail (an error as an event), trickle (the same, byte by byte).
    """

    def __init__(self, *models: str):
        self.models = set(models)
        self.fault: Fault = lambda body: None
        self.token_s = 0.0
        self.gate, self.more = asyncio.Event(), asyncio.Event()
        self.gate.set()
        self.more.set()
        self.bodies: list[dict[str, Any]] = []
        self.headers: list[Mapping[str, str]] = []
        self.running: list[str] = []
        self.most_running = 0
        self.mixed = False
        self.aborted = 0
        self.changed = asyncio.Condition()
        self.port = 0

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    async def until(self, reached: Callable[["ScriptedEngine"], bool]) -> None:
        """Wait for a state of this engine."""
        async with asyncio.timeout(20), self.changed:
            await self.changed.wait_for(lambda: reached(self))

    async def start(self) -> None:
        app = web.Application(client_max_size=2**26)
        app.router.add_get("/v1/models", self._models)
        app.router.add_post("/v1/chat/completions", self._chat)
        self._runner = web.AppRunner(app, handler_cancellation=True, access_log=None, shutdown_timeout=0.1)
        await self._runner.setup()
        await web.TCPSite(self._runner, "127.0.0.1", self.port).start()
        self.port = self._runner.addresses[0][1]

    async def stop(self) -> None:
        await self._runner.cleanup()

    async def _models(self, _: web.Request) -> web.Response:
        return web.json_response({"data": [{"id": name} for name in sorted(self.models)]})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        body = await request.json()
        model = body["model"]
        self.bodies.append(body)
        self.headers.append(request.headers)
        self.running.append(model)
        self.most_running = max(self.most_running, len(self.running))
        self.mixed |= len({":" in name for name in self.running}) > 1
        await self._tell()
        try:
            return await self._answer(request, body)
        except (asyncio.CancelledError, ConnectionError):
            self.aborted += 1
            raise
        finally:
            self.running.remove(model)
            await asyncio.shield(self._tell())

    async def _tell(self) -> None:
        async with self.changed:
            self.changed.notify_all()

    async def _answer(self, request: web.Request, body: dict[str, Any]) -> web.StreamResponse:
        fault = self.fault(body)
        await self.gate.wait()
        if self.token_s:
            await asyncio.sleep(self.token_s * body["max_tokens"])
        if isinstance(fault, int):
            return web.json_response({"error": {"message": f"scripted {fault}"}}, status=fault)
        if fault == "hang up":
            request.transport.abort()
            return web.Response()
        if fault == "silence":
            await asyncio.Event().wait()
        if body["model"] not in self.models:
            return web.json_response(
                {"error": {"message": f"The model `{body['model']}` does not exist."}}, status=404
            )
        if fault == "empty":
            return web.Response(
                content_type="text/event-stream" if body.get("stream") else "application/json"
            )
        if fault == "foreign":
            return web.Response(body=b"<html>maintenance</html>", content_type="text/html")
        text = f"{body['model']} heard {_last_text(body)}"
        choice = {"message": {"role": "assistant", "content": text}}
        if not body.get("stream"):
            content = json.dumps({"model": body["model"], "choices": [choice]}).encode()
            if fault in ("break", "flood"):
                return await self._endless(request, content, fault)
            return web.Response(body=content, content_type="application/json")
        response = web.StreamResponse(headers={"Content-Type": "text/event-stream; charset=utf-8"})
        await response.prepare(request)
        for place, piece in enumerate(text.split(" ", 2)):
            if place:
                await self.more.wait()
            event = {"model": body["model"], "choices": [{"delta": {"content": piece}}]}
            await response.write(b"data: " + json.dumps(event).encode() + b"\n\n")
            if fault == "break":
                request.transport.abort()
            if fault in ("fail", "trickle"):
                return await self._fail(response, len(ERROR_EVENTS) if fault == "fail" else 1)
            while fault == "flood":
                await response.write(b": " + b"x" * 65536 + b"\n\n")
        await response.write(b"data: [DONE]\n\n")
        return response

    async def _fail(self, response: web.StreamResponse, size: int) -> web.StreamResponse:
        for start in range(0, len(ERROR_EVENTS), size):
            await response.write(ERROR_EVENTS[start : start + size])
            await asyncio.sleep(0)
        return response

    async def _endless(self, request: web.Request, content: bytes, fault: str) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        await response.write(content)
        while fault == "flood":
            await response.write(b" " * 65536)
        request.transport.abort()
        return response


def _last_text(body: dict[str, Any]) -> str:
    content = body["messages"][-1]["content"]
    if isinstance(content, str):
        return content
    return " ".join(part["text"] for part in content if part["type"] == "text")
