"""The one-port server: requests go to the emulated control planes here, all others to ministack."""

from __future__ import annotations

import asyncio
import json
import logging
import re
from collections.abc import Awaitable, Callable
from typing import Any

from hypercorn.asyncio import serve
from hypercorn.config import Config
from ministack import app as ministack_app
from ministack.core import responses

from rehearsal.aws import (
    buckets,
    budgets,
    codebuild,
    eks,
    fsx,
    grafana,
    hyperpod,
    lambdas,
    models,
    network,
    patience,
    policies,
    prometheus,
    scaling,
    topics,
)
from rehearsal.aws.codebuild import CodeBuild
from rehearsal.aws.models import ApiError
from rehearsal.aws.options import Options
from rehearsal.aws.service import Service

log = logging.getLogger("rehearsal.aws")

_CREDENTIAL = re.compile(r"Credential=([^/]+)/[^/]+/([^/]+)/([^/]+)/")
Send = Callable[[dict[str, Any]], Awaitable[None]]
Receive = Callable[[], Awaitable[dict[str, Any]]]


def build(options: Options) -> Callable[..., Awaitable[None]]:
    """The ASGI application. Registers every resource type with ministack's engine: once per process."""
    services: list[Service] = [CodeBuild()]
    workspaces = grafana.Grafana()
    for made, register in (
        (hyperpod.HyperPod(), hyperpod.register),
        (workspaces, grafana.register),
        (fsx.Fsx(), fsx.register),
        (prometheus.Prometheus(), prometheus.register),
        (scaling.Scaling(), scaling.register),
    ):
        register(made)
        services.append(made)
    network.register()
    buckets.register()
    budgets.register()
    topics.register()
    codebuild.register()
    policies.register()
    eks.register(options.kube_endpoint, options.kube_ca)
    by_signing = {service.signing: service for service in services}

    async def app(scope: dict[str, Any], receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await ministack_app.app(scope, receive, send)
            return
        headers = {key.decode("latin-1").lower(): value.decode("latin-1") for key, value in scope["headers"]}
        if scope["path"].startswith(grafana.HTTP_PREFIX):
            query = scope.get("query_string", b"").decode()
            status, answer = workspaces.http(
                scope["method"], scope["path"], query, headers, await _read(receive)
            )
            await _respond(send, status, {}, answer)
            return
        credential = _CREDENTIAL.search(headers.get("authorization", ""))
        signing = credential[3] if credential else ""
        if not credential or (signing not in by_signing and signing != "cloudformation"):
            await ministack_app.app(scope, receive, send)
            return
        body = await _read(receive)
        responses.set_request_account_id(credential[1])
        responses.set_request_region(credential[2])
        service = by_signing.get(signing)
        if service is None or _left_to_ministack(service, headers):
            stack = patience.stack_of(body)
            if stack is not None:
                await patience.until_settled(stack)
            await ministack_app.app(scope, _replay(body), send)
            return
        caller = credential[1] if options.enforce_iam else None
        status, extra, answer = await asyncio.to_thread(_answer, service, scope, headers, body, caller)
        await _respond(send, status, extra, answer)

    return app


async def _respond(send: Send, status: int, extra: dict[str, str], answer: bytes) -> None:
    fields = {"content-type": "application/json", "content-length": str(len(answer)), **extra}
    start = {"type": "http.response.start", "status": status}
    await send({**start, "headers": [(k.encode(), v.encode()) for k, v in fields.items()]})
    await send({"type": "http.response.body", "body": answer})


def _answer(
    service: Service, scope: dict[str, Any], headers: dict[str, str], body: bytes, caller: str | None
) -> tuple[int, dict[str, str], bytes]:
    query = scope.get("query_string", b"").decode()
    path = scope.get("raw_path", scope["path"].encode()).decode().partition("?")[0]
    try:
        if caller is not None:
            policies.check_caller(caller)
        name, params = models.parse_request(service.model, scope["method"], path, query, headers, body)
        return 200, {}, models.render(service.model, name, service.call(name, params))
    except ApiError as error:
        document = {"__type": error.code, "message": error.message, "Message": error.message}
        return error.status, {"x-amzn-errortype": error.code}, json.dumps(document).encode()
    except Exception as error:
        log.exception("%s %s", service.model, scope["path"])
        document = {"__type": "InternalFailure", "message": f"{type(error).__name__}: {error}"}
        return 500, {"x-amzn-errortype": "InternalFailure"}, json.dumps(document).encode()


def _left_to_ministack(service: Service, headers: dict[str, str]) -> bool:
    # ministack has CodeBuild; only the start of a build is ours.
    name = headers.get("x-amz-target", "").rpartition(".")[2]
    return isinstance(service, CodeBuild) and not service.implements(name)


async def _read(receive: Receive) -> bytes:
    parts = []
    while True:
        message = await receive()
        parts.append(message.get("body", b""))
        if not message.get("more_body"):
            return b"".join(parts)


def _replay(body: bytes) -> Receive:
    messages = iter([{"type": "http.request", "body": body, "more_body": False}])

    async def receive() -> dict[str, Any]:
        return next(messages, {"type": "http.disconnect"})

    return receive


async def run(options: Options, stopped: Callable[[], Awaitable[None]]) -> None:
    """Serve on 127.0.0.1 until `stopped` returns."""
    config = Config()
    config.bind = [f"127.0.0.1:{options.port}"]
    if options.enforce_iam:
        folder = options.state_dir / "tls"
        config.certfile, config.keyfile = str(folder / "server.pem"), str(folder / "server.key")
    config.keep_alive_timeout = 75
    config.accesslog = None
    config.errorlog = "-"
    config.graceful_timeout = 0.2
    app = build(options)
    reaper = asyncio.create_task(lambdas.end_idle())
    await serve(app, config, shutdown_trigger=stopped)
    reaper.cancel()
