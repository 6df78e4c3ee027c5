"""Which calls of a sandbox ran alone in it: only of those its highest mark of memory is their own."""

from __future__ import annotations

import threading


class Company:
    """Entered by each call for as long as it runs. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._running = 0
        self._mixed = False

    def __enter__(self) -> None:
        with self._lock:
            self._running += 1
            self._mixed = self._mixed or self._running > 1

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._running -= 1
            if not self._running:
                self._mixed = False

    def mix(self) -> None:
        """A call that runs has a part that nobody saw: until all are over none is alone."""
        with self._lock:
            self._mixed = True

    @property
    def alone(self) -> bool:
        """Whether the one call that runs is the only one since it began."""
        return self._running == 1 and not self._mixed
