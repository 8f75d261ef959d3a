"""The public side: OpenAI's chat completions, the list of models, and health."""

import asyncio

import aiohttp
from aiohttp import web

from serving import aliases
from serving.aliases import Aliases
from serving.gateway import chat as bodies
from serving.gateway import keys
from serving.gateway.chat import Chat
from serving.gateway.following import Followed
from serving.gateway.images import Images
from serving.gateway.keys import Keyring
from serving.gateway.metrics import Metrics
from serving.gateway.records import Record
from serving.gateway.refusal import Refusal
from serving.gateway.routing import Route, Router
from serving.gateway.settings import Settings, upstream_key
from serving.gateway.shaping import RECORD, ClientLostError, shaped
from serving.gateway.slots import Slots
from serving.gateway.tally import Tally
from serving.gateway.upstream import Answer, Engine, broken

CHAT = "/v1/chat/completions"
CONVERSATION = "X-Conversation-Id"
ADAPTER, VARIANT, REQUEST_ID = "X-Skypod-Adapter", "X-Skypod-Variant", "X-Request-Id"
_JSON, _EVENTS = "application/json", "text/event-stream"
# Checking a larger body is left to a thread, lest the others wait for it.
_LARGE_BYTES = 512 * 2**10
# An engine that fails within a stream ends it properly. In JSON no text holds a bare line end.
_ERROR_EVENT = b'\ndata: {"error"'


class Gateway:
    """All that requests share. Make it inside a running event loop; close it at the end.

    Raises ConfigError or DataError when keys or aliases cannot be read.
    """

    def __init__(self, settings: Settings):
        limits = settings.limits
        self.settings = settings
        # First connections close after their answers, then nothing is accepted, then what is left is cut.
        self.draining = self.closed = self.cutting = False
        self.requests, self.adapters = Tally(), Tally()
        self.keys = Followed(settings.keys, keys.read)
        # An older version is a restored copy or a file that is gone; what is served must not change by it.
        self.aliases: Followed[Aliases] = Followed(
            settings.aliases, aliases.read, lambda known, found: found.version >= known.version
        )
        self.keyring = Keyring(self.keys)
        self.metrics = Metrics(lambda: self.aliases.value.names)
        self.engine = Engine(settings.upstream, upstream_key(settings.upstream))
        self._router = Router(settings.public_name, settings.upstream.model_id, self.aliases)
        self._slots = Slots(limits.in_flight, limits.queue, limits.wait_s, settings.upstream.mixes_safely)
        self._images = Images(limits)
        watch = self.metrics.watch
        watch("queued", "Requests that wait for a place with the engine", lambda: self._slots.waiting)
        watch("aliases_version", "Version of the aliases in use", lambda: self.aliases.value.version)
        watch(
            "aliases_trouble", "1 while the aliases' file cannot be used", lambda: bool(self.aliases.trouble)
        )
        watch("keys_trouble", "1 while the keys' file cannot be used", lambda: bool(self.keys.trouble))

    async def close(self) -> None:
        """Close the connections to the engine."""
        await self.engine.close()

    def application(self) -> web.Application:
        """The public paths."""
        app = web.Application(
            middlewares=[shaped(self.metrics, recorded=(CHAT,), cutting=lambda: self.cutting)],
            client_max_size=self.settings.limits.body_bytes,
        )
        app.router.add_post(CHAT, self._chat)
        app.router.add_get("/v1/models", self._models)
        app.router.add_get("/live", self._live)
        app.router.add_get("/ready", self._ready)
        app.on_response_prepare.append(self._finish_headers)
        return app

    async def _live(self, _: web.Request) -> web.Response:
        return web.json_response({"status": "live"})

    async def _ready(self, _: web.Request) -> web.Response:
        trouble = "it is draining" if self.draining else await self.engine.trouble()
        if trouble:
            return web.json_response({"status": "not ready", "reason": trouble}, status=503)
        return web.json_response({"status": "ready"})

    async def _models(self, request: web.Request) -> web.Response:
        key = self.keyring.identify(request.headers.get("Authorization"), "chat")
        with self.keyring.request_of(key):
            entries = [
                {"id": name, "object": "model", "created": 0, "owned_by": "skypod"}
                for name in self._router.models(key)
            ]
        return web.json_response({"object": "list", "data": entries})

    async def _chat(self, request: web.Request) -> web.StreamResponse:
        record = request[RECORD]
        if self.closed:
            raise Refusal(503, "draining", "this gateway is going down", "connect again", retry_after_s=1)
        key = self.keyring.identify(request.headers.get("Authorization"), "chat")
        record.key = key.name
        with self.requests.one(CHAT), self.keyring.request_of(key):
            chat = await self._read(request, record)
            route = self._router.route(
                chat.model, key, lambda: request.headers.get(CONVERSATION) or chat.opening()
            )
            record.adapter, record.variant = route.label, route.variant
            with self.adapters.one(route.label), self.metrics.in_flight(route.label):
                came = record.now()
                async with self._slots.held(base=route.adapter is None):
                    record.queue_s = record.now() - came
                    self.metrics.queue_seconds.observe(record.queue_s)
                    return await self._answer(request, record, chat, route)

    async def _read(self, request: web.Request, record: Record) -> Chat:
        limits = self.settings.limits
        if request.headers.get("Content-Encoding", "identity").lower() != "identity":
            raise Refusal(415, "encoded_body", "the body is compressed", "send it as it is")
        if (request.content_length or 0) > limits.body_bytes:
            raise Refusal(413, "body_too_large", f"the body has more than {limits.body_bytes} bytes")
        try:
            async with asyncio.timeout(limits.body_s):
                raw = await request.read()
        except TimeoutError:
            problem = f"the body did not arrive within {limits.body_s:g} s"
            raise Refusal(408, "body_timeout", problem, "send it faster") from None
        if len(raw) > _LARGE_BYTES:
            chat = await asyncio.to_thread(bodies.parse, raw, limits, self._images)
        else:
            chat = bodies.parse(raw, limits, self._images)
        record.body_bytes, record.images, record.stream = len(raw), chat.images, chat.stream
        return chat

    async def _answer(
        self, request: web.Request, record: Record, chat: Chat, route: Route
    ) -> web.StreamResponse:
        headers = {ADAPTER: route.label, VARIANT: route.variant}
        total_s, stream = self.settings.upstream.total_s, None
        try:
            async with (
                asyncio.timeout(total_s),
                self.engine.chat(chat.encode(route.served), record.request_id) as answer,
            ):
                if not answer.first or answer.content_type != (_EVENTS if chat.stream else _JSON):
                    raise broken()
                record.first_byte_s = record.now()
                if not chat.stream:
                    content = await self._whole(answer)
                    record.answer_bytes = len(content)
                    return web.Response(body=content, content_type=answer.content_type, headers=headers)
                stream = web.StreamResponse(headers={**headers, "Cache-Control": "no-cache"})
                stream.content_type = answer.content_type
                await stream.prepare(request)
                await self._pass_on(answer, stream, record)
                return stream
        except ClientLostError:
            raise
        except TimeoutError:
            refusal = Refusal(
                504, "upstream_timeout", f"no whole answer within {total_s:g} s", "ask for less"
            )
        except aiohttp.ClientError:
            refusal = broken()
        except Refusal as error:
            refusal = error
            if error.kind == "upstream_refused" and error.status == 404 and route.variant != "named":
                refusal = Refusal(
                    503, "adapter_missing", f"the engine does not have {route.label}", "load it again", 5
                )
        if stream is None:
            raise refusal
        # Status 200 is sent; clients of OpenAI raise on an event like this one.
        record.outcome = refusal.kind
        await self._send(stream, b"data: " + refusal.encode() + b"\n\n")
        return stream

    async def _whole(self, answer: Answer) -> bytes:
        content, most = bytearray(answer.first), self.settings.limits.answer_bytes
        while piece := await answer.rest.readany():
            content += piece
            if len(content) > most:
                raise Refusal(
                    502, "answer_too_large", f"the answer has more than {most} bytes", "ask for less"
                )
        return bytes(content)

    async def _pass_on(self, answer: Answer, stream: web.StreamResponse, record: Record) -> None:
        piece, seen = answer.first, b"\n"
        while piece:
            record.answer_bytes += len(piece)
            seen += piece
            if _ERROR_EVENT in seen:
                record.outcome = "upstream_error"
            seen = seen[-len(_ERROR_EVENT) :]
            await self._send(stream, piece)
            piece = await answer.rest.readany()

    async def _send(self, stream: web.StreamResponse, piece: bytes) -> None:
        try:
            async with asyncio.timeout(self.settings.limits.stall_s):
                await stream.write(piece)
        except TimeoutError:
            raise ClientLostError("client_stalled") from None
        except ConnectionError:
            raise ClientLostError("client_vanished") from None

    async def _finish_headers(self, request: web.Request, response: web.StreamResponse) -> None:
        if record := request.get(RECORD):  # What aiohttp refuses before the middleware has none.
            response.headers[REQUEST_ID] = record.request_id
        if self.draining:
            response.force_close()
            response.headers["Connection"] = "close"
