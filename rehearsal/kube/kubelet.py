"""The kubelet: pods of the API become process groups on this machine, and their fate becomes pod status."""

from __future__ import annotations

import logging
import os
import shutil
import tempfile
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import boto3
from botocore.config import Config

from rehearsal.kube import environment
from rehearsal.kube.access import Access, Cache
from rehearsal.kube.containers import POD_UID_ENV, Container, sweep
from rehearsal.kube.guard import guarded
from rehearsal.kube.podlogs import read_log
from rehearsal.kube.probes import passes
from rehearsal.kube.services import resolve
from rehearsal.kube.store import now
from rehearsal.kube.volumes import Rewriter, VolumeError, Volumes

Object = dict[str, Any]
log = logging.getLogger("kube.kubelet")
NODE_NAME = "laptop"
# Set by a controller: the variable that names the container's temporary folder, beside TMPDIR. The folder's
# path is short, so that sockets in it stay below the 107 characters of a Unix socket path.
SHORT_DIR_ANNOTATION = "rehearsal.skypod/short-dir-env"
KILL_AFTER_S = 15.0
LONGEST_BACKOFF_S = 60.0


@dataclass(frozen=True)
class Machine:
    """The laptop as the kubelet sees it. `aws`: variables by which boto3 finds the emulated AWS."""

    train_python: Path
    shared_dir: Path
    state_dir: Path
    project_dir: Path
    aws: dict[str, str]

    @property
    def pods_dir(self) -> Path:
        return self.state_dir / "pods"

    def s3(self) -> Any:
        """A client of the emulated S3."""
        session = boto3.Session(
            self.aws["AWS_ACCESS_KEY_ID"],
            self.aws["AWS_SECRET_ACCESS_KEY"],
            self.aws.get("AWS_SESSION_TOKEN"),
            self.aws["AWS_DEFAULT_REGION"],
        )
        # Bucket names as host names don't resolve to loopback.
        settings = Config(s3={"addressing_style": "path"}, retries={"max_attempts": 2}, proxies={})
        return session.client("s3", endpoint_url=self.aws["AWS_ENDPOINT_URL"], config=settings)


@dataclass
class PodRun:
    """What the kubelet knows about one pod beyond its object."""

    pod: Object
    folder: Path
    waiting: str = ""
    init_done: int = 0
    containers: dict[str, Container] = field(default_factory=dict)
    init: Container | None = None
    retry_at: float = 0.0
    probe_at: dict[str, float] = field(default_factory=dict)
    ending_since: float = 0.0
    reported: Object = field(default_factory=dict)

    @property
    def uid(self) -> str:
        return self.pod["metadata"]["uid"]

    def alive(self) -> list[Container]:
        everything = [*self.containers.values(), *([self.init] if self.init else [])]
        return [container for container in everything if container.poll() is None]


class Kubelet:
    def __init__(self, access: Access, pods: Cache, machine: Machine):
        self._access = access
        self._pods = pods
        self._machine = machine
        self._volumes = Volumes(machine.shared_dir, machine.state_dir / "volumes")
        self._runs: dict[str, PodRun] = {}
        machine.pods_dir.mkdir(parents=True, exist_ok=True)

    def sync(self) -> None:
        """One pass: start what is new, report what changed, end what is deleted."""
        present = {pod["metadata"]["uid"]: pod for pod in self._pods.all() if _is_mine(pod)}
        for uid, pod in present.items():
            if uid not in self._runs:
                if (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed"):
                    continue
                self._runs[uid] = PodRun(pod, self._machine.pods_dir / uid)
            self._runs[uid].pod = pod
        for uid, run in list(self._runs.items()):
            with guarded(log, f"pod {run.pod['metadata']['name']}"):
                if uid not in present or "deletionTimestamp" in run.pod["metadata"]:
                    self._end(run, uid in present)
                else:
                    self._advance(run)

    def stop(self, timeout_s: float) -> None:
        """End every process of every pod."""
        for run in self._runs.values():
            for container in run.alive():
                container.terminate()
        deadline = time.monotonic() + timeout_s
        for run in self._runs.values():
            for container in run.alive():
                if not container.wait(max(0.1, deadline - time.monotonic())):
                    container.kill()
                    sweep(run.uid)

    # One pod

    def _advance(self, run: PodRun) -> None:
        spec = run.pod["spec"]
        try:
            while run.init_done < len(spec.get("initContainers") or []):
                container = spec["initContainers"][run.init_done]
                if run.init is None:
                    run.init = self._start(run, container)
                if run.init.poll() is None:
                    self._report(run)
                    return
                if run.init.exit_code != 0:
                    self._report(run)
                    return
                run.init, run.init_done = None, run.init_done + 1
            if not run.containers and time.monotonic() >= run.retry_at:
                for container in spec["containers"]:
                    run.containers[container["name"]] = self._start(run, container)
                run.waiting = ""
        except (VolumeError, OSError) as error:
            for container in run.alive():
                container.terminate()
            run.containers.clear()
            run.waiting = str(error)
            run.retry_at = time.monotonic() + 1.0
        for container in spec["containers"]:
            if live := run.containers.get(container["name"]):
                self._restart_or_probe(run, container, live)
        self._report(run)

    def _restart_or_probe(self, run: PodRun, container: Object, live: Container) -> None:
        name = container["name"]
        code = live.poll()
        if code is None:
            if time.monotonic() >= run.probe_at.get(name, 0.0):
                live.observe(container.get("readinessProbe"), passes(container.get("readinessProbe"), live))
                # Often until it is ready, then as the manifest says.
                period = (container.get("readinessProbe") or {}).get("periodSeconds", 10)
                run.probe_at[name] = time.monotonic() + (period if live.ready else 0.5)
            return
        if code == 128 + 9:
            sweep(run.uid)
        policy = run.pod["spec"].get("restartPolicy", "Always")
        if policy == "Never" or (policy == "OnFailure" and code == 0):
            return
        backoff = min(LONGEST_BACKOFF_S, 2.0**live.restarts)
        if time.time() - live.started_at < backoff:
            return
        again = self._start(run, container)
        again.restarts = live.restarts + 1
        run.containers[name] = again

    def _start(self, run: PodRun, container: Object) -> Container:
        run.folder.mkdir(parents=True, exist_ok=True)
        namespace = run.pod["metadata"]["namespace"]

        def read(kind: str, name: str) -> Object | None:
            return self._access.get(kind, namespace, name)

        folders = self._volumes.prepare(run.pod, run.folder, read)
        rewrite = Rewriter(container, folders)
        env = environment.build(
            run.pod,
            container,
            rewrite,
            read,
            train_bin=self._machine.train_python.parent,
            project_dir=self._machine.project_dir,
            aws=self._machine.aws,
        )
        env[POD_UID_ENV] = run.uid
        # What vLLM forgets in its temporary folder stays with the pod; the link goes with the container.
        doomed = env["TMPDIR"] = short_link(run.folder / "run")
        if variable := (run.pod["metadata"].get("annotations") or {}).get(SHORT_DIR_ANNOTATION):
            env[variable] = doomed
        command = [*(container.get("command") or []), *(container.get("args") or [])]
        if not container.get("command"):
            raise VolumeError(
                f"container {container['name']} has no command; no image is at hand to supply one"
            )
        command = [resolve(environment.expand(rewrite(part), env), self._access.get) for part in command]
        work = rewrite(container.get("workingDir", "")) if container.get("workingDir") else ""
        cwd = Path(work) if work and os.path.isdir(work) else run.folder
        log.info("pod %s: starting %s", run.pod["metadata"]["name"], container["name"])
        return Container(
            container["name"], command, env, cwd, run.folder / f"{container['name']}.log", doomed
        )

    def _end(self, run: PodRun, still_listed: bool) -> None:
        metadata = run.pod["metadata"]
        if not run.ending_since:
            run.ending_since = time.monotonic()
            for container in run.alive():
                container.terminate()
        if run.alive():
            if time.monotonic() - run.ending_since > KILL_AFTER_S:
                for container in run.alive():
                    container.kill()
                sweep(run.uid)
            return
        del self._runs[run.uid]
        # Logs stay for whoever looks into a failure; volumes may hold secrets.
        shutil.rmtree(run.folder / "volumes", ignore_errors=True)
        if still_listed:
            self._access.delete("Pod", metadata["namespace"], metadata["name"], grace_s=0)

    # Status

    def _report(self, run: PodRun) -> None:
        status = self._status(run)
        comparable = {k: v for k, v in status.items() if k != "conditions"} | {
            "conditions": [(c["type"], c["status"]) for c in status["conditions"]]
        }
        if comparable == run.reported:
            return
        metadata = run.pod["metadata"]
        if run.pod["spec"].get("nodeName") != NODE_NAME:
            self._access.bind(metadata["namespace"], metadata["name"], NODE_NAME)
        self._access.set_status("Pod", metadata["namespace"], metadata["name"], status)
        run.reported = comparable

    def _status(self, run: PodRun) -> Object:
        containers = list(run.containers.values())
        failed_init = run.init is not None and run.init.exit_code not in (None, 0)
        done = bool(containers) and not run.alive()
        policy = run.pod["spec"].get("restartPolicy", "Always")
        codes = [container.exit_code for container in containers]
        if failed_init or (done and policy != "Always" and any(codes)):
            phase = "Failed" if policy == "Never" or failed_init else "Running"
        elif done and policy != "Always":
            phase = "Succeeded"
        else:
            phase = "Running" if containers else "Pending"
        ready = phase == "Running" and all(container.ready for container in containers)
        status: Object = {
            "phase": phase,
            "podIP": "127.0.0.1",
            "hostIP": "127.0.0.1",
            "podIPs": [{"ip": "127.0.0.1"}],
            "conditions": _conditions(ready, run.waiting),
            "containerStatuses": [_container_status(run, c) for c in run.pod["spec"]["containers"]],
        }
        if phase == "Failed":
            status["reason"] = "Error"
            broken = run.init if failed_init else next(c for c in containers if c.exit_code)
            status["message"] = _last_words(run.folder / f"{broken.name}.log")
        return status


def _is_mine(pod: Object) -> bool:
    """Not one that was bound to another node: that node's kubelet would have it."""
    return pod["spec"].get("nodeName", NODE_NAME) == NODE_NAME


def short_link(folder: Path) -> str:
    """A link of few characters, below the system's temporary folder, to a new folder."""
    folder.mkdir(parents=True, exist_ok=True)
    holder = tempfile.mkdtemp(prefix="sk")
    os.rmdir(holder)
    os.symlink(folder, holder)
    return holder


def _conditions(ready: bool, waiting: str) -> list[Object]:
    scheduled = {"type": "PodScheduled", "status": "True", "lastTransitionTime": now()}
    rows = [scheduled]
    for kind in ("ContainersReady", "Ready"):
        row = {"type": kind, "status": "True" if ready else "False", "lastTransitionTime": now()}
        if not ready:
            row |= {"reason": "ContainersNotReady", "message": waiting}
        rows.append(row)
    return rows


def _container_status(run: PodRun, container: Object) -> Object:
    name = container["name"]
    live = run.containers.get(name)
    if live is None:
        reason = "CreateContainerConfigError" if run.waiting else "PodInitializing"
        state: Object = {"waiting": {"reason": reason, "message": run.waiting}}
    elif live.exit_code is None:
        state = {"running": {"startedAt": _time(live.started_at)}}
    else:
        reason = "Error" if live.exit_code else "Completed"
        state = {"terminated": {"exitCode": live.exit_code, "reason": reason}}
    return {
        "name": name,
        "image": container.get("image", ""),
        "imageID": "",
        "ready": bool(live and live.ready),
        "restartCount": live.restarts if live else 0,
        "state": state,
    } | ({"containerID": f"process://{live.pid}"} if live else {})


def _time(seconds: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(seconds))


def _last_words(path: Path) -> str:
    return read_log(path, 15)[-2000:]
