"""Runs one container's command and answers for every process that comes out of it.

Run by the kubelet as `shim.py [--remove DIR] [--cgroup DIR] -- COMMAND...`, standard library only. It ends
the whole family of the command when it gets SIGTERM, when the command ends, or when its standard input
closes, which also happens when the kubelet is killed. The command's exit status becomes its own.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import select
import shutil
import signal
import subprocess
import sys
import time

PR_SET_CHILD_SUBREAPER = 36
TERM_GRACE_S = 4.0


def children_of(roots: set[int]) -> set[int]:
    """All descendants of `roots`, from /proc."""
    parents: dict[int, int] = {}
    for entry in os.listdir("/proc"):
        if entry.isdigit():
            try:
                with open(f"/proc/{entry}/stat", "rb") as file:
                    fields = file.read().rpartition(b")")[2].split()
            except OSError:
                continue
            if fields[0] != b"Z":
                parents[int(entry)] = int(fields[1])
    found: set[int] = set()
    front = set(roots)
    while front:
        front = {pid for pid, parent in parents.items() if parent in front} - found
        found |= front
    return found


def reap(main: subprocess.Popen) -> None:
    """Collect dead descendants, leaving the main command's status to `main`."""
    while True:
        main.poll()
        try:
            # WNOWAIT: look first, so that the main command's status is not taken from Popen.
            dead = os.waitid(os.P_ALL, 0, os.WEXITED | os.WNOHANG | os.WNOWAIT)
        except ChildProcessError:
            return
        if dead is None:
            return
        if dead.si_pid == main.pid:
            main.poll()
        else:
            os.waitpid(dead.si_pid, os.WNOHANG)


def end_family(main: subprocess.Popen, grace_s: float) -> None:
    """SIGTERM to all descendants, SIGKILL to those that are still there after `grace_s`."""
    deadline = time.monotonic() + grace_s
    signalled: set[int] = set()
    while family := children_of({os.getpid()}):
        late = time.monotonic() > deadline
        for pid in family:
            if late or pid not in signalled:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL if late else signal.SIGTERM)
                signalled.add(pid)
        reap(main)
        time.sleep(0.05)
    reap(main)


def main(arguments: list[str]) -> int:
    split = arguments.index("--")
    options = dict(zip(arguments[:split:2], arguments[1:split:2], strict=True))
    command = arguments[split + 1 :]
    doomed = options.get("--remove")
    if group := options.get("--cgroup"):
        os.makedirs(group, exist_ok=True)
        with open(os.path.join(group, "cgroup.procs"), "w") as file:
            file.write("0")  # this process, and whatever comes out of it
    # Orphans of the command (Ray's daemons among them) become children of this process, not of init.
    ctypes.CDLL(None).prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)
    hard = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    wake_r, wake_w = os.pipe()
    os.set_blocking(wake_w, False)
    signal.set_wakeup_fd(wake_w)
    stop = False

    def on_term(_number, _frame) -> None:
        nonlocal stop
        stop = True

    signal.signal(signal.SIGTERM, on_term)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGCHLD, lambda *_: None)
    try:
        # The command comes from the pod's manifest: running it is this program's purpose.
        child = subprocess.Popen(command, stdin=subprocess.DEVNULL, start_new_session=True)
    except OSError as error:
        print(f"cannot start {command[0]}: {error.strerror}", file=sys.stderr)
        return 127
    abandoned = False
    while child.poll() is None and not stop and not abandoned:
        ready, _, _ = select.select([0, wake_r], [], [], 30)
        if wake_r in ready:
            os.read(wake_r, 4096)
        if 0 in ready:
            abandoned = not os.read(0, 4096)
        reap(child)
    end_family(child, 1.0 if abandoned else TERM_GRACE_S)
    if doomed:
        if os.path.islink(doomed):
            os.unlink(doomed)
        else:
            shutil.rmtree(doomed, ignore_errors=True)
    code = child.returncode
    return 143 if code is None else code if code >= 0 else 128 - code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
