"""How many requests of each kind are handled at once, and how many may wait.

Every connection has a thread, so a request needs no hand-over; a lane only bounds them. Looking,
cancelling and releasing (`control`) have a lane of their own, so that they answer while every call
place is taken; so has copying (`bulk`), and so has what goes as slowly as a client reads or writes
(`transfer`).
"""

from __future__ import annotations

import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Final

from stockade.edge.routing import Lane
from stockade.terms.fault import Code, failure

BULK_PLACES: Final = 8
TRANSFER_PLACES: Final = 16
CONTROL_PLACES: Final = 64
_OTHER_QUEUE: Final = 256


class Lanes:
    """Thread-safe."""

    def __init__(self, calls: int, queue: int) -> None:
        self._places: Mapping[Lane, int] = {
            Lane.CALL: calls,
            Lane.BULK: BULK_PLACES,
            Lane.TRANSFER: TRANSFER_PLACES,
            Lane.CONTROL: CONTROL_PLACES,
        }
        self._queue = dict.fromkeys(self._places, _OTHER_QUEUE) | {Lane.CALL: queue}
        self._changed = threading.Condition()
        self._running = dict.fromkeys(self._places, 0)
        self._waiting = dict.fromkeys(self._places, 0)

    @contextmanager
    def enter(self, lane: Lane) -> Iterator[None]:
        """Wait for a place and hold it. Raises Failure(busy) when too many wait already."""
        with self._changed:
            if self._running[lane] >= self._places[lane]:
                if self._waiting[lane] >= self._queue[lane]:
                    count = self._running[lane] + self._waiting[lane]
                    raise failure(
                        Code.BUSY,
                        f"{count} requests are running or waiting; nothing ran",
                        retry_after_ms=1000,
                    )
                self._waiting[lane] += 1
                self._changed.wait_for(lambda: self._running[lane] < self._places[lane])
                self._waiting[lane] -= 1
            self._running[lane] += 1
        try:
            yield
        finally:
            with self._changed:
                self._running[lane] -= 1
                self._changed.notify_all()

    def idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs; False when `timeout_s` passed before."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(self._running.values()) and not any(self._waiting.values()),
                timeout_s,
            )
