"""An OpenAI-compatible server over HTTP: bounded retries, and errors that say what to do."""

import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urlsplit

import httpx

from training.errors import ConfigError, SubstrateError

# A server that is overloaded, restarting or behind a busy balancer answers these; the same request may
# succeed a moment later.
_PASSING = frozenset({408, 425, 429, 500, 502, 503, 504})
INVOCATIONS = "/invocations"
_MODEL_ERROR = 424
_LONGEST_WAIT_S = 8.0
_LARGEST_ANSWER_BYTES = 8 * 2**20


# How vLLM says that a conversation leaves no room for the answer asked for.
_NO_ROOM = ("maximum context length", "longer than the maximum model length")


class NoRoom(ConfigError):
    """The conversation has become longer than the model can take."""


@dataclass(frozen=True)
class Retries:
    """How often a request is tried in all, and the first pause between tries, which then doubles."""

    attempts: int = 6
    first_wait_s: float = 0.25


class Endpoint:
    """One server, `base_url` with or without the trailing /v1; or a SageMaker endpoint by the address of its
    invocations, with what signs requests as `api_key`. Safe to use from several threads.

    A request may take `timeout_s` from its first byte to its last, so that a server which never ends an
    answer is treated like one that gives none.
    """

    def __init__(
        self,
        base_url: str,
        api_key: str | httpx.Auth | None = None,
        *,
        timeout_s: float = 60.0,
        connections: int = 16,
        retries: Retries | None = None,
    ):
        parts = urlsplit(base_url)
        if parts.scheme not in ("http", "https") or not parts.hostname:
            raise ConfigError(
                f"base_url {base_url!r} is not an address", "use for example http://127.0.0.1:8000"
            )
        self.url = base_url.rstrip("/").removesuffix("/v1")
        self._completions = self.url if self.url.endswith(INVOCATIONS) else f"{self.url}/v1/chat/completions"
        self._retries = retries or Retries()
        self._timeout_s = timeout_s
        signs = isinstance(api_key, httpx.Auth)
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key and not signs else {},
            auth=api_key if signs else None,
            timeout=httpx.Timeout(timeout_s, connect=min(timeout_s, 5.0)),
            limits=httpx.Limits(max_connections=connections, max_keepalive_connections=connections),
            # A proxy named in the environment cannot reach this machine's own loopback.
            trust_env=parts.hostname not in ("127.0.0.1", "localhost", "::1"),
        )

    def complete(self, body: dict[str, Any], stop: threading.Event | None = None) -> dict[str, Any]:
        """A chat completion of the server, as JSON; pauses end early when `stop` is set.

        Raises ConfigError if the server refuses the request (NoRoom for its length), SubstrateError if it
        does not answer.
        """
        stop = stop or threading.Event()
        pause_s, trouble = self._retries.first_wait_s, ""
        for attempt in range(self._retries.attempts):
            if attempt:
                if stop.wait(min(pause_s, _LONGEST_WAIT_S)):
                    break
                pause_s *= 2
            try:
                answer = _of_the_model(self._post(self._completions, body))
            except httpx.TransportError as error:
                trouble = f"{type(error).__name__}: {error}"
                continue
            if answer.is_success:
                return self._json(answer)
            trouble = f"status {answer.status_code}: {_message(answer)}"
            if answer.status_code not in _PASSING:
                raise self._refusal(answer, body)
        raise SubstrateError(
            f"{self.url} stopped answering for model {body.get('model')!r} ({trouble})",
            "look at the server's log; an evaluation continues from its records when started again",
        )

    def models(self) -> list[str]:
        """Names that the server answers to, adapters included; SubstrateError if it does not say."""
        try:
            answer = self._http.get("/v1/models").raise_for_status()
            return [entry["id"] for entry in answer.json()["data"]]
        except (httpx.HTTPError, ValueError, LookupError, TypeError) as error:
            raise SubstrateError(f"{self.url} does not list its models ({error})", "is it up?") from error

    def wait_until_served(
        self, models: str | Sequence[str], timeout_s: float, on_wait: Callable[[str], None] | None = None
    ) -> None:
        """Return once all `models` are served; `on_wait` hears why not yet. SubstrateError after the time."""
        wanted = {models} if isinstance(models, str) else set(models)
        deadline = time.monotonic() + timeout_s
        while True:
            try:
                missing = sorted(wanted - set(self.models()))
                reason = f"{self.url} does not serve {', '.join(missing)}" if missing else ""
            except SubstrateError as error:
                reason = error.problem
            if not reason:
                return
            if time.monotonic() >= deadline:
                raise SubstrateError(f"after {timeout_s:.0f} s: {reason}", "look at the server's log")
            if on_wait:
                on_wait(reason)
            time.sleep(0.5)

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    def _post(self, url: str, body: dict[str, Any]) -> httpx.Response:
        """One request, bounded in time and size: httpx itself only bounds the pauses between two pieces."""
        deadline = time.monotonic() + self._timeout_s
        with self._http.stream("POST", url, json=body) as answer:
            content = bytearray()
            for piece in answer.iter_bytes():
                content += piece
                if len(content) > _LARGEST_ANSWER_BYTES:
                    raise self.no_completion(f"{len(content)} bytes and more: {bytes(content[:100])!r}")
                if time.monotonic() > deadline:
                    raise httpx.ReadTimeout(f"no end after {self._timeout_s:g} s", request=answer.request)
        return httpx.Response(answer.status_code, content=bytes(content))

    def _json(self, answer: httpx.Response) -> dict[str, Any]:
        try:
            return answer.json()
        except ValueError as error:
            raise self.no_completion(answer.text) from error

    def no_completion(self, answer: object) -> SubstrateError:
        """The error for an answer that is not a chat completion."""
        return SubstrateError(
            f"{self.url} answered with something else than a chat completion: {str(answer)[:200]!r}",
            "point base_url at an OpenAI-compatible server such as vLLM",
        )

    def _refusal(self, answer: httpx.Response, body: dict[str, Any]) -> ConfigError:
        remedies = {
            401: "give the endpoint's API key",
            403: "give an API key, or use AWS credentials, that may use this model",
            404: f"ask {self.url}/v1/models for the names that it serves",
            413: "shorten the episode (max_turns) or raise the server's request limit",
        }
        model, status = body.get("model"), answer.status_code
        too_long = status == 400 and any(words in _message(answer) for words in _NO_ROOM)
        return (NoRoom if too_long else ConfigError)(
            f"{self.url} refuses model {model!r}: status {status}, {_message(answer)}",
            remedies.get(status, "the request does not fit the model; see the server's message"),
        )


def _of_the_model(answer: httpx.Response) -> httpx.Response:
    """What the model's own server said, where SageMaker wraps its refusal."""
    if answer.status_code != _MODEL_ERROR:
        return answer
    try:
        wrapped = answer.json()
        return httpx.Response(int(wrapped["OriginalStatusCode"]), content=str(wrapped["OriginalMessage"]))
    except (ValueError, LookupError, TypeError):
        return answer


def _message(answer: httpx.Response) -> str:
    try:
        error = answer.json()
        error = error.get("error", error)
        return str(error.get("message", error.get("Message", error)))[:300]
    except (ValueError, AttributeError):
        return answer.text[:300]
