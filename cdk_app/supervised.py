"""The Kubernetes Jobs that supervise runs: found, followed and ended as the calling user."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from kubernetes import client
from kubernetes.client.exceptions import ApiException
from urllib3.exceptions import HTTPError

from stacks.manifests import supervisor
from training.errors import SubstrateError
from training.jobs import Told

_POLL_S = 1.0
_SELECTOR = ",".join(f"{key}={value}" for key, value in supervisor.COMPONENT.items())


@dataclass(frozen=True)
class Supervised:
    """A run and the state of its supervisor: "active", "finished" or "failed"; `why` is Kubernetes' word."""

    run: str
    supervisor: str
    state: str
    why: str


def listing(api: client.ApiClient, namespace: str) -> list[Supervised]:
    """Every run that has a supervisor, or had one that ended, oldest first."""
    jobs = client.BatchV1Api(api).list_namespaced_job(namespace, label_selector=_SELECTOR).items
    return [_of(job) for job in sorted(jobs, key=lambda job: job.metadata.creation_timestamp)]


def find(api: client.ApiClient, namespace: str, run: str) -> Supervised | None:
    """The supervisor of a run; None where it never had one, or that was deleted."""
    try:
        job = client.BatchV1Api(api).read_namespaced_job(supervisor.job_name(run), namespace)
    except ApiException as error:
        if error.status != 404:
            raise
        return None
    return _of(job)


def recipe(api: client.ApiClient, namespace: str, run: str) -> str | None:
    """The recipe (TOML) with which the run was submitted or last resumed; None where that is gone."""
    try:
        held = client.CoreV1Api(api).read_namespaced_config_map(supervisor.job_name(run), namespace)
    except ApiException as error:
        if error.status != 404:
            raise
        return None
    return held.data[supervisor.RECIPE_KEY]


def follow(
    api: client.ApiClient, namespace: str, run: str, on_event: Callable[[dict[str, Any]], None]
) -> Supervised:
    """Report every event of the run's supervisors, one pod after another, until the Job has ended.

    Raises SubstrateError when the Job is deleted meanwhile.
    """
    told: dict[str, Told] = {}
    while True:
        found = find(api, namespace, run)
        if found is None:
            raise SubstrateError(
                f"run {run!r} has no supervisor any more",
                "somebody stopped it; go on with it: `skypod train resume`",
            )
        for name in _pods(api, namespace, found.supervisor):
            _read(api, namespace, name, told.setdefault(name, Told(on_event)))
        if found.state != "active":
            return found
        time.sleep(_POLL_S)


def delete(api: client.ApiClient, namespace: str, run: str, timeout_s: float = 60) -> None:
    """Delete the supervisor and wait until its pods are gone; nothing happens where there is none.

    Raises SubstrateError when they are not gone in time.
    """
    name = supervisor.job_name(run)
    try:
        client.BatchV1Api(api).delete_namespaced_job(name, namespace, propagation_policy="Foreground")
    except ApiException as error:
        if error.status != 404:
            raise
    end = time.monotonic() + timeout_s
    while find(api, namespace, run) or _pods(api, namespace, name):
        if time.monotonic() > end:
            raise SubstrateError(
                f"the supervisor of run {run!r} is not gone after {timeout_s:g} s",
                f"see its pods: kubectl -n {namespace} get pods -l job-name={name}",
            )
        time.sleep(_POLL_S)


def _of(job: Any) -> Supervised:
    ended = [
        c for c in job.status.conditions or [] if c.status == "True" and c.type in ("Complete", "Failed")
    ]
    state = {"Complete": "finished", "Failed": "failed"}[ended[0].type] if ended else "active"
    why = " ".join(filter(None, (ended[0].reason, ended[0].message))) if ended else ""
    return Supervised(job.metadata.labels[supervisor.RUN_LABEL], job.metadata.name, state, why)


def _pods(api: client.ApiClient, namespace: str, job: str) -> list[str]:
    pods = client.CoreV1Api(api).list_namespaced_pod(namespace, label_selector=f"job-name={job}").items
    return [pod.metadata.name for pod in sorted(pods, key=lambda pod: pod.metadata.creation_timestamp)]


def _read(api: client.ApiClient, namespace: str, pod: str, told: Told) -> None:
    """The pod's log to its end, from its beginning each time: what was told is not told again."""
    if told.complete:
        return
    told.restart()
    core = client.CoreV1Api(api)
    try:
        answer = core.read_namespaced_pod_log(pod, namespace, follow=True, _preload_content=False)
        for piece in answer.stream(decode_content=True):
            told.feed(piece.decode(errors="replace"))
        told.complete = core.read_namespaced_pod(pod, namespace).status.phase in ("Succeeded", "Failed")
    except (ApiException, HTTPError):
        # It has not started yet, is gone, or the connection broke; the Job says how it stands.
        return
