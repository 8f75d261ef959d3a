"""Places with the engine, and the queue for them.

Where the engine must not mix base and adapter requests, they take turns: a turn ends when its requests are
done, and the other kind then enters with all that waits of it. Nobody who comes during a turn overtakes those
who wait, so neither kind starves.
"""

import asyncio
from collections import deque
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from serving.gateway.refusal import Refusal


class Slots:
    """`most` requests at once, `queue` more that wait up to `wait_s`; where `mixes`, no kind has turns."""

    def __init__(self, most: int, queue: int, wait_s: float, mixes: bool):
        self._most = most
        self._queue = queue
        self._wait_s = wait_s
        self._mixes = mixes
        self._running = 0
        self._turn_of_base = False
        self._waiting: deque[tuple[bool, asyncio.Future[None]]] = deque()

    @property
    def waiting(self) -> int:
        return len(self._waiting)

    @asynccontextmanager
    async def held(self, base: bool) -> AsyncIterator[None]:
        """Hold a place, for a request to the base or to an adapter. Refuses (503) when too many wait, or when
        this one has waited too long."""
        if not self._waiting and self._fits(base):
            self._enter(base)
        else:
            await self._wait(base)
        try:
            yield
        finally:
            self._running -= 1
            self._admit()

    def _fits(self, base: bool) -> bool:
        if self._running == self._most:
            return False
        return self._mixes or not self._running or base == self._turn_of_base

    def _enter(self, base: bool) -> None:
        self._running += 1
        self._turn_of_base = base

    async def _wait(self, base: bool) -> None:
        if len(self._waiting) >= self._queue:
            raise Refusal(
                503, "queue_full", f"{self._queue} requests wait already", "try again later", retry_after_s=2
            )
        given = asyncio.get_running_loop().create_future()
        self._waiting.append((base, given))
        try:
            async with asyncio.timeout(self._wait_s):
                await given
        except BaseException as error:
            # The place may come at the same moment as the end of the patience.
            if not given.cancel() and not given.cancelled():
                self._running -= 1
            self._admit()
            if isinstance(error, TimeoutError):
                problem = f"no place became free within {self._wait_s:g} s"
                raise Refusal(503, "queue_timeout", problem, "try again later", retry_after_s=2) from None
            raise

    def _admit(self) -> None:
        # Who gave up stays in the queue until its task gets to run.
        self._waiting = deque(ticket for ticket in self._waiting if not ticket[1].done())
        if not self._running and not self._mixes and self._waiting:
            turn = self._waiting[0][0]
            self._waiting = deque(sorted(self._waiting, key=lambda ticket: ticket[0] != turn))
        while self._waiting and self._fits(self._waiting[0][0]):
            base, future = self._waiting.popleft()
            self._enter(base)
            future.set_result(None)
