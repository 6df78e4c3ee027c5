"""A clock that moves only when a test says so, and that a thread can wait for."""

from __future__ import annotations

import os
import select
import threading

from stockade.terms.moment import Moment


class ManualClock:
    """Implements `terms.moment.Timekeeper`. Thread-safe. Time never goes back; `step` sets the wall
    clock as a person would, and nobody who waits notices."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._boot_s = 1000.0
        self._wall_s = now
        self._boots = 1
        self._waiting: dict[int, float] = {}

    def __call__(self) -> float:
        return self._wall_s

    def moment(self) -> Moment:
        with self._lock:
            return Moment(self._wall_s, self._boot_s, f"boot-{self._boots}")

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError("time does not go back")
        with self._lock:
            self._boot_s += seconds
            self._wall_s += seconds
            for wake, when in self._waiting.items():
                if when <= self._boot_s:
                    os.eventfd_write(wake, 1)

    def step(self, seconds: float) -> None:
        """Set the wall clock forward, or back with a negative number. No time passes."""
        with self._lock:
            self._wall_s += seconds

    def reboot(self, seconds: float) -> None:
        """The host was down for `seconds`; the wall clock went on. Nobody may be waiting."""
        with self._lock:
            assert not self._waiting
            self._boots += 1
            self._boot_s = 10.0
            self._wall_s += seconds

    def wait_until(self, when: float, *interrupts: int) -> int | None:
        """Block until as much time has passed as is left until the wall clock's `when` (gives None)
        or one of the descriptors `interrupts` is readable (gives that one)."""
        wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            with self._lock:
                end = when - self._wall_s + self._boot_s
                if end <= self._boot_s:
                    os.eventfd_write(wake, 1)
                self._waiting[wake] = end
            poll = select.poll()
            for descriptor in (wake, *interrupts):
                poll.register(descriptor, select.POLLIN)
            ready = {descriptor for descriptor, _ in poll.poll()}
            return next((fd for fd in interrupts if fd in ready), None)
        finally:
            with self._lock:
                self._waiting.pop(wake, None)
            os.close(wake)

    def waiting(self) -> int:
        """How many threads wait now: a test advances the clock once they do."""
        with self._lock:
            return len(self._waiting)

    def still(self) -> int:
        """How many of those have not been woken: a thread that has may take long to go on."""
        with self._lock:
            return sum(when > self._boot_s for when in self._waiting.values())
