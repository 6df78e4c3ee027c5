"""Threads for blocking work, in lanes that can't starve each other.

Looking, cancelling and releasing (`control`) have threads of their own, so that they answer while
every call thread sleeps; so has copying (`bulk`), and so has what goes as slowly as a client reads
or writes (`transfer`). What waits in a lane is bounded.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from typing import Final, TypeVar

from stockade.edge.routing import Lane
from stockade.terms.fault import Code, failure

T = TypeVar("T")

BULK_THREADS: Final = 8
TRANSFER_THREADS: Final = 16
CONTROL_THREADS: Final = 8
_OTHER_QUEUE: Final = 256


class Lanes:
    """Used from one event loop."""

    def __init__(self, calls: int, queue: int) -> None:
        threads = {
            Lane.CALL: calls,
            Lane.BULK: BULK_THREADS,
            Lane.TRANSFER: TRANSFER_THREADS,
            Lane.CONTROL: CONTROL_THREADS,
        }
        self._pools: Mapping[Lane, ThreadPoolExecutor] = {
            lane: ThreadPoolExecutor(count, f"stockade-{lane.value}")
            for lane, count in threads.items()
        }
        self._room = {
            lane: count + (queue if lane is Lane.CALL else _OTHER_QUEUE)
            for lane, count in threads.items()
        }
        self._taken = dict.fromkeys(threads, 0)
        self._idle = asyncio.Event()
        self._idle.set()

    async def run(self, lane: Lane, work: Callable[[], T]) -> T:
        """`work()` in a thread of the lane. Raises Failure(busy) when its queue is full."""
        if self._taken[lane] >= self._room[lane]:
            raise failure(
                Code.BUSY,
                f"{self._taken[lane]} requests are running or waiting; nothing ran",
                retry_after_ms=1000,
            )
        self._taken[lane] += 1
        self._idle.clear()
        future = asyncio.get_running_loop().run_in_executor(self._pools[lane], work)
        # The thread is taken until the work ends, even if the one who waits for it goes away.
        future.add_done_callback(lambda _: self._done(lane))
        return await asyncio.shield(future)

    async def idle(self, timeout_s: float) -> bool:
        """Wait until no thread works; False when `timeout_s` passed before."""
        try:
            await asyncio.wait_for(self._idle.wait(), timeout_s)
        except TimeoutError:
            return False
        return True

    def close(self) -> None:
        """No new work. Threads that still work are not waited for here."""
        for pool in self._pools.values():
            pool.shutdown(wait=False)

    def _done(self, lane: Lane) -> None:
        self._taken[lane] -= 1
        if not any(self._taken.values()):
            self._idle.set()
