"""What any sandbox needs, begun before one is asked for.

Two things make the start of a sandbox wait and depend on nothing that it is: its network namespace
(2.4 ms), and the grace period that the kernel lets pass before it moves a process between control
groups, unless one was moved in the last 12 ms or so (12 ms, of a start of 30). A lease that is being
made will want a sandbox in a moment; so both begin then, beside the copy of its source.

Nothing here belongs to a lease or is found again after a crash: a namespace that nothing has
entered ends with the daemon. What fails here is logged, and done again by the start itself, whose
failure it then is.
"""

from __future__ import annotations

import logging
import os
import threading
from concurrent.futures import Executor, Future
from contextlib import suppress
from typing import Final

from stockade.host import netns
from stockade.host.keeper import Keeper
from stockade.terms.fault import Failure

_log: Final = logging.getLogger(__name__)


class Ahead:
    """Thread-safe. Without a `keeper`, as in an embedded runtime, no grace period is begun ahead:
    there is no process of our own that can be written to the group that it is in."""

    def __init__(self, background: Executor, keeper: Keeper | None) -> None:
        self._background = background
        self._keeper = keeper
        self._lock = threading.Lock()
        self._network: Future[int] | None = None
        self._waiting = False
        self._closed = False

    def expect(self) -> None:
        """A sandbox will be asked for in a moment. Returns at once; may be repeated."""
        with self._lock:
            if self._closed:
                return
            if self._keeper is not None and not self._waiting:
                self._waiting = True
                self._background.submit(self._wait_for_groups, self._keeper)
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
            self._closed = True
            made, self._network = self._network, None
        if made is not None and not made.cancel():
            with suppress(Failure):  # then there is none to close
                os.close(made.result())

    def _wait_for_groups(self, keeper: Keeper) -> None:
        try:
            keeper.rejoin()
        except OSError as error:
            _log.info("moves between control groups are not made ready: %s", error)
        finally:
            with self._lock:
                self._waiting = False
