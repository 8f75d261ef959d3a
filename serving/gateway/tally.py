"""How many are under way, by name, and when there is none left."""

import asyncio
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager


class Tally:
    """Counts by name, within one event loop."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        self._gone: dict[str, asyncio.Event] = {}

    @contextmanager
    def one(self, name: str) -> Iterator[None]:
        """Count one more of `name` while inside."""
        self.counts[name] += 1
        try:
            yield
        finally:
            self.counts[name] -= 1
            if not self.counts[name]:
                del self.counts[name]
                if event := self._gone.pop(name, None):
                    event.set()

    async def none_left(self, name: str, wait_s: float) -> bool:
        """Whether there is none of `name`, waiting for it up to `wait_s`."""
        try:
            async with asyncio.timeout(wait_s):
                while self.counts[name]:
                    await self._gone.setdefault(name, asyncio.Event()).wait()
        except TimeoutError:
            return False
        return True
