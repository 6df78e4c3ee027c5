"""Calls that are running now, so that they can be cancelled by name or with their lease.

Also the place where a lease's `parallel` limit is held: a call enters before it needs a sandbox and
leaves when its result is shaped, whatever happened in between.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from stockade.terms.fault import Code, failure
from stockade.terms.outcome import End
from stockade.terms.patience import CancelSignal

RETRY_AFTER_MS = 250


@dataclass(frozen=True, slots=True)
class RunningCall:
    lease_id: str
    request_id: str
    call_id: str | None
    turn: int | None
    chain: tuple[str, ...]
    cancel: CancelSignal


class Running:
    """Thread-safe. `new_signal` makes one cancellation per call."""

    def __init__(self, new_signal: Callable[[], CancelSignal]) -> None:
        self._new_signal = new_signal
        self._changed = threading.Condition()
        self._calls: dict[str, RunningCall] = {}
        self._closed_leases: Counter[str] = Counter()
        self._draining = False

    @contextmanager
    def enter(
        self,
        lease_id: str,
        request_id: str,
        call_id: str | None,
        parallel: int,
        turn: int | None = None,
        chain: tuple[str, ...] = (),
    ) -> Iterator[CancelSignal]:
        """Hold one of the lease's places under the capability with these block ids. Raises
        Failure(busy) when all are taken, Failure(right_not_granted) when there is none,
        Failure(shutting_down) once `drain` was called."""
        with self._changed:
            if self._draining:
                raise failure(Code.SHUTTING_DOWN, "the daemon is stopping; nothing ran")
            if self._closed_leases[lease_id] > 0:
                raise failure(
                    Code.BUSY,
                    "the lease is being reset, released or copied; nothing ran",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            if parallel < 1:
                raise failure(
                    Code.RIGHT_NOT_GRANTED,
                    "the capability allows no call: per_lease.parallel is 0",
                    rule="per_lease.parallel",
                )
            active = sum(call.lease_id == lease_id for call in self._calls.values())
            if active >= parallel:
                raise failure(
                    Code.BUSY,
                    f"{active} calls of this lease are running; its limit is {parallel}",
                    rule="per_lease.parallel",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            signal = self._new_signal()
            self._calls[request_id] = RunningCall(
                lease_id, request_id, call_id, turn, chain, signal
            )
        try:
            yield signal
        finally:
            with self._changed:
                del self._calls[request_id]
                self._changed.notify_all()
            signal.close()

    def cancel(self, lease_id: str, name: str, turn: int | None = None) -> int:
        """Cancel the lease's calls whose call id or request id is `name`, of this turn only where
        one is given; gives how many."""
        with self._changed:
            found = [
                call
                for call in self._calls.values()
                if call.lease_id == lease_id
                and name in (call.call_id, call.request_id)
                and turn in (None, call.turn)
            ]
            for call in found:
                call.cancel.set(End.CANCELLED)
        return len(found)

    def cancel_below(self, block: str) -> int:
        """Cancel the calls of every lease whose capability has the block `block`; gives how
        many."""
        with self._changed:
            found = [call for call in self._calls.values() if block in call.chain]
            for call in found:
                call.cancel.set(End.CANCELLED)
        return len(found)

    @contextmanager
    def closed(self, lease_id: str, reason: End, timeout_s: float) -> Iterator[None]:
        """End every call of the lease with `reason` and let no new one in meanwhile.
        Raises Failure(busy) when a call has not ended within `timeout_s`."""
        with self._changed:
            self._closed_leases[lease_id] += 1
            try:
                for call in self._calls.values():
                    if call.lease_id == lease_id:
                        call.cancel.set(reason)
                ended = self._changed.wait_for(
                    lambda: all(call.lease_id != lease_id for call in self._calls.values()),
                    timeout_s,
                )
            except BaseException:
                self._open(lease_id)
                raise
        try:
            if not ended:
                raise failure(
                    Code.BUSY,
                    f"a call of the lease did not end within {timeout_s:.0f} s",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            yield
        finally:
            with self._changed:
                self._open(lease_id)

    @contextmanager
    def idle(self, lease_ids: Collection[str]) -> Iterator[None]:
        """Let no call into these leases meanwhile. Raises Failure(busy), and ends nothing, when one
        is running."""
        with self._changed:
            if any(call.lease_id in lease_ids for call in self._calls.values()):
                raise failure(
                    Code.BUSY,
                    "calls are running in the workspace that is to be copied",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            self._closed_leases.update(lease_ids)
        try:
            yield
        finally:
            with self._changed:
                for lease_id in lease_ids:
                    self._open(lease_id)

    def _open(self, lease_id: str) -> None:
        self._closed_leases[lease_id] -= 1
        if self._closed_leases[lease_id] <= 0:
            del self._closed_leases[lease_id]

    def drain(self, timeout_s: float) -> bool:
        """Let no call in any more; wait for the running ones, then cancel the rest and wait again.
        True when none is left."""
        with self._changed:
            self._draining = True
            if self._changed.wait_for(lambda: not self._calls, timeout_s):
                return True
            for call in self._calls.values():
                call.cancel.set(End.CANCELLED)
            return self._changed.wait_for(lambda: not self._calls, timeout_s)
