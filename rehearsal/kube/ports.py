"""Free loopback ports, handed out so that no two processes of the stand-in get the same one."""

from __future__ import annotations

import random
import socket
import threading

from training.errors import SubstrateError

# Below Linux's ephemeral range (32768 on), so that no outgoing connection takes a port between the choice
# and its use.
FIRST, LAST = 21000, 31999


class Ports:
    """A reservation book. Ports go back with `release`."""

    def __init__(self, seed: int | None = None):
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        # The port's choice is no secret: a plain generator, so that two stand-ins start at different places.
        self._random = random.Random(seed)  # noqa: S311

    def block(self, size: int) -> range:
        """`size` consecutive ports that are free now and not handed out. Raises SubstrateError."""
        with self._lock:
            for _ in range(200):
                first = self._random.randrange(FIRST, LAST - size)
                candidates = range(first, first + size)
                if self._taken.isdisjoint(candidates) and all(is_free(port) for port in candidates):
                    self._taken.update(candidates)
                    return candidates
        raise SubstrateError(
            f"no {size} neighbouring free ports between {FIRST} and {LAST} on 127.0.0.1",
            "stop other servers on this machine and try again",
        )

    def release(self, ports: range) -> None:
        with self._lock:
            self._taken.difference_update(ports)


def is_free(port: int) -> bool:
    """Whether nothing listens on the port, on loopback or on all interfaces."""
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM) as probe:
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("127.0.0.1", port))
        except OSError:
            return False
        return True


def accepts(port: int, timeout_s: float = 0.2) -> bool:
    """Whether something on loopback accepts connections at the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s):
            return True
    except OSError:
        return False
