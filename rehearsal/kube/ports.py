"""Free loopback ports, handed out so that no two processes of the stand-in get the same one."""

from __future__ import annotations

import random
import socket
import threading

from training.errors import SubstrateError

# Below Linux's ephemeral range (32768 on), so that no outgoing connection takes a port between the choice
# and its use.
FIRST, LAST = 21000, 31999
# A server binds its port long after the choice: vLLM's listens after half a minute. Stand-ins beside each
# other therefore choose from different ranges; else one could take what answers there for its own server.
STAND_INS = 8
RANGE = (LAST + 1 - FIRST) // STAND_INS


class Ports:
    """A reservation book over a range that no other book on this machine has. Ports go back with `release`.

    The range is claimed by listening on its first port, so a claim ends with its process, however that ends.
    Raises SubstrateError when every range is claimed.
    """

    def __init__(self, seed: int | None = None):
        self._taken: set[int] = set()
        self._lock = threading.Lock()
        # The port's choice is no secret: a plain generator, so that two stand-ins start at different places.
        self._random = random.Random(seed)  # noqa: S311
        starts = [FIRST + RANGE * number for number in range(STAND_INS)]
        for start in self._random.sample(starts, STAND_INS):
            if claim := _listener(start):
                self._claim, self._range = claim, range(start + 1, start + RANGE)
                return
        raise SubstrateError(
            f"{STAND_INS} Kubernetes stand-ins run on this machine, and each holds {RANGE} ports",
            "end one (`make stop` in its checkout) and try again",
        )

    def close(self) -> None:
        """Give the whole range back."""
        self._claim.close()

    def block(self, size: int) -> range:
        """`size` consecutive ports that are free now and not handed out. Raises SubstrateError."""
        with self._lock:
            for _ in range(200):
                first = self._range.start + self._random.randrange(max(1, len(self._range) - size + 1))
                candidates = range(first, first + size)
                if candidates.stop > self._range.stop:
                    break
                if self._taken.isdisjoint(candidates) and all(is_free(port) for port in candidates):
                    self._taken.update(candidates)
                    return candidates
        raise SubstrateError(
            f"no {size} neighbouring free ports from {self._range.start} to {self._range.stop - 1} "
            "on 127.0.0.1",
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


def _listener(port: int) -> socket.socket | None:
    try:
        return socket.create_server(("127.0.0.1", port))
    except OSError:
        return None


def accepts(port: int, timeout_s: float = 0.2) -> bool:
    """Whether something on loopback accepts connections at the port."""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=timeout_s):
            return True
    except OSError:
        return False
