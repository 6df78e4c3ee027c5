"""How many calls run at once on this host, and who is next.

A call takes a place for as long as it runs. `calls` bounds all of them together and `per_tenant`
those of one tenant, which is less: however many long calls a tenant starts, some places stay for the
others. Who finds none waits in a queue of its tenant, and a place that becomes free goes to the
tenants in turn, so a flood of one tenant makes another wait for one call and not for the flood.

The queues together hold `queue` calls. When they are full, a newcomer of a tenant with fewer waiting
displaces the newest of the tenant with most; otherwise it is refused. Nobody waits longer than
`queue_s`, nor longer than its own call may take, nor after its cancellation: it holds a descriptor
of its own to be woken by and polls it beside that of its cancellation.
"""

from __future__ import annotations

import os
import select
import threading
from collections import Counter, deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from enum import Enum
from typing import Final

from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End
from stockade.terms.patience import CancelSignal

RETRY_AFTER_MS: Final = 1000


class _Answer(Enum):
    GRANTED = "granted"
    DISPLACED = "displaced"
    STOPPED = "stopped"


@dataclass(eq=False, slots=True)
class _Waiter:
    tenant: str
    woken: int
    answer: _Answer | None = None

    def tell(self, answer: _Answer) -> None:
        self.answer = answer
        os.eventfd_write(self.woken, 1)


class Places:
    """Thread-safe."""

    def __init__(
        self, calls: int = 64, queue: int = 256, per_tenant: int = 56, queue_s: float = 30
    ) -> None:
        self._calls = calls
        self._queue = queue
        self._per_tenant = per_tenant
        self._queue_s = queue_s
        self._lock = threading.Lock()
        self._running: Counter[str] = Counter()
        self._total = 0
        # Only tenants with waiting calls are here, the one whose turn it is first.
        self._queues: dict[str, deque[_Waiter]] = {}
        self._waiting = 0
        self._stopping = False

    @contextmanager
    def hold(
        self, tenant: str, cancel: CancelSignal, at_most_s: float | None = None
    ) -> Iterator[None]:
        """One place. Raises Failure: busy (too many wait, or none became free in time),
        shutting_down, cancelled, lease_expired. Nothing ran then."""
        waiter = self._enter(tenant)
        if waiter is not None:
            wait_s = self._queue_s if at_most_s is None else min(self._queue_s, at_most_s)
            self._wait(waiter, cancel, wait_s)
        try:
            yield
        finally:
            self._leave(tenant)

    def stop(self) -> None:
        """Let nobody in any more and send away who waits. What runs goes on."""
        with self._lock:
            self._stopping = True
            for queue in self._queues.values():
                for waiter in queue:
                    waiter.tell(_Answer.STOPPED)
            self._queues.clear()
            self._waiting = 0

    def count(self) -> tuple[int, int]:
        """How many run and how many wait."""
        with self._lock:
            return self._total, self._waiting

    def _enter(self, tenant: str) -> _Waiter | None:
        """None with a place, else a waiter in its queue."""
        with self._lock:
            if self._stopping:
                raise _stopped()
            # While there are free places only tenants wait that have as many as they may.
            if self._total < self._calls and self._running[tenant] < self._per_tenant:
                self._take(tenant)
                return None
            if self._waiting >= self._queue:
                self._make_room(tenant)
            waiter = _Waiter(tenant, os.eventfd(0, os.EFD_CLOEXEC))
            self._queues.setdefault(tenant, deque()).append(waiter)
            self._waiting += 1
            return waiter

    def _make_room(self, tenant: str) -> None:
        longest = max(self._queues.values(), key=len, default=deque())
        # One more would only swap who is the longest.
        if len(longest) < len(self._queues.get(tenant, ())) + 2:
            raise _busy(f"{self._total} calls run and {self._waiting} wait")
        last = longest.pop()
        self._waiting -= 1
        last.tell(_Answer.DISPLACED)

    def _wait(self, waiter: _Waiter, cancel: CancelSignal, wait_s: float) -> None:
        try:
            poll = select.poll()
            poll.register(waiter.woken, select.POLLIN)
            poll.register(cancel.fileno(), select.POLLIN)
            poll.poll(wait_s * 1000)
        finally:
            with self._lock:
                answer = waiter.answer
                if answer is None:
                    self._forget(waiter)
            os.close(waiter.woken)
        reason = cancel.reason()
        if answer is _Answer.GRANTED and reason is None:
            return
        if answer is _Answer.GRANTED:
            self._leave(waiter.tenant)
        if answer is _Answer.STOPPED:
            raise _stopped()
        if reason is End.LEASE_EXPIRED:
            raise failure(Code.LEASE_EXPIRED, "the lease ended while the call waited; nothing ran")
        if reason is not None:
            raise failure(Code.CANCELLED, "cancelled while it waited for a place; nothing ran")
        if answer is _Answer.DISPLACED:
            raise _busy("other tenants' calls wait, and this tenant has most")
        raise _busy(f"no place became free within {wait_s:.3g} s")

    def _forget(self, waiter: _Waiter) -> None:
        queue = self._queues[waiter.tenant]
        queue.remove(waiter)
        if not queue:
            del self._queues[waiter.tenant]
        self._waiting -= 1

    def _take(self, tenant: str) -> None:
        self._running[tenant] += 1
        self._total += 1

    def _leave(self, tenant: str) -> None:
        with self._lock:
            self._total -= 1
            self._running[tenant] -= 1
            if not self._running[tenant]:
                del self._running[tenant]
            self._grant()

    def _grant(self) -> None:
        while self._total < self._calls:
            tenant = next((t for t in self._queues if self._running[t] < self._per_tenant), None)
            if tenant is None:
                return
            queue = self._queues.pop(tenant)
            waiter = queue.popleft()
            if queue:
                self._queues[tenant] = queue  # at the end: the others come first
            self._waiting -= 1
            self._take(tenant)
            waiter.tell(_Answer.GRANTED)


def _busy(why: str) -> Failure:
    return failure(Code.BUSY, f"{why}; nothing ran", rule="limits", retry_after_ms=RETRY_AFTER_MS)


def _stopped() -> Failure:
    return failure(Code.SHUTTING_DOWN, "the daemon is stopping; nothing ran")
