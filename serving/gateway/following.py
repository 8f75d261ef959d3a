"""A small file that others replace while the gateway runs: its last good content."""

import asyncio
from collections.abc import Callable
from pathlib import Path

from training.errors import SkypodError


class Followed[T]:
    """`value` is what was read last. A content that cannot be read, or that `follows(value, content)` denies,
    changes nothing but `trouble`, whatever is wrong with it.

    Raises what `read` raises when there is nothing to begin with.
    """

    def __init__(
        self, path: Path, read: Callable[[Path], T], follows: Callable[[T, T], bool] = lambda old, new: True
    ):
        self.path = path
        self.value = read(path)
        self.trouble = ""
        self._read = read
        self._follows = follows

    async def refresh(self) -> None:
        """Look again; in a thread, because a shared file system may hang."""
        try:
            found = await asyncio.to_thread(self._read, self.path)
        except Exception as error:
            self.trouble = error.problem if isinstance(error, SkypodError) else type(error).__name__
            return
        if self._follows(self.value, found):
            self.value, self.trouble = found, ""
        else:
            self.trouble = f"{self.path} went back to an older state"
