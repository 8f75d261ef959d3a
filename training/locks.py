"""One writer at a time in a folder, on one machine or on several that share a file system."""

import fcntl
import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from training.errors import SubstrateError

WAIT_S = 120.0
_POLL_S = 0.02
_mine = threading.local()


class LockedError(SubstrateError):
    """Another process has the folder locked."""


@contextmanager
def locked(folder: Path, wait_s: float = WAIT_S) -> Iterator[None]:
    """Hold the folder's lock; the kernel lifts it when the process dies. A thread may hold it twice.

    It is taken on the folder: files in it are replaced by their writers, and a lock would go with them. A
    file that nobody replaces may be named as well.
    Raises LockedError after `wait_s`: a process that is stopped (SIGSTOP) keeps what it has locked.
    """
    held = _mine.__dict__.setdefault("folders", set())
    key = os.path.realpath(folder)
    if key in held:
        yield
        return
    handle = os.open(folder, os.O_RDONLY)
    try:
        _lock(handle, folder, wait_s)
        held.add(key)
        try:
            yield
        finally:
            held.discard(key)
    finally:
        os.close(handle)


def _lock(handle: int, folder: Path, wait_s: float) -> None:
    end = time.monotonic() + wait_s
    while True:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return
        except BlockingIOError:
            if time.monotonic() >= end:
                raise LockedError(
                    f"{folder} is locked by another process for more than {wait_s:g} s",
                    "see which process of the run hangs; the lock goes with it",
                ) from None
            time.sleep(_POLL_S)
