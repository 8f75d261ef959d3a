"""Where adapters are served: an engine that loads them by name, whatever it runs on."""

import re
import threading
from collections.abc import Callable
from pathlib import Path
from time import monotonic
from typing import Any, Protocol

import httpx

from serving.aliases import served_name
from serving.endpoint import Endpoint
from training.errors import ConfigError, DataError, SubstrateError

_LOAD_S = 120.0
_POLL_S = 0.1
_SERVICE_POLL_S = 1.0
_AT_WORK = re.compile(r"^vllm:num_requests_(?:running|waiting)(?:\{.*\})? (\S+)$", re.M)
_ADAPTERS = re.compile(r"^vllm:lora_requests_info\{(.*)\} (\S+)$", re.M)


class Destination(Protocol):
    """`model_id` is the engine's name for the base; adapters are named as in adapter.json.

    SubstrateError where the engine does not answer.
    """

    model_id: str

    @property
    def url(self) -> str:
        """The engine's address at the moment, as `serving.endpoint` takes it; "" while there is no engine."""

    def access(self, name: str | None) -> str | httpx.Auth | None:
        """An API key, or what signs requests to an adapter, or to the base (None)."""

    def load(self, folder: Path) -> None:
        """Have the packaged adapter of a folder served under its name; again is no harm. DataError when the
        engine refuses it. The folder has to stay: an engine reads it again when it needs the room."""

    def unload(self, name: str) -> None:
        """Forget an adapter that takes no requests any more; nothing to do where there is none."""

    def loaded(self) -> set[str]:
        """The adapters that are served."""

    def drain(self, name: str, timeout_s: float) -> bool:
        """Whether the engine works on no request of an adapter, waiting for that up to `timeout_s`."""


class Vllm:
    """One vLLM server that may load adapters while it runs (VLLM_ALLOW_RUNTIME_LORA_UPDATING=1).

    It has to see the adapters' folders under the same paths as we do.
    """

    def __init__(self, url: str, model_id: str, api_key: str | None = None):
        self._endpoint = Endpoint(url, api_key, timeout_s=_LOAD_S)
        self.url, self.model_id, self._api_key = self._endpoint.url, model_id, api_key
        self._http = httpx.Client(
            base_url=self.url,
            headers={"Authorization": f"Bearer {api_key}"} if api_key else {},
            timeout=httpx.Timeout(_LOAD_S, connect=5.0),
            trust_env=False,
        )

    def access(self, name: str | None) -> str | None:
        return self._api_key

    def load(self, folder: Path) -> None:
        name = served_name(self.model_id, folder.name)
        if folder.name not in self.loaded():
            body = {"lora_name": name, "lora_path": str(folder.resolve())}
            answer = self._post("/v1/load_lora_adapter", body)
            if answer.status_code == 404 and "lora" not in answer.text.lower():
                raise ConfigError(
                    f"{self.url} loads no adapters while it runs",
                    "start it with VLLM_ALLOW_RUNTIME_LORA_UPDATING=1 and --enable-lora",
                )
            if answer.is_error:
                raise DataError(
                    f"{self.url} refuses to load {name}: status {answer.status_code}, {answer.text[:300]}",
                    "see the server's log; the adapter that is live is not touched",
                )
        if folder.name not in self.loaded():
            raise SubstrateError(f"{self.url} loaded {name} and does not list it", "see the server's log")

    def unload(self, name: str) -> None:
        if name in self.loaded():
            answer = self._post("/v1/unload_lora_adapter", {"lora_name": served_name(self.model_id, name)})
            if answer.is_error and answer.status_code != 404:
                raise SubstrateError(
                    f"{self.url} does not unload {name}: status {answer.status_code}, {answer.text[:300]}",
                    "see the server's log",
                )

    def loaded(self) -> set[str]:
        prefix = f"{self.model_id}:"
        return {name.removeprefix(prefix) for name in self._endpoint.models() if name.startswith(prefix)}

    def drain(self, name: str, timeout_s: float) -> bool:
        return wait(lambda: not self._works_on(served_name(self.model_id, name)), timeout_s)

    def _works_on(self, name: str) -> bool:
        """By the engine's own gauges. The one of adapters keeps its last words when the engine goes idle."""
        try:
            text = self._http.get("/metrics").raise_for_status().text
        except httpx.HTTPError as error:
            raise SubstrateError(f"{self.url}/metrics does not answer ({error})", "is it up?") from error
        if not any(float(count) for count in _AT_WORK.findall(text)):
            return False
        said = [(float(at), labels) for labels, at in _ADAPTERS.findall(text)]
        if not said:
            return True
        return any(name in label.split(",") for label in max(said)[1].split('"')[1::2])

    def _post(self, path: str, body: dict[str, Any]) -> httpx.Response:
        try:
            return self._http.post(path, json=body)
        except httpx.TransportError as error:
            raise SubstrateError(
                f"{self.url}{path} does not answer ({type(error).__name__}: {error})", "is the server up?"
            ) from error


class RayService:
    """A RayService whose replicas fetch adapters by name from S3 on first use, and forget the oldest.

    `address` tells its URL at the moment, "" while there is none. `serve` has the service's stack serve a
    packaged adapter that lies in S3, and waits until the service is ready. Unloading is the replicas' own
    business. Ray Serve lists every adapter that lies in S3, so it is no sign that the stack knows of one.
    """

    def __init__(
        self,
        model_id: str,
        address: Callable[[], str],
        serve: Callable[[Path], None],
        timeout_s: float = 240.0,
    ):
        self.model_id = model_id
        self._address, self._serve = address, serve
        self._timeout_s = timeout_s

    @property
    def url(self) -> str:
        return self._address()

    def access(self, name: str | None) -> None:
        return None

    def load(self, folder: Path) -> None:
        self._serve(folder)
        trouble = ""

        def there() -> bool:
            nonlocal trouble
            try:
                return folder.name in self.loaded()
            except SubstrateError as error:  # it moves from one address to another
                trouble = error.problem
                return False

        if not wait(there, self._timeout_s, _SERVICE_POLL_S):
            raise SubstrateError(
                f"{folder.name} is not served after {self._timeout_s:g} s{trouble and f': {trouble}'}",
                "see the replicas' logs",
            )

    def unload(self, name: str) -> None:
        pass

    def loaded(self) -> set[str]:
        prefix, url = f"{self.model_id}:", self.url
        names = Endpoint(url).models() if url else ()
        return {name.removeprefix(prefix) for name in names if name.startswith(prefix)}

    def drain(self, name: str, timeout_s: float) -> bool:
        return True


def wait(until: Callable[[], bool], timeout_s: float, poll_s: float = _POLL_S) -> bool:
    """Whether `until` came true within the time; it is asked at least once."""
    deadline, pause = monotonic() + timeout_s, threading.Event()
    while not until():
        if monotonic() > deadline:
            return False
        pause.wait(poll_s)
    return True
