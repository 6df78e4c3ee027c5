"""What any sandbox needs, begun before one is asked for.

Two things make the start of a sandbox wait and depend on nothing that it is: its network namespace
(2.4 ms), and the grace period that the kernel lets pass before it moves a process between control
groups, unless one was moved in the last 12 ms or so (12 ms, and again 15 ms later, when the guest
and its first spare are moved). A lease that is being made will want a sandbox in a moment. So both
begin then, beside the copy of its source: for a while moves are kept quick. Of the namespaces one
is always ready from then on.

Nothing here belongs to a lease or is found again after a crash: a namespace that nothing has
entered ends with the daemon. What fails here is logged, and done again by the start itself, whose
failure it then is.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final

from stockade.host import netns
from stockade.host.keeper import Keeper
from stockade.terms.fault import Failure

# From the lease to its first call, and from that to the first spare, with some room.
KEPT_S: Final = 0.05
# A grace period takes longer than this.
STEP_S: Final = 0.005

_log: Final = logging.getLogger(__name__)


class Ahead:
    """Thread-safe. Without a `keeper`, as in an embedded runtime, no grace period is begun ahead:
    there is no process of our own that can be written to the group that it is in."""

    def __init__(self, background: Executor, keeper: Keeper | None) -> None:
        self._background = background
        self._keeper = keeper
        self._lock = threading.Lock()
        self._network: Future[int] | None = None
        self._until = 0.0
        self._keeping = False
        self._closed = threading.Event()

    def expect(self) -> None:
        """A sandbox will be asked for, or its processes moved, in a moment. Returns at once; may be
        repeated."""
        with self._lock:
            if self._closed.is_set():
                return
            self._until = time.monotonic() + KEPT_S
            if self._keeper is not None and not self._keeping:
                self._keeping = True
                self._background.submit(self._keep_moves_quick, self._keeper)
            if self._network is None:
                self._network = self._background.submit(netns.create)

    def network(self) -> int:
        """A descriptor of a network namespace that nothing was ever in; the caller's from now on.
        Raises Failure(engine_unavailable)."""
        with self._lock:
            made, self._network = self._network, None
        # One that has not been begun is made here: the background may be busy with other things.
        if made is not None and not made.cancel():
            try:
                return made.result()
            except Failure as error:
                _log.info("a network namespace could not be made ahead: %s", error)
        return netns.create()

    def close(self) -> None:
        with self._lock:
            self._closed.set()
            made, self._network = self._network, None
        if made is not None and not made.cancel():
            with suppress(Failure):  # then there is none to close
                os.close(made.result())

    def _keep_moves_quick(self, keeper: Keeper) -> None:
        try:
            while self._wanted():
                keeper.rejoin()
                self._closed.wait(STEP_S)
        except OSError as error:
            _log.info("moves between control groups are not kept quick: %s", error)
            with self._lock:
                self._keeping = False

    def _wanted(self) -> bool:
        with self._lock:
            self._keeping = not self._closed.is_set() and time.monotonic() < self._until
            return self._keeping
