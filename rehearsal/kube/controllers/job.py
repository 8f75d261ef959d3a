"""The Job controller: pods until enough of them have succeeded or too many have failed."""

from __future__ import annotations

import copy
import logging
import secrets
import time
from datetime import UTC, datetime
from typing import Any

from rehearsal.kube.access import Access, Cache
from rehearsal.kube.controllers.raynode import owner
from rehearsal.kube.guard import guarded
from rehearsal.kube.store import now

Object = dict[str, Any]
log = logging.getLogger("kube.job")
DEFAULT_BACKOFF_LIMIT = 6


class Jobs:
    def __init__(self, access: Access, jobs: Cache, pods: Cache):
        self._access = access
        self._jobs = jobs
        self._pods = pods
        self._retry_at: dict[str, float] = {}

    def sync(self) -> None:
        """One pass over all Jobs."""
        for job in self._jobs.all():
            if "deletionTimestamp" not in job["metadata"]:
                with guarded(log, f"Job {job['metadata']['name']}"):
                    self._sync_one(job)

    def _sync_one(self, job: Object) -> None:
        metadata, spec = job["metadata"], job["spec"]
        status = job.get("status") or {}
        if any(c["type"] in ("Complete", "Failed") for c in status.get("conditions") or []):
            self._expire(job)
            return
        pods = [
            pod
            for pod in self._pods.all()
            if any(ref["uid"] == metadata["uid"] for ref in pod["metadata"].get("ownerReferences") or [])
        ]
        phases = [(pod.get("status") or {}).get("phase", "Pending") for pod in pods]
        dead = [pod for pod, phase in zip(pods, phases, strict=True) if phase == "Failed"]
        actions = [_action(spec, pod) for pod in dead]
        succeeded, failed = phases.count("Succeeded"), len(dead) - actions.count("Ignore")
        active = [pod for pod, phase in zip(pods, phases, strict=True) if phase in ("Pending", "Running")]
        wanted = int(spec.get("completions", 1))
        verdict = None
        if succeeded >= wanted:
            verdict = ("Complete", "CompletionsReached", "")
        elif failed > int(spec.get("backoffLimit", DEFAULT_BACKOFF_LIMIT)):
            verdict = ("Failed", "BackoffLimitExceeded", _words(dead[0]))
        elif "FailJob" in actions:
            verdict = ("Failed", "PodFailurePolicy", _words(dead[actions.index("FailJob")]))
        elif self._overdue(job):
            verdict = ("Failed", "DeadlineExceeded", "Job was active longer than specified deadline")
        if verdict or spec.get("suspend"):
            for pod in active:
                self._access.delete("Pod", metadata["namespace"], pod["metadata"]["name"])
            active = []
        elif time.monotonic() >= self._retry_at.get(metadata["uid"], 0.0):
            room = min(int(spec.get("parallelism", 1)), wanted - succeeded) - len(active)
            for _ in range(room):
                active.append(self._start(job))
                # Each failure doubles the wait before the next try, as in Kubernetes but from one second.
                self._retry_at[metadata["uid"]] = time.monotonic() + min(60.0, 2.0**failed)
        self._write_status(job, len(active), succeeded, failed, verdict)

    def _start(self, job: Object) -> Object:
        metadata = job["metadata"]
        template = copy.deepcopy(job["spec"]["template"])
        labels = (template.get("metadata") or {}).get("labels") or {}
        pod = {
            "apiVersion": "v1",
            "kind": "Pod",
            "metadata": {
                "name": f"{metadata['name'][:57]}-{secrets.token_hex(3)[:5]}",
                "namespace": metadata["namespace"],
                "labels": labels
                | {"batch.kubernetes.io/job-name": metadata["name"], "job-name": metadata["name"]},
                "annotations": (template.get("metadata") or {}).get("annotations") or {},
                "ownerReferences": [owner(job)],
            },
            "spec": template["spec"] | {"restartPolicy": template["spec"].get("restartPolicy", "Never")},
        }
        created = self._access.create("Pod", pod)
        self._pods.put(created)
        return created

    def _overdue(self, job: Object) -> bool:
        limit = job["spec"].get("activeDeadlineSeconds")
        started = (job.get("status") or {}).get("startTime")
        return limit is not None and started is not None and _age_s(started) > limit

    def _expire(self, job: Object) -> None:
        keep_s = job["spec"].get("ttlSecondsAfterFinished")
        ended = max(c["lastTransitionTime"] for c in job["status"]["conditions"])
        if keep_s is not None and _age_s(ended) > keep_s:
            self._access.delete("Job", job["metadata"]["namespace"], job["metadata"]["name"])

    def _write_status(
        self, job: Object, active: int, succeeded: int, failed: int, verdict: tuple[str, str, str] | None
    ) -> None:
        old = job.get("status") or {}
        status: Object = {"active": active, "succeeded": succeeded, "failed": failed}
        status["ready"] = active
        if verdict:
            kind, reason, message = verdict
            row = {"type": kind, "status": "True", "reason": reason, "message": message}
            status["conditions"] = [row | {"lastTransitionTime": now(), "lastProbeTime": now()}]
            if kind == "Complete":
                status["completionTime"] = now()
        if "startTime" not in old:
            status["startTime"] = now()
        if all(old.get(key) == value for key, value in status.items()):
            return
        self._access.set_status("Job", job["metadata"]["namespace"], job["metadata"]["name"], status)


def _action(spec: Object, pod: Object) -> str:
    """What the Job's podFailurePolicy says of a failed pod; only exit codes are looked at."""
    codes = {
        status["name"]: (status.get("state") or {}).get("terminated", {}).get("exitCode", 0)
        for status in pod["status"].get("containerStatuses") or []
    }
    for rule in (spec.get("podFailurePolicy") or {}).get("rules") or []:
        if not (wanted := rule.get("onExitCodes")):
            continue
        name = wanted.get("containerName")
        found = [code for one, code in codes.items() if code and name in (None, one)]
        among = [code in wanted["values"] for code in found]
        if any(among) if wanted["operator"] == "In" else any(not each for each in among):
            return rule["action"]
    return "Count"


def _words(pod: Object) -> str:
    return pod["status"].get("message", "").strip()[-1000:]


def _age_s(time_text: str) -> float:
    then = datetime.fromisoformat(time_text.replace("Z", "+00:00"))
    return (datetime.now(UTC) - then).total_seconds()
