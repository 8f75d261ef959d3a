"""`python -m rehearsal.aws`: run the emulated AWS in the foreground."""

from __future__ import annotations

import asyncio
import os
import signal

from rehearsal.aws import options as command_line

_PARENT_POLL_S = 0.5


def main() -> None:
    """Serve until a signal, or until the parent process is gone."""
    options = command_line.parse()
    (options.state_dir / "tmp").mkdir(parents=True, exist_ok=True)
    os.environ.update(options.environment())
    from rehearsal.aws import server  # ministack reads its environment when it is imported

    async def stopped() -> None:
        done = asyncio.Event()
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, done.set)
        while not done.is_set():
            if options.parent_pid and os.getppid() != options.parent_pid:
                return
            try:
                await asyncio.wait_for(done.wait(), _PARENT_POLL_S)
            except TimeoutError:
                continue

    async def serve() -> None:
        await server.run(options, stopped)
        # asyncio would wait for worker threads, and those may wait for a Lambda; its process ends with our
        # end of its pipe.
        os._exit(0)

    asyncio.run(serve())


if __name__ == "__main__":
    main()
