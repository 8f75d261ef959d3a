"""The side for operators and rollouts, on a port of its own: metrics, aliases, draining of adapters."""

from collections.abc import Awaitable, Callable
from dataclasses import asdict

from aiohttp import web

from serving.gateway.app import Gateway
from serving.gateway.refusal import Refusal
from serving.gateway.shaping import shaped

_LONGEST_WAIT_S = 300.0


def application(gateway: Gateway) -> web.Application:
    """Every path asks for a key that may control."""

    @web.middleware
    async def known(
        request: web.Request, handler: Callable[[web.Request], Awaitable[web.StreamResponse]]
    ) -> web.StreamResponse:
        gateway.keyring.identify(request.headers.get("Authorization"), "control")
        return await handler(request)

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=gateway.metrics.text(), content_type="text/plain", charset="utf-8")

    async def aliases(_: web.Request) -> web.Response:
        """What is in use from this answer on: the file is read again first."""
        await gateway.aliases.refresh()
        state = {**asdict(gateway.aliases.value), "trouble": gateway.aliases.trouble}
        return web.json_response({**state, "in_flight": dict(gateway.adapters.counts)})

    async def adapter(request: web.Request) -> web.Response:
        """Whether an adapter can be unloaded: no new request comes to it, and none is under way, for which
        this waits up to ?wait_s."""
        name, wait_s = request.match_info["name"], _wait_s(request)
        await gateway.aliases.refresh()
        current = gateway.aliases.value
        routed = name in (current.live, current.canary)
        idle = not routed and await gateway.adapters.none_left(name, wait_s)
        return web.json_response(
            {
                "adapter": name,
                "aliases_version": current.version,
                "routed": routed,
                "in_flight": gateway.adapters.counts[name],
                "drained": idle,
            }
        )

    app = web.Application(middlewares=[shaped(), known])
    app.router.add_get("/metrics", metrics)
    app.router.add_get("/aliases", aliases)
    app.router.add_get("/adapters/{name}", adapter)
    return app


def _wait_s(request: web.Request) -> float:
    given = request.query.get("wait_s", "0")
    try:
        wait_s = float(given)
    except ValueError:
        wait_s = -1.0
    if not 0 <= wait_s <= _LONGEST_WAIT_S:
        raise Refusal(400, "invalid_request", f"wait_s is not a number from 0 to {_LONGEST_WAIT_S:g}")
    return wait_s
