"""How many requests of each kind are handled at once, and how many may wait.

Every connection has a thread, so a request needs no hand-over; a lane only bounds them. Looking,
cancelling and releasing (`control`) have a lane of their own, so that they answer while every call
place is taken; so has copying (`bulk`), and so has what goes as slowly as a client reads or writes
(`transfer`). Calls are only counted here: they are bounded where their tenant is known
(`stockade.flow.places`), else one tenant's calls would keep another's from being looked at.

Of each lane and its queue one party (a tenant, all operators, or all who are not known) has at most
seven eighths: an upload lasts as long as its client likes, and some places stay for the others.
"""

from __future__ import annotations

import threading
from collections import Counter
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
        self._places: Mapping[Lane, int] = {
            Lane.BULK: BULK_PLACES,
            Lane.TRANSFER: TRANSFER_PLACES,
            Lane.CONTROL: CONTROL_PLACES,
        }
        self._changed = threading.Condition()
        self._running = dict.fromkeys(Lane, 0)
        self._waiting = dict.fromkeys(Lane, 0)
        # Of each party, those that are not 0.
        self._running_of: Counter[tuple[Lane, str | None]] = Counter()
        self._waiting_of: Counter[tuple[Lane, str | None]] = Counter()

    def enter(self, lane: Lane, party: str | None) -> _Place:
        """`with` waits for a place and holds it; it raises Failure(busy) when too many wait
        already."""
        return _Place(self, lane, party)

    def take(self, lane: Lane, party: str | None) -> None:
        """As `enter` at its beginning; `give` belongs to it."""
        with self._changed:
            if lane in self._places:
                if not self._free(lane, party):
                    self._wait(lane, party)
                self._running_of[lane, party] += 1
            self._running[lane] += 1

    def give(self, lane: Lane, party: str | None) -> None:
        with self._changed:
            self._running[lane] -= 1
            if lane in self._places:
                _less(self._running_of, (lane, party))
            self._changed.notify_all()

    def idle(self, timeout_s: float) -> bool:
        """Wait until nothing runs; False when `timeout_s` passed before."""
        with self._changed:
            return self._changed.wait_for(
                lambda: not any(self._running.values()) and not any(self._waiting.values()),
                timeout_s,
            )

    def _free(self, lane: Lane, party: str | None) -> bool:
        places = self._places[lane]
        return self._running[lane] < places and self._running_of[lane, party] < _share(places)

    def _wait(self, lane: Lane, party: str | None) -> None:
        if self._waiting[lane] >= _QUEUE or self._waiting_of[lane, party] >= _share(_QUEUE):
            count = self._running[lane] + self._waiting[lane]
            raise failure(
                Code.BUSY,
                f"{count} requests are running or waiting; nothing ran",
                retry_after_ms=1000,
            )
        self._waiting[lane] += 1
        self._waiting_of[lane, party] += 1
        self._changed.wait_for(lambda: self._free(lane, party))
        self._waiting[lane] -= 1
        _less(self._waiting_of, (lane, party))


class _Place:
    """For one request."""

    __slots__ = ("_lane", "_lanes", "_party")

    def __init__(self, lanes: Lanes, lane: Lane, party: str | None) -> None:
        self._lanes, self._lane, self._party = lanes, lane, party

    def __enter__(self) -> None:
        self._lanes.take(self._lane, self._party)

    def __exit__(self, *_: object) -> None:
        self._lanes.give(self._lane, self._party)


def _share(places: int) -> int:
    return places - places // 8


def _less(counts: Counter[tuple[Lane, str | None]], key: tuple[Lane, str | None]) -> None:
    counts[key] -= 1
    if not counts[key]:
        del counts[key]
