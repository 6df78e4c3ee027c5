"""How many requests of each kind are handled at once, and how many may wait.

Every connection has a thread, so a request needs no hand-over; a lane only bounds them. Looking,
cancelling and releasing (`control`) have a lane of their own, so that they answer while every call
place is taken; so has copying (`bulk`), and so has what goes as slowly as a client reads or writes
(`transfer`). Calls are only counted here: they are bounded where their tenant is known
(`stockade.flow.places`), else one tenant's calls would keep another's from being looked at.
"""

from __future__ import annotations

import math
import threading
from collections.abc import Mapping
from typing import Final

from stockade.edge.routing import Lane
from stockade.terms.fault import Code, failure

BULK_PLACES: Final = 8
TRANSFER_PLACES: Final = 16
CONTROL_PLACES: Final = 64
_QUEUE: Final = 256


class Lanes:
    """Thread-safe."""

    def __init__(self) -> None:
        self._places: Mapping[Lane, float] = {
            Lane.CALL: math.inf,
            Lane.BULK: BULK_PLACES,
            Lane.TRANSFER: TRANSFER_PLACES,
            Lane.CONTROL: CONTROL_PLACES,
        }
        self._changed = threading.Condition()
        self._running = dict.fromkeys(self._places, 0)
        self._waiting = dict.fromkeys(self._places, 0)
        self._doors = {lane: _Place(self, lane) for lane in self._places}

    def enter(self, lane: Lane) -> _Place:
        """`with` waits for a place and holds it; it raises Failure(busy) when too many wait
        already."""
        return self._doors[lane]

    def take(self, lane: Lane) -> None:
        """As `enter` at its beginning; `give` belongs to it."""
        with self._changed:
            if self._running[lane] >= self._places[lane]:
                if self._waiting[lane] >= _QUEUE:
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

    def give(self, lane: Lane) -> None:
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


class _Place:
    """Of one lane; holds nothing itself, so that any number of threads may be in it."""

    def __init__(self, lanes: Lanes, lane: Lane) -> None:
        self._lanes, self._lane = lanes, lane

    def __enter__(self) -> None:
        self._lanes.take(self._lane)

    def __exit__(self, *_: object) -> None:
        self._lanes.give(self._lane)
