"""Training as a Ray job: submitted once, owned by the cluster, followed from anywhere."""

import asyncio
import os
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from training.errors import SubstrateError
from training.events import parse

ENDED = {"SUCCEEDED", "FAILED", "STOPPED"}
Event = dict[str, Any]
_RAY_ADDRESSES = ("RAY_ADDRESS", "RAY_API_SERVER_ADDRESS")
_LOST_TRIES = 10


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


def submit(endpoint: Endpoint, *, run: str, entrypoint: str) -> str:
    """Start `entrypoint` on the head; the submission id returned is the run id with an attempt number."""
    client = _client(endpoint)
    taken = {job.submission_id for job in client.list_jobs()}
    attempt = next(n for n in range(1, 10_000) if f"{run}-{n}" not in taken)
    return client.submit_job(
        entrypoint=entrypoint,
        submission_id=f"{run}-{attempt}",
        metadata={"run": run},
    )


def listing(endpoint: Endpoint) -> list[dict[str, str]]:
    """[{"job", "run", "status", "message"}] of every job submitted here, oldest first."""
    jobs = sorted(_client(endpoint).list_jobs(), key=lambda job: job.start_time or 0)
    return [
        {
            "job": job.submission_id or "",
            "run": (job.metadata or {}).get("run", ""),
            "status": str(job.status.value),
            "message": job.message or "",
        }
        for job in jobs
        if job.submission_id
    ]


def newest(endpoint: Endpoint, run: str) -> str:
    """The submission id of the run's latest attempt. Raises SubstrateError when there is none."""
    jobs = [job["job"] for job in listing(endpoint) if job["run"] == run]
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
    told = _Told(on_event)
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


class _Told:
    """Reports each event of a log once, also when the log is read again from its start."""

    def __init__(self, on_event: Callable[[Event], None]):
        self.heard = 0
        """Pieces of log that came, to see whether a connection was of any use."""
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


async def _watch(client: Any, submission_id: str, told: _Told, poll_s: float) -> Outcome:
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


async def _tail(client: Any, submission_id: str, told: _Told) -> None:
    async for piece in client.tail_job_logs(submission_id):
        told.feed(piece)


def stop(endpoint: Endpoint, submission_id: str, timeout_s: float = 30) -> None:
    """Ask Ray to end the job and wait until it has. Raises SubstrateError when it does not."""
    client = _client(endpoint)
    client.stop_job(submission_id)
    for _ in _ticks(timeout_s):
        if str(client.get_job_status(submission_id).value) in ENDED:
            return
    raise SubstrateError(f"job {submission_id} did not stop in {timeout_s:g} s", "delete the RayCluster")


def _ticks(timeout_s: float) -> Iterator[None]:
    end = time.monotonic() + timeout_s
    while time.monotonic() < end:
        yield
        time.sleep(0.5)
