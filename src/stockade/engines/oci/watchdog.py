"""Ends a call on time where the pump can't: beside it, on a second thread.

With untruncated streams the pump waits for whoever reads them (that is what keeps memory bounded),
and a reader may stop for minutes. The deadline and the cancellation must not wait for it. Budgets of
processor time are watched here too, for the same reason; the meter says when to look again.
"""

from __future__ import annotations

import os
import select
import threading
import time
from typing import Self

from stockade.host.call_group import CallGroup
from stockade.host.hurry import kept
from stockade.host.pump import MAX_POLL_MS
from stockade.terms.patience import CancelSignal
from stockade.terms.ports import CpuMeter


class Watchdog:
    """A context manager around the pumping of one call; `deadline` is monotonic. `fired`, to be
    read afterwards, says what it ended the call for: deadline, cancelled, budget or nothing."""

    def __init__(
        self,
        group: CallGroup,
        cancel: CancelSignal,
        deadline: float,
        kill_timeout_s: float,
        cpu: CpuMeter | None,
    ) -> None:
        self._group = group
        self._cancel = cancel
        self._deadline = deadline
        self._kill_timeout_s = kill_timeout_s
        self._cpu = cpu
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self.fired: str | None = None
        self._thread = threading.Thread(target=self._watch, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        os.eventfd_write(self._over, 1)
        self._thread.join()
        os.close(self._over)

    def _watch(self) -> None:
        if self._cpu is None:
            self.fired = self._wait()
        else:
            with kept(self._group.quotas):
                self.fired = self._wait()
        if self.fired is not None:
            self._group.kill(self._kill_timeout_s)

    def _wait(self) -> str | None:
        poller = select.poll()
        poller.register(self._over, select.POLLIN)
        poller.register(self._cancel.fileno(), select.POLLIN)
        while True:
            pause_ms = max(0.0, self._deadline - time.monotonic()) * 1000
            if self._cpu is not None:
                look_ms = self._cpu.more(self._group.cpu_ms())
                if look_ms is None:
                    return "budget"
                pause_ms = min(pause_ms, look_ms)
            ready = [fd for fd, _ in poller.poll(min(pause_ms, MAX_POLL_MS))]
            if self._over in ready:
                return None
            if ready:
                return "cancelled"
            if time.monotonic() >= self._deadline:
                return "deadline"
