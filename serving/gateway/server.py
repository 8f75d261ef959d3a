"""Runs the gateway: listens, follows its files, and ends without losing what it accepted."""

import asyncio
import logging
import ssl
import warnings
from collections.abc import Callable
from typing import Any

from aiohttp import web
from PIL import Image

from serving.gateway import control
from serving.gateway.app import CHAT, Gateway
from serving.gateway.following import Followed
from serving.gateway.records import write
from serving.gateway.settings import Settings, Tls
from training.errors import ConfigError, SubstrateError

# Beyond the end of a drain: to write the last bytes, or to cut what is left.
_LAST_S = 1.0
_LINGER_S = 2.0


async def serve(
    settings: Settings, stop: asyncio.Event, listening: Callable[[int, int], None] = lambda *ports: None
) -> bool:
    """Serve until `stop`, then drain; whether everything accepted was answered.

    `listening` hears the public and the control port once both are open. Raises ConfigError or DataError for
    files that cannot be used, SubstrateError for a port that cannot be had.
    """
    _limit_pillow(settings.limits.image_pixels)
    gateway = Gateway(settings)
    try:
        public = await _listen(
            gateway.application(), settings, settings.host, settings.port, _tls(settings.tls)
        )
        private = await _listen(
            control.application(gateway), settings, settings.control_host, settings.control_port
        )
        following = asyncio.create_task(_follow(gateway))
        ports = public.addresses[0][1], private.addresses[0][1]
        write("listening", port=ports[0], control_port=ports[1], upstream=settings.upstream.url)
        listening(*ports)
        await stop.wait()
        finished = await _drain(gateway, public)
        following.cancel()
        await private.cleanup()
        return finished
    finally:
        await gateway.close()


async def _listen(
    app: web.Application, settings: Settings, host: str, port: int, tls: ssl.SSLContext | None = None
) -> web.AppRunner:
    # Its log would quote requests that it cannot parse.
    silent = logging.getLogger("serving.gateway.http")
    silent.disabled = True
    runner = web.AppRunner(
        app,
        access_log=None,
        logger=silent,
        handler_cancellation=True,
        auto_decompress=False,
        keepalive_timeout=settings.limits.idle_s,
        lingering_time=_LINGER_S,
        shutdown_timeout=_LAST_S,
    )
    await runner.setup()
    try:
        await web.TCPSite(runner, host, port, ssl_context=tls).start()
    except OSError as error:
        await runner.cleanup()
        raise SubstrateError(
            f"cannot listen on {host}:{port} ({error.strerror})", "give another host or port, or 0 for any"
        ) from None
    return runner


async def _follow(gateway: Gateway) -> None:
    said: tuple[int, str, str] | None = None

    async def follow(file: Followed[Any]) -> None:
        nonlocal said
        while True:
            await file.refresh()
            current = gateway.aliases.value
            state = (current.version, gateway.aliases.trouble, gateway.keys.trouble)
            if state != said:
                said = state
                live, canary = current.live, current.canary
                write("aliases", version=state[0], live=live, canary=canary, trouble=state[1:])
            await asyncio.sleep(gateway.settings.follow_s)

    # Apart, because they may lie on different file systems, of which one hangs.
    await asyncio.gather(follow(gateway.aliases), follow(gateway.keys))


async def _drain(gateway: Gateway, public: web.AppRunner) -> bool:
    """Balancers see that it is not ready before anything is refused; what was accepted is then finished."""
    drain, gateway.draining = gateway.settings.drain, True
    write("draining", under_way=gateway.requests.counts[CHAT])
    await asyncio.sleep(drain.notice_s)
    for site in public.sites:
        await site.stop()
    gateway.closed = True
    finished = await gateway.requests.none_left(CHAT, drain.deadline_s)
    left, gateway.cutting = gateway.requests.counts[CHAT], True
    await public.cleanup()
    write("drained", cut=left)
    return finished


def _limit_pillow(pixels: int) -> None:
    """Pillow raises above twice its limit, and for WebP only that happens before it takes the memory."""
    Image.MAX_IMAGE_PIXELS = max(1, pixels // 2)
    warnings.simplefilter("ignore", Image.DecompressionBombWarning)


def _tls(tls: Tls | None) -> ssl.SSLContext | None:
    if tls is None:
        return None
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH)
    try:
        context.load_cert_chain(tls.certificate, tls.key)
    except (OSError, ssl.SSLError) as error:
        raise ConfigError(
            f"{tls.certificate} and {tls.key}: {error}", "give a PEM chain and its key"
        ) from None
    return context
