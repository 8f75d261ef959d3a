"""Training as a Ray job: submitted once, owned by the cluster, followed from anywhere."""

import asyncio
import http.client
import json
import os
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from training.errors import SubstrateError
from training.events import parse

ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
Event = dict[str, Any]
_RAY_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_LOST_TRIES = 10
_ANSWER_S = 15.0
"""A dashboard whose process is stopped accepts connections and never answers."""


@dataclass(frozen=True)
class Endpoint:
    """The dashboard of a Ray cluster; `token` is the cluster's, never printed."""

    url: str
    token: str

    def __repr__(self) -> str:
        return f"Endpoint({self.url!r})"

    @property
    def headers(self) -> dict[str, str]:
        """What a request must carry; empty where the cluster has no authentication."""
        return {"Authorization": f"Bearer {self.token}"} if self.token else {}


@dataclass(frozen=True)
class Outcome:
    """How a job ended; `message` is Ray's own account of it."""

    status: str
    message: str
    log: str

    @property
    def succeeded(self) -> bool:
        return self.status == "SUCCEEDED"


def _client(endpoint: Endpoint) -> Any:
    from ray.job_submission import JobSubmissionClient

    try:
        with _only(endpoint.url):
            return JobSubmissionClient(endpoint.url, headers=endpoint.headers or None)
    except (OSError, RuntimeError) as error:
        raise SubstrateError(
            f"the Ray dashboard at {endpoint.url} does not answer: {error}",
            "see whether the RayCluster is ready; on AWS forward its dashboard port",
        ) from error


@contextmanager
def _only(url: str) -> Iterator[None]:
    """Ray prefers addresses in its environment to the one it is given; and loopback needs no proxy."""
    hidden = {name: os.environ.pop(name) for name in _RAY_ADDRESSES if name in os.environ}
    if "//127.0.0.1:" in url:
        for name in ("NO_PROXY", "no_proxy"):
            os.environ[name] = ",".join(filter(None, [os.environ.get(name), "127.0.0.1"]))
    try:
        yield
    finally:
        os.environ.update(hidden)


@dataclass(frozen=True)
class Job:
    """A submitted job; `exit_code` is that of its driver, None while it runs or when nobody saw it end."""

    job: str
    run: str
    status: str
    message: str
    exit_code: int | None

    @property
    def ended(self) -> bool:
        return self.status in ENDED


@dataclass(frozen=True)
class Node:
    """A Ray node as its cluster's head knows it; `gpus` are those that it declared."""

    name: str
    alive: bool
    gpus: int


def job_id(run: str, attempt: int) -> str:
    """The submission id of an attempt."""
    return f"{run}-{attempt}"


def submit(endpoint: Endpoint, *, run: str, entrypoint: str, attempt: int | None = None) -> str:
    """Start `entrypoint` on the head; the submission id returned is the run id with the attempt's number.

    Without a number it is the first that is free. Raises SubstrateError when the cluster takes no jobs, or
    has one with this id.
    """
    if attempt is None:
        taken = {job.job for job in listing(endpoint)}
        attempt = next(n for n in range(1, 10_000) if job_id(run, n) not in taken)
    job = job_id(run, attempt)
    order = {"entrypoint": entrypoint, "submission_id": job, "metadata": {"run": run}}
    # The head waits ten seconds for its agent before it refuses a job.
    return _ask(endpoint, "/api/jobs/", order, timeout_s=30)["submission_id"]


def listing(endpoint: Endpoint) -> list[Job]:
    """Every job submitted to this head, oldest first. Raises SubstrateError when it does not answer."""
    jobs = [job for job in _ask(endpoint, "/api/jobs/") if job.get("submission_id")]
    return [_job(job) for job in sorted(jobs, key=lambda job: job["start_time"] or 0)]


def find(endpoint: Endpoint, submission_id: str) -> Job | None:
    """A job by its id; None when this head does not know it. Raises SubstrateError as `listing` does."""
    found = _ask(endpoint, f"/api/jobs/{submission_id}")
    return None if found is None else _job(found)


def nodes(endpoint: Endpoint) -> list[Node]:
    """Every node that the cluster has or had. Raises SubstrateError when the head does not answer."""
    answer = _ask(endpoint, "/api/v0/nodes?limit=1000") or {}
    rows = ((answer.get("data") or {}).get("result") or {}).get("result")
    if rows is None:  # its own answer while the control store is going down
        raise SubstrateError(
            f"the Ray dashboard at {endpoint.url} cannot list its nodes: {answer.get('msg')}",
            "see the log of the Ray head",
        )
    return [
        Node(row["node_name"], row["state"] == "ALIVE", int((row.get("resources_total") or {}).get("GPU", 0)))
        for row in rows
    ]


def log(endpoint: Endpoint, submission_id: str) -> str:
    """The whole log of a job. Raises SubstrateError when it cannot be had."""
    return (_ask(endpoint, f"/api/jobs/{submission_id}/logs", timeout_s=60) or {}).get("logs") or ""


def _job(found: Mapping[str, Any]) -> Job:
    # Ray appends up to 20,000 characters of the log to its account of a failure.
    message = (found.get("message") or "").partition(", last available logs")[0]
    run = (found.get("metadata") or {}).get("run", "")
    return Job(found["submission_id"], run, found["status"], message, found.get("driver_exit_code"))


def _ask(
    endpoint: Endpoint, path: str, body: dict[str, Any] | None = None, *, timeout_s: float = _ANSWER_S
) -> Any:
    """The dashboard's JSON answer to GET, or to POST where there is a body; None for what it does not know.

    Raises SubstrateError for any other answer and for none.
    """
    data = None if body is None else json.dumps(body).encode()
    headers = {"Content-Type": "application/json", **endpoint.headers}
    request = urllib.request.Request(f"{endpoint.url}{path}", data, headers)  # noqa: S310
    direct = [urllib.request.ProxyHandler({})] if "//127.0.0.1:" in endpoint.url else []
    try:
        with urllib.request.build_opener(*direct).open(request, timeout=timeout_s) as answer:
            return json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            said = error.read(2000).decode(errors="replace").strip().splitlines()
        if error.code == 404:
            return None
        refused = error.code in (401, 403)
        raise SubstrateError(
            f"the Ray dashboard at {endpoint.url} answers {error.code}: {said[-1] if said else error.reason}",
            "see whether the token is that of this cluster" if refused else "see the log of the Ray head",
        ) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise SubstrateError(
            f"the Ray dashboard at {endpoint.url} does not answer: {error}",
            "see whether the RayCluster is ready; on AWS forward its dashboard port",
        ) from error


def newest(endpoint: Endpoint, run: str) -> str:
    """The submission id of the run's latest attempt. Raises SubstrateError when there is none."""
    jobs = [job.job for job in listing(endpoint) if job.run == run]
    if not jobs:
        raise SubstrateError(f"no job of run {run!r} on this cluster", "see `skypod train status`")
    return jobs[-1]


def follow(
    endpoint: Endpoint,
    submission_id: str,
    on_event: Callable[[Event], None] = lambda event: None,
    *,
    poll_s: float = 1.0,
) -> Outcome:
    """Report every event from the start of the job until it ends. Stopping to follow leaves the job alone."""
    from aiohttp import ClientError

    client = _client(endpoint)
    told = Told(on_event)
    lost = 0
    while True:
        heard = told.heard
        try:
            return asyncio.run(_watch(client, submission_id, told, poll_s))
        except _ListenerError as error:
            raise error.__cause__ from None
        except (OSError, RuntimeError, ClientError) as error:
            lost = 0 if told.heard > heard else lost + 1
            if lost == _LOST_TRIES:
                raise SubstrateError(
                    f"the Ray dashboard at {endpoint.url} stopped answering: {error}",
                    "the head or its node is gone; follow the run again when the cluster is back",
                ) from error
            time.sleep(poll_s)


class _ListenerError(Exception):
    """What the listener raised, kept apart from what the connection raises."""


class Told:
    """Reports each event of a log once, also when the log is read again from its start."""

    def __init__(self, on_event: Callable[[Event], None]):
        self.heard = 0
        """Pieces of log that came, to see whether a connection was of any use."""
        self.complete = False
        """Set by whoever reads it, once there is no more to come."""
        self._on_event = on_event
        self._told = 0
        self.restart()

    def restart(self) -> None:
        """What is fed next is the beginning of the log."""
        self._passed = 0
        self._unfinished = ""

    def feed(self, piece: str) -> None:
        self.heard += 1
        *lines, self._unfinished = (self._unfinished + piece).split("\n")
        for event in parse(lines):
            self._passed += 1
            if self._passed > self._told:
                self._told = self._passed
                try:
                    self._on_event(event)
                except Exception as error:
                    raise _ListenerError from error


async def _watch(client: Any, submission_id: str, told: Told, poll_s: float) -> Outcome:
    """Follow the log over one connection until the job has ended.

    The whole log is asked for once, at the end: it also holds what the connection did not bring any more.
    Raises what the client raises, and RuntimeError when the connection ends before the job.
    """
    told.restart()
    tail = asyncio.create_task(_tail(client, submission_id, told))
    while True:
        await asyncio.wait({tail}, timeout=poll_s)
        status = str(client.get_job_status(submission_id).value)
        if status in ENDED:
            break
        if tail.done():
            tail.result()
            raise RuntimeError(f"the log of job {submission_id} broke off while it was {status}")
    tail.cancel()
    (ending,) = await asyncio.gather(tail, return_exceptions=True)
    if isinstance(ending, _ListenerError):
        raise ending
    log = client.get_job_logs(submission_id)
    told.restart()
    told.feed(log)
    # Ray appends up to 20,000 characters of the log that is here anyway.
    message = (client.get_job_info(submission_id).message or "").partition(", last available logs")[0]
    return Outcome(status, message, log)


async def _tail(client: Any, submission_id: str, told: Told) -> None:
    async for piece in client.tail_job_logs(submission_id):
        told.feed(piece)


def stop(endpoint: Endpoint, submission_id: str, timeout_s: float = 30) -> None:
    """Ask Ray to end the job and wait until it has. Raises SubstrateError when it does not."""
    ask_to_stop(endpoint, submission_id)
    for _ in _ticks(timeout_s):
        found = find(endpoint, submission_id)
        if found is None or found.ended:
            return
    raise SubstrateError(f"job {submission_id} did not stop in {timeout_s:g} s", "delete the RayCluster")


def ask_to_stop(endpoint: Endpoint, submission_id: str) -> None:
    """Ray sends the driver SIGTERM, three seconds later SIGKILL. Raises SubstrateError as `listing` does."""
    _ask(endpoint, f"/api/jobs/{submission_id}/stop", {})


def _ticks(timeout_s: float) -> Iterator[None]:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        yield
        time.sleep(0.5)
