"""The engine behind the gateway, over a pool of kept connections."""

import asyncio
import io
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import aiohttp

from serving.gateway.refusal import Refusal
from serving.gateway.settings import Upstream

# vLLM closes connections that were idle for 5 s; one that is reused just then costs a second try.
_KEEP_S = 4.0
_LARGEST_ERROR_BYTES = 64 * 2**10
# What the engine says of a request, rather than of itself.
_ABOUT_THE_REQUEST = (400, 404, 413, 422)


@dataclass(frozen=True)
class Answer:
    """An answer of status 200: its first piece, and where the others come from."""

    content_type: str
    first: bytes
    rest: aiohttp.StreamReader


class Engine:
    """The one upstream server. Use inside a running event loop; close at the end."""

    def __init__(self, settings: Upstream, api_key: str | None):
        self._settings = settings
        self._url = settings.url.rstrip("/").removesuffix("/v1")
        self._http = aiohttp.ClientSession(
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=settings.connect_s),
            # The slots limit how many there are.
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=_KEEP_S),
        )

    async def close(self) -> None:
        """Close the connections."""
        await self._http.close()

    async def trouble(self) -> str:
        """Why the engine cannot take requests, "" when it can."""
        try:
            async with asyncio.timeout(self._settings.connect_s):
                async with self._http.get(f"{self._url}/v1/models") as answer:
                    return "" if answer.status == 200 else f"it answers with status {answer.status}"
        except (aiohttp.ClientError, TimeoutError) as error:
            return f"it does not answer ({type(error).__name__})"

    @asynccontextmanager
    async def chat(self, body: bytes, request_id: str) -> AsyncIterator[Answer]:
        """Ask for a completion. Leaving early, also by cancellation, closes the connection, and with it the
        engine stops computing. Raises Refusal for everything that is no answer."""
        response, first = await self._begin(body, request_id)
        try:
            if response.status != 200:
                raise await _refusal(response, first)
            yield Answer(response.content_type, first, response.content)
        finally:
            response.close()

    async def _begin(self, body: bytes, request_id: str) -> tuple[aiohttp.ClientResponse, bytes]:
        """The response and its first piece. One try more when the connection ended before it: a completion
        changes nothing, so asking twice does no harm."""
        for last in (False, True):
            try:
                async with asyncio.timeout(self._settings.first_byte_s):
                    return await self._post(body, request_id)
            except (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError):
                raise Refusal(
                    503, "upstream_unreachable", "the engine is down", "try again later", retry_after_s=5
                ) from None
            except TimeoutError:
                problem = f"the engine did not begin to answer within {self._settings.first_byte_s:g} s"
                raise Refusal(504, "upstream_timeout", problem, "ask for less, or again later") from None
            except aiohttp.ClientError:
                if last:
                    raise broken() from None
        raise AssertionError("unreachable")

    async def _post(self, body: bytes, request_id: str) -> tuple[aiohttp.ClientResponse, bytes]:
        headers = {"Content-Type": "application/json", "X-Request-Id": request_id}
        response = await self._http.post(
            f"{self._url}/v1/chat/completions",
            data=io.BytesIO(body),
            headers=headers,
            allow_redirects=False,
        )
        try:
            return response, await response.content.readany()
        except BaseException:
            response.close()
            raise


def broken() -> Refusal:
    """The engine ended an answer before its end, or gave something else."""
    return Refusal(
        502, "upstream_broke", "the engine gave no whole answer", "try again later", retry_after_s=5
    )


async def _refusal(response: aiohttp.ClientResponse, first: bytes) -> Refusal:
    """What the engine's error means for the client. Only errors about the request are quoted."""
    status = response.status
    if status in _ABOUT_THE_REQUEST:
        content = first
        while len(content) < _LARGEST_ERROR_BYTES and (piece := await response.content.readany()):
            content += piece
        return Refusal(status, "upstream_refused", _message(content) or f"the engine says {status}")
    if status in (429, 503):
        return Refusal(503, "upstream_busy", "the engine is busy", "try again later", retry_after_s=2)
    if status in (401, 403):
        return Refusal(502, "upstream_key", "the engine refuses the gateway's key", "correct its key_file")
    return Refusal(
        502, "upstream_error", f"the engine failed with status {status}", "try again later", retry_after_s=5
    )


def _message(content: bytes) -> str:
    try:
        error: Any = json.loads(content)
        error = error.get("error", error)
        return str(error["message"] if isinstance(error, dict) else error)[:1000]
    except (ValueError, LookupError, AttributeError):
        return ""
