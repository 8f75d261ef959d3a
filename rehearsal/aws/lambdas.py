"""Ends Lambda processes that nobody needs: ministack keeps one of each function for ever, 50 MB apiece."""

from __future__ import annotations

import asyncio
import time

from ministack.core import lambda_runtime

IDLE_S = 10.0
"""A function that is invoked again within this time starts warm."""

_LOOK_S = 2.0


async def end_idle() -> None:
    """Run until cancelled."""
    while True:
        await asyncio.sleep(_LOOK_S)
        idle = _take_idle(time.time() - IDLE_S)
        if idle:
            await asyncio.to_thread(lambda_runtime.kill_workers, idle)


def _take_idle(last_used_before: float) -> list[lambda_runtime.Worker]:
    taken = []
    with lambda_runtime._lock:
        for key, workers in list(lambda_runtime._workers.items()):
            idle = [w for w in workers if not w.in_use and w.last_used < last_used_before]
            lambda_runtime._workers[key] = [w for w in workers if w not in idle]
            taken += idle
    return taken
