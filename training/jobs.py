"""Training as a Ray job: submitted once, owned by the cluster, followed from anywhere."""

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
    client = _client(endpoint)
    seen = lost = 0
    while True:
        try:
            status = str(client.get_job_status(submission_id).value)
            log = client.get_job_logs(submission_id)
        except (OSError, RuntimeError) as error:
            lost += 1
            if lost == _LOST_TRIES:
                raise SubstrateError(
                    f"the Ray dashboard at {endpoint.url} stopped answering: {error}",
                    "the head or its node is gone; follow the run again when the cluster is back",
                ) from error
            time.sleep(poll_s)
            continue
        lost = 0
        lines = log.split("\n")
        for event in parse(lines[seen:-1]):
            on_event(event)
        seen = len(lines) - 1
        if status in ENDED:
            info = client.get_job_info(submission_id)
            return Outcome(status, info.message or "", log)
        time.sleep(poll_s)


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
