"""The processes of a supervised run on the rehearsal, by the part they play."""

import signal
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import psutil
from kubernetes import client

from training.errors import SubstrateError

_GONE_S = 20.0


@dataclass(frozen=True)
class Targets:
    """Finds what a fault is to strike, at the moment it strikes; nothing is remembered between two faults."""

    api: client.ApiClient
    namespace: str
    cluster: str
    supervisor_job: str

    def driver(self) -> list[psutil.Process]:
        """The Python of the job's entrypoint, on the head."""
        return self._among(
            self.head(), "driver", lambda line: "rehearsal.cpu.job" in line and _is_python(line[0])
        )

    def ranks(self) -> list[psutil.Process]:
        return self._actors("CpuPolicyRank")

    def engines(self) -> list[psutil.Process]:
        return self._actors("RolloutEngine")

    def raylet(self) -> list[psutil.Process]:
        """Of the first worker: its node is lost with it."""
        return self._among(
            self.worker(), "raylet of a worker", lambda line: line[0].endswith("/raylet/raylet")
        )

    def worker(self) -> list[psutil.Process]:
        """Everything in the first worker's pod."""
        return self._family(self.worker_pod())

    def head(self) -> list[psutil.Process]:
        """Everything in the head's pod."""
        return self._family(self._pod(f"ray.io/cluster={self.cluster},ray.io/node-type=head"))

    def supervisor(self) -> list[psutil.Process]:
        pod = self._pod(f"job-name={self.supervisor_job}")
        return self._among(
            self._family(pod),
            "supervisor",
            lambda line: "training.supervisor" in line and _is_python(line[0]),
        )

    def worker_pod(self) -> Any:
        """The first worker's pod."""
        return self._pod(f"ray.io/cluster={self.cluster},ray.io/node-type=worker")

    def _actors(self, actor: str) -> list[psutil.Process]:
        """A Ray worker calls its process after the actor that it holds, and after the method it is in."""
        return self._among(
            self.worker(), f"actor {actor}", lambda line: line[0].partition(".")[0] == f"ray::{actor}"
        )

    def _pod(self, selector: str) -> Any:
        pods = client.CoreV1Api(self.api).list_namespaced_pod(self.namespace, label_selector=selector).items
        running = [
            pod for pod in pods if pod.status.phase == "Running" and not pod.metadata.deletion_timestamp
        ]
        if not running:
            raise SubstrateError(f"no pod {selector} is running", "see the logs of the pods")
        return min(running, key=lambda pod: pod.metadata.name)

    def _family(self, pod: Any) -> list[psutil.Process]:
        """The processes of a pod below the shim, which stands for the container runtime and is no target."""
        shim = int(pod.status.container_statuses[0].container_id.removeprefix("process://"))
        with suppress(psutil.NoSuchProcess):
            return psutil.Process(shim).children(recursive=True)
        return []

    def _among(self, processes: Iterable[psutil.Process], what: str, is_it: Any) -> list[psutil.Process]:
        found = []
        for process in processes:
            with suppress(psutil.NoSuchProcess):
                line = process.cmdline()
                if line and is_it(line):
                    found.append(process)
        if not found:
            raise SubstrateError(f"there is no {what}", "it may have ended by itself: see the log of the job")
        return sorted(found, key=lambda process: process.pid)


def kill(processes: list[psutil.Process]) -> None:
    """SIGKILL to all of them, and wait until they are gone: the dead write nothing any more."""
    for process in processes:
        with suppress(psutil.NoSuchProcess):
            process.send_signal(signal.SIGKILL)
    _, left = psutil.wait_procs(processes, _GONE_S)
    # A zombie runs no more; its parent may be slow to notice, or stopped.
    left = [process for process in left if process.is_running() and process.status() != psutil.STATUS_ZOMBIE]
    if left:
        raise SubstrateError(
            f"processes {[process.pid for process in left]} are there {_GONE_S:g} s after SIGKILL",
            "see what they wait for: /proc/PID/stack",
        )


def _is_python(path: str) -> bool:
    return path.rpartition("/")[2].startswith("python")
