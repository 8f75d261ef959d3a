"""A small file that others replace while the gateway runs: its last good content."""

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Future
from pathlib import Path

from training.errors import SkypodError

# Below the patience of whoever asks the control port, which reads before it answers.
_PATIENCE_S = 5.0


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
        self._one = asyncio.Lock()

    async def refresh(self) -> None:
        """Look again. A shared file system may hang: one reading at most then waits for it, and its result
        is taken when it comes."""
        try:
            async with asyncio.timeout(_PATIENCE_S):
                await self._one.acquire()
                await asyncio.shield(asyncio.create_task(self._look()))
        except TimeoutError:
            self.trouble = f"{self.path} could not be read within {_PATIENCE_S:g} s"

    async def _look(self) -> None:
        try:
            found = await _apart(lambda: self._read(self.path))
        except Exception as error:
            self.trouble = error.problem if isinstance(error, SkypodError) else type(error).__name__
        else:
            if self._follows(self.value, found):
                self.value, self.trouble = found, ""
            else:
                self.trouble = f"{self.path} went back to an older state"
        finally:
            self._one.release()


async def _apart[T](read: Callable[[], T]) -> T:
    """In a thread that the process does not wait for at its end, as it does for those of asyncio."""
    result: Future[T] = Future()
    result.set_running_or_notify_cancel()

    def run() -> None:
        try:
            result.set_result(read())
        except BaseException as error:
            result.set_exception(error)

    threading.Thread(target=run, daemon=True).start()
    return await asyncio.wrap_future(result)
