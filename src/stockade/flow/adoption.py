"""Commands of an earlier process that no claim waits for: reads, and what was settled when it died.

The latter have ended. A read that still runs has nobody to answer, and nobody knows what bounds it:
it is ended. A thread for each waits until it is. It holds a place in `Running`, so that no reset or
release of its lease comes in between. What has a claim is `settlement`'s.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Iterable
from contextlib import ExitStack
from typing import Final

from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.terms.claim import StillRunning
from stockade.terms.outcome import End
from stockade.terms.patience import CancelSignal
from stockade.terms.ports import ArtifactStore, ExecContext, LeftCall

# Its own deadline is earlier.
_LONGEST_MS: Final = 7 * 24 * 3_600_000
_MOST_AT_ONCE: Final = 10_000

_log: Final = logging.getLogger("stockade.call")


class Adoption:
    """`begin` once, after the claims were settled; then `wait` for all."""

    def __init__(self, running: Running, sandboxes: Sandboxes, artifacts: ArtifactStore) -> None:
        self._running = running
        self._sandboxes = sandboxes
        self._artifacts = artifacts
        self._threads: list[threading.Thread] = []

    def begin(self, calls: Iterable[LeftCall]) -> None:
        """Take up those that nobody has asked for. Returns when each holds its place."""
        for call in calls:
            if call.asked:
                continue
            with ExitStack() as place:
                name = f"left-{call.call}"
                cancel = place.enter_context(
                    self._running.enter(call.lease_id, name, None, _MOST_AT_ONCE)
                )
                thread = threading.Thread(
                    target=self._finish, args=(call, cancel, place.pop_all()), name=name
                )
            self._threads.append(thread)
            thread.start()

    def wait(self) -> None:
        """Returns when all have ended."""
        for thread in self._threads:
            thread.join()

    def _finish(self, call: LeftCall, cancel: CancelSignal, place: ExitStack) -> None:
        with place:
            try:
                evidence = call.evidence()
                if isinstance(evidence, StillRunning):
                    cancel.set(End.CANCELLED)  # of one that has ended this changes nothing
                    context = ExecContext(call.lease_id, cancel, self._artifacts)
                    evidence.finish(context, _LONGEST_MS)
            except Exception as error:
                _log.warning("lease=%s a command of the last daemon: %s", call.lease_id, error)
            self._sandboxes.forget(call.sandbox, call.call)
