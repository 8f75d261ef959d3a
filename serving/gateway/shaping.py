"""Every error in OpenAI's shape, whoever raised it; every request counted and recorded."""

import asyncio
import traceback
from collections.abc import Awaitable, Callable
from pathlib import PurePath

from aiohttp import web
from aiohttp.typedefs import Middleware

from serving.gateway import records
from serving.gateway.metrics import Metrics
from serving.gateway.records import Record
from serving.gateway.refusal import Refusal

RECORD = web.RequestKey("record", Record)
_HTTP = {
    404: ("not_found", "there is nothing at this path", "use /v1/chat/completions or /v1/models"),
    405: ("not_found", "this path does not take this method", "POST /v1/chat/completions, GET /v1/models"),
    413: ("body_too_large", "the body is too large", "send less"),
}


class ClientLostError(ConnectionError):
    """The client does not take its answer; `kind` says how."""

    def __init__(self, kind: str):
        super().__init__(kind)
        self.kind = kind


def shaped(
    metrics: Metrics | None = None,
    recorded: tuple[str, ...] = (),
    cutting: Callable[[], bool] = lambda: False,
) -> Middleware:
    """The middleware; with metrics, requests to the `recorded` paths and all refused ones get a record.

    `cutting` tells whether a request is cancelled by the gateway's end rather than by its client's.
    """

    @web.middleware
    async def middleware(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        record = request[RECORD] = Record()
        try:
            response = await handler(request)
            record.status = response.status
            return response
        except (asyncio.CancelledError, ConnectionError) as error:
            record.outcome = "cut_by_drain" if cutting() else getattr(error, "kind", "client_vanished")
            if request.transport:
                request.transport.abort()
            raise
        except Exception as error:
            refusal = _refusal(error)
            record.outcome, record.status = refusal.kind, refusal.status
            return refusal.response()
        finally:
            if metrics and (request.path in recorded or record.outcome != "ok"):
                record.close(metrics)

    return middleware


def _refusal(error: Exception) -> Refusal:
    if isinstance(error, Refusal):
        return error
    if isinstance(error, web.HTTPException):
        kind, problem, remedy = _HTTP.get(error.status, ("invalid_request", error.reason, ""))
        return Refusal(error.status, kind, problem, remedy)
    # The message of an error may quote a request; where it happened does not.
    frames = traceback.extract_tb(error.__traceback__)[-4:]
    places = [f"{PurePath(frame.filename).name}:{frame.lineno}" for frame in frames]
    records.write("bug", error=type(error).__name__, at_lines=places)
    return Refusal(500, "bug", "the gateway failed", "report it with the answer's X-Request-Id")
