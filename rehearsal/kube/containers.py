"""One container of a pod as a process group under a shim."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

Object = dict[str, Any]
_SHIM = Path(__file__).with_name("shim.py")
POD_UID_ENV = "SKYPOD_POD_UID"
CGROUPS_ENV = "SKYPOD_CGROUPS"
"""Of the kubelet: a folder of control groups, in which each pod then gets one by the name of its uid."""


class Container:
    """A started command. `exit_code` is None while it runs; 128 + N when a signal N ended it."""

    def __init__(
        self,
        name: str,
        command: list[str],
        env: dict[str, str],
        folder: Path,
        log_file: Path,
        doomed: str = "",
    ):
        """`doomed`: a folder (or link) that the shim removes when the command has ended."""
        self.name = name
        self.ready = False
        self.restarts = 0
        self._misses = 0
        self.started_at = time.time()
        self.exit_code: int | None = None
        options = ["--remove", doomed] if doomed else []
        if groups := os.environ.get(CGROUPS_ENV):
            options += ["--cgroup", os.path.join(groups, env[POD_UID_ENV])]
        argv = [sys.executable, "-I", "-S", str(_SHIM), *options, "--", *command]
        with log_file.open("ab") as log:
            # The command comes from the pod's manifest: running it is the kubelet's purpose.
            self._process = subprocess.Popen(
                argv,
                stdin=subprocess.PIPE,
                stdout=log,
                stderr=subprocess.STDOUT,
                cwd=folder,
                env=env,
                start_new_session=True,
            )

    @property
    def pid(self) -> int:
        return self._process.pid

    def poll(self) -> int | None:
        code = self._process.poll()
        if code is not None and self.exit_code is None:
            self.exit_code = code if code >= 0 else 128 - code
            self.ready = False
            if self._process.stdin:
                self._process.stdin.close()
        return self.exit_code

    def observe(self, probe: Object | None, passed: bool) -> None:
        """Take in a probe's outcome: ready at once, unready after `failureThreshold` misses in a row."""
        self._misses = 0 if passed else self._misses + 1
        if passed:
            self.ready = True
        elif self._misses >= int((probe or {}).get("failureThreshold", 3)):
            self.ready = False

    def terminate(self) -> None:
        """Ask the shim to end the family; it escalates to SIGKILL by itself."""
        if self.poll() is None:
            self._process.send_signal(signal.SIGTERM)

    def wait(self, timeout_s: float) -> bool:
        """Whether it has ended within `timeout_s`."""
        deadline = time.monotonic() + timeout_s
        while self.poll() is None and time.monotonic() < deadline:
            time.sleep(0.05)
        return self.poll() is not None

    def kill(self) -> None:
        """End the shim itself; whoever calls this must sweep the pod's processes."""
        if self.poll() is None:
            self._process.kill()


def sweep(pod_uid: str) -> int:
    """SIGKILL to every process that carries the pod's uid in its environment; how many there were.

    For the case that a shim was killed and could not end its family.
    """
    mark = f"{POD_UID_ENV}={pod_uid}".encode()
    found = 0
    for entry in os.listdir("/proc"):
        if not entry.isdigit() or int(entry) == os.getpid():
            continue
        try:
            environment = Path(f"/proc/{entry}/environ").read_bytes()
            if mark in environment.split(b"\0"):
                os.kill(int(entry), signal.SIGKILL)
                found += 1
        except OSError:
            continue
    return found
