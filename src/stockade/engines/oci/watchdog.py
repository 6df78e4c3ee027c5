"""Ends a call on time while its output is held up.

With untruncated streams the pump waits for whoever reads them (that is what keeps memory bounded),
and a reader may stop for minutes. The deadline and the cancellation must not wait for it, so such a
call has a second thread that waits for them alone and kills the call's group.
"""

from __future__ import annotations

import os
import select
import threading
import time
from types import TracebackType
from typing import Self

from stockade.host.call_group import CallGroup
from stockade.terms.ports import CancelSignal


class Watchdog:
    """A context manager around the pumping of one call; `deadline` is monotonic. `fired`, to be
    read afterwards, says that it ended the call."""

    def __init__(
        self, group: CallGroup, cancel: CancelSignal, deadline: float, kill_timeout_s: float
    ) -> None:
        self._group = group
        self._cancel = cancel
        self._deadline = deadline
        self._kill_timeout_s = kill_timeout_s
        self._over = os.eventfd(0, os.EFD_CLOEXEC)
        self.fired = False
        self._thread = threading.Thread(target=self._watch, name="watchdog")

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        os.eventfd_write(self._over, 1)
        self._thread.join()
        os.close(self._over)

    def _watch(self) -> None:
        poller = select.poll()
        poller.register(self._over, select.POLLIN)
        poller.register(self._cancel.fileno(), select.POLLIN)
        left = max(0.0, self._deadline - time.monotonic())
        if self._over not in (fd for fd, _ in poller.poll(left * 1000)):
            self.fired = True
            self._group.kill(self._kill_timeout_s)
