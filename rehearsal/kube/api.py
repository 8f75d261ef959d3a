"""The HTTP face of the stand-in: an ASGI application that routes Kubernetes API paths to `Resources`."""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import yaml

from rehearsal.kube import discovery, watch
from rehearsal.kube.auth import Authenticator
from rehearsal.kube.kinds import Kind
from rehearsal.kube.podlogs import read_log
from rehearsal.kube.resources import Resources, Write
from rehearsal.kube.status import ApiError

Object = dict[str, Any]
log = logging.getLogger("kube.api")
LARGEST_BODY = 3 * 1024 * 1024
_OPEN_PATHS = ("healthz", "livez", "readyz")


class Api:
    def __init__(self, resources: Resources, authenticator: Authenticator, pods_dir: Path, server: str):
        self._resources = resources
        self._authenticator = authenticator
        self._pods_dir = pods_dir
        self._server = server

    async def __call__(self, scope: Object, receive, send) -> None:
        if scope["type"] == "lifespan":
            await _lifespan(receive, send)
            return
        if scope["type"] != "http":
            return
        request = _Request(scope, receive)
        warnings: list[str] = []
        user = ""
        try:
            if request.parts and request.parts[0] in _OPEN_PATHS:
                await _send(send, 200, b"ok", "text/plain")
                return
            user = await self._authenticator.user(request.header("authorization"))
            answer = await self._route(request, warnings)
        except ApiError as error:
            answer = error.code, error.body()
        except Exception as error:
            log.exception("%s %s", request.method, request.path)
            answer = 500, ApiError(500, f"{type(error).__name__}: {error}").body()
        if isinstance(answer, tuple):
            code, body = answer
            log.info("%s %s %s %s", code, request.method, request.url, user)
            text = isinstance(body, str)
            payload = body.encode() if text else json.dumps(body).encode()
            await _send(send, code, payload, "text/plain" if text else "application/json", warnings)
        else:
            log.info("200 %s %s %s", request.method, request.url, user)
            await _send_stream(receive, send, answer)

    async def _route(self, request: _Request, warnings: list[str]):
        parts = request.parts
        if parts == ["version"]:
            registry, validator = self._resources.registry, self._resources.validator
            return 200, discovery.version(
                [f"{k.api_version} {k.kind}" for k in registry if not validator.has_schema(k)]
            )
        found = discovery.answer(self._resources.registry, parts, self._server)
        if found is not None:
            return 200, found
        target = self._target(parts)
        if target is None:
            raise ApiError(404, f"the server could not find the requested resource: {request.path}")
        kind, namespace, name, subresource = target
        if kind.kind == "Pod" and subresource == "log" and request.method == "GET":
            return self._log(request, kind, namespace, name)
        if subresource not in ("", "status"):
            raise ApiError(404, f"{kind.qualified}/{subresource} is not served here")
        if request.method == "GET":
            return self._read(request, kind, namespace, name)
        body = await request.body()
        how = Write(
            request.query.get("fieldManager") or request.header("user-agent").split("/")[0] or "unknown",
            subresource,
            request.query.get("fieldValidation") or "Strict",
            request.query.get("force", "").lower() in ("true", "1"),
            "All" in request.query.get("dryRun", ""),
        )
        if request.method == "DELETE" and not subresource:
            return self._delete(request, kind, namespace, name, body or {})
        if request.method == "POST" and not name:
            obj, notes = self._resources.create(kind, namespace, body, how)
            code = 201
        elif request.method == "PUT" and name:
            obj, notes = self._resources.replace(kind, namespace, name, body, how)
            code = 200
        elif request.method == "PATCH" and name:
            if request.media_type == "application/apply-patch+yaml" and not request.query.get("fieldManager"):
                raise ApiError(422, "PatchOptions.meta.k8s.io is invalid: fieldManager: Required value")
            obj, notes = self._resources.patch(kind, namespace, name, request.media_type, body, how)
            code = 200
        else:
            raise ApiError(405, f"{request.method} is not allowed on {request.path}")
        warnings += notes
        return code, obj

    def _target(self, parts: list[str]) -> tuple[Kind, str, str, str] | None:
        """(kind, namespace, name, subresource) of a resource path, with "" for what it leaves out."""
        match parts:
            case ["api", version, *rest]:
                group = ""
            case ["apis", group, version, *rest]:
                pass
            case _:
                return None
        namespace = ""
        if rest[:1] == ["namespaces"] and len(rest) >= 3:
            kind = self._resources.registry.get(group, version, rest[2])
            if kind is not None and kind.namespaced:
                namespace, rest = rest[1], rest[2:]
        if not 1 <= len(rest) <= 3:
            return None
        kind = self._resources.registry.get(group, version, rest[0])
        if kind is None or (kind.namespaced and len(rest) > 1 and not namespace):
            return None
        padded = [*rest[1:], "", ""]
        return kind, namespace, padded[0], padded[1]

    def _read(self, request: _Request, kind: Kind, namespace: str, name: str):
        store, query = self._resources.store, request.query
        if name:
            return 200, store.get(kind, namespace, name)
        if query.get("continue"):
            raise ApiError(400, "continue: lists are never split here, so there is nothing to continue")
        labels = watch.label_filter(query.get("labelSelector", ""))
        fields = watch.field_filter(query.get("fieldSelector", ""))

        def keep(obj: Object) -> bool:
            return labels(obj) and fields(obj)

        if query.get("watch", "").lower() in ("true", "1"):
            return watch.stream(
                store,
                kind,
                namespace,
                keep,
                resource_version=query.get("resourceVersion", ""),
                timeout_s=float(query.get("timeoutSeconds") or watch.LONGEST_S),
                bookmarks=query.get("allowWatchBookmarks", "").lower() in ("true", "1"),
            )
        return 200, {
            "kind": f"{kind.kind}List",
            "apiVersion": kind.api_version,
            "metadata": {"resourceVersion": str(store.version)},
            "items": [obj for obj in store.list(kind, namespace) if keep(obj)],
        }

    def _delete(self, request: _Request, kind: Kind, namespace: str, name: str, body: Object):
        options = body | {k: v for k, v in request.query.items() if k == "propagationPolicy"}
        if "gracePeriodSeconds" in request.query:
            options["gracePeriodSeconds"] = int(request.query["gracePeriodSeconds"])
        if name:
            obj, gone = self._resources.delete(kind, namespace, name, options)
            if not gone or kind.kind == "Pod":
                return 200, obj
            details = {
                "name": name,
                "group": kind.group,
                "kind": kind.plural,
                "uid": obj["metadata"]["uid"],
            }
            return 200, {
                "kind": "Status",
                "apiVersion": "v1",
                "metadata": {},
                "status": "Success",
                "details": details,
            }
        code, found = self._read(request, kind, namespace, "")
        for obj in found["items"]:
            metadata = obj["metadata"]
            self._resources.delete(kind, metadata.get("namespace", ""), metadata["name"], options)
        return code, found

    def _log(self, request: _Request, kind: Kind, namespace: str, name: str):
        pod = self._resources.store.get(kind, namespace, name)
        container = request.query.get("container") or pod["spec"]["containers"][0]["name"]
        path = self._pods_dir / pod["metadata"]["uid"] / f"{container}.log"
        if not path.exists():
            raise ApiError(400, f'container "{container}" in pod "{name}" is waiting to start')
        tail = int(request.query["tailLines"]) if "tailLines" in request.query else None
        if request.query.get("follow", "").lower() not in ("true", "1"):
            return 200, read_log(path, tail)
        return self._followed(path, tail, kind, pod)

    async def _followed(self, path: Path, tail: int | None, kind: Kind, pod: Object) -> AsyncIterator[bytes]:
        yield read_log(path, tail).encode()
        offset = path.stat().st_size
        metadata = pod["metadata"]
        ended = False
        while not ended:
            try:
                live = self._resources.store.get(kind, metadata["namespace"], metadata["name"])
                ended = (live.get("status") or {}).get("phase") in ("Succeeded", "Failed")
            except ApiError:
                ended = True
            with path.open("rb") as file:
                file.seek(offset)
                more = file.read()
            offset += len(more)
            if more:
                yield more
            if not ended:
                await asyncio.sleep(0.3)


class _Request:
    """One HTTP request: `parts` of its path, `query` (last value wins), and the decoded body."""

    def __init__(self, scope: Object, receive):
        self.method: str = scope["method"]
        self.path: str = scope["path"]
        self.parts = [part for part in self.path.split("/") if part]
        raw = scope["query_string"].decode()
        self.url = f"{self.path}?{raw}" if raw else self.path
        self.query = {key: values[-1] for key, values in parse_qs(raw, keep_blank_values=True).items()}
        self._headers = {key.decode().lower(): value.decode() for key, value in scope["headers"]}
        self._receive = receive

    def header(self, name: str) -> str:
        return self._headers.get(name, "")

    @property
    def media_type(self) -> str:
        return self.header("content-type").split(";")[0].strip() or "application/json"

    async def body(self) -> Any:
        """The body as JSON or YAML, or None. Raises a 400, 413 or 415."""
        raw = b""
        more = True
        while more:
            message = await self._receive()
            if message["type"] != "http.request":
                raise ApiError(400, "the client hung up in the middle of its request")
            raw += message.get("body", b"")
            more = message.get("more_body", False)
            if len(raw) > LARGEST_BODY:
                raise ApiError(413, f"the body is larger than {LARGEST_BODY} bytes")
        if not raw.strip():
            return None
        if "protobuf" in self.media_type:
            raise ApiError(415, "protobuf is not spoken here, send JSON or YAML")
        try:
            if "yaml" in self.media_type:
                return yaml.safe_load(raw)
            return json.loads(raw)
        except (ValueError, yaml.YAMLError) as error:
            raise ApiError(400, f"the body cannot be decoded as {self.media_type}: {error}") from error


async def _lifespan(receive, send) -> None:
    while True:
        message = await receive()
        await send({"type": f"{message['type']}.complete"})
        if message["type"] == "lifespan.shutdown":
            return


async def _send(send, code: int, body: bytes, media_type: str, warnings: list[str] | None = None) -> None:
    headers = [(b"content-type", media_type.encode()), (b"content-length", str(len(body)).encode())]
    for text in warnings or []:
        headers.append((b"warning", f"299 - {json.dumps(text)}".encode("ascii", "replace")))
    await send({"type": "http.response.start", "status": code, "headers": headers})
    await send({"type": "http.response.body", "body": body})


async def _send_stream(receive, send, chunks: AsyncIterator[bytes]) -> None:
    """Send chunks until they end or the client goes away."""
    headers = [(b"content-type", b"application/json")]
    await send({"type": "http.response.start", "status": 200, "headers": headers})
    gone = asyncio.ensure_future(_until_disconnect(receive))
    try:
        while True:
            step = asyncio.ensure_future(anext(chunks, None))
            await asyncio.wait({step, gone}, return_when=asyncio.FIRST_COMPLETED)
            if not step.done():
                step.cancel()
                await asyncio.wait({step})
                return
            chunk = step.result()
            if chunk is None:
                break
            await send({"type": "http.response.body", "body": chunk, "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})
    finally:
        gone.cancel()


async def _until_disconnect(receive) -> None:
    while (await receive())["type"] != "http.disconnect":
        pass
