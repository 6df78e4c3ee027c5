"""A clock that moves only when a test says so, and that a thread can wait for."""

from __future__ import annotations

import os
import select
import threading


class ManualClock:
    """Implements `terms.ports.Clock`. Thread-safe; time never goes back."""

    def __init__(self, now: float = 1_700_000_000.0) -> None:
        self._lock = threading.Lock()
        self._now = now
        self._waiting: dict[int, float] = {}

    def __call__(self) -> float:
        return self._now

    def advance(self, seconds: float) -> None:
        """Raises ValueError for a negative number."""
        if seconds < 0:
            raise ValueError("time does not go back")
        with self._lock:
            self._now += seconds
            for wake, when in self._waiting.items():
                if when <= self._now:
                    os.eventfd_write(wake, 1)

    def wait_until(self, when: float, *interrupts: int) -> int | None:
        """Block until the clock has reached `when` (gives None) or one of the descriptors
        `interrupts` is readable (gives that one)."""
        wake = os.eventfd(0, os.EFD_CLOEXEC)
        try:
            with self._lock:
                if when <= self._now:
                    os.eventfd_write(wake, 1)
                self._waiting[wake] = when
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
