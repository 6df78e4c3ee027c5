"""A cancellation that poll(2) can wait for: an eventfd(2) beside a reason that is set once."""

from __future__ import annotations

import os
import threading

from stockade.terms.outcome import End


class EventfdCancel:
    """Implements `terms.ports.CancelSignal`. The first reason wins; `close` after the last use."""

    def __init__(self) -> None:
        self._fd = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        self._lock = threading.Lock()
        self._reason: End | None = None
        self._closed = False

    def fileno(self) -> int:
        return self._fd

    def reason(self) -> End | None:
        return self._reason

    def set(self, reason: End) -> None:
        with self._lock:
            if self._reason is None and not self._closed:
                self._reason = reason
                os.eventfd_write(self._fd, 1)

    def close(self) -> None:
        with self._lock:
            if not self._closed:
                self._closed = True
                os.close(self._fd)
