"""The spares of a sandbox: processes that wait in their cgroups for a command.

A spare is a child of the guest that was forked and moved into a group of its own ahead of time, so
that starting a command is one message and no instruction of it runs outside its group. One that was
used is replaced in the background, and its group removed. A group in which a finished command left
something running stays; each later replacement looks at a few of those again, so that calls that
leave something behind for a moment don't pile up groups.

Making one is forking in the guest and moving between groups, which competes with calls for two
processors and the interpreter, and a move waits for a grace period unless another was just before.
So one job at a time makes all that are missing, once that are `BATCH`, and begins `DELAY_S` after
the call, so that its reply goes out first. Calls that follow each other within `BUSY_S` want more of
them: a grace period takes as long as five such calls.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Executor
from dataclasses import dataclass
from typing import Final

from stockade.host.call_group import CallGroup
from stockade.host.guest_link import GuestLink, Spare
from stockade.host.lease_groups import SandboxGroups
from stockade.terms.fault import Code, Failure, failure

SPARES: Final = 3
BUSY_SPARES: Final = 6
BUSY_S: Final = 0.05
BATCH: Final = 2
DELAY_S: Final = 0.002
MAKE_TIMEOUT_S: Final = 10.0
LOOKS: Final = 4


@dataclass(frozen=True, slots=True)
class Placed:
    """A spare in its own group."""

    spare: Spare
    group: CallGroup

    def discard(self) -> None:
        self.spare.close()
        self.group.close()


class Spares:
    """Thread-safe. `close` after the sandbox's processes are dead."""

    def __init__(self, link: GuestLink, groups: SandboxGroups, background: Executor) -> None:
        self._link = link
        self._groups = groups
        self._background = background
        self._changed = threading.Condition()
        self._ready: deque[Placed] = deque()
        self._used: deque[CallGroup] = deque()
        self._survived: deque[CallGroup] = deque()
        self._making = False
        self._wanted = SPARES
        self._last_used = 0.0
        self._waiting = 0
        self._failures = 0
        self._made = 0
        self._closed = False
        self._trouble = f"no process was ready within {MAKE_TIMEOUT_S:.0f} s"

    def prepare(self) -> None:
        """Make the first one now and the others in the background. Raises Failure."""
        self._add()
        with self._changed:
            self._order(0.0)

    def take(self) -> Placed:
        """Raises Failure(sandbox_unavailable); then nothing ran."""
        with self._changed:
            if self._ready:
                return self._ready.popleft()
            failures = self._failures
            self._waiting += 1
            try:
                self._order(0.0)
                self._changed.wait_for(
                    lambda: self._ready or self._closed or self._failures > failures,
                    MAKE_TIMEOUT_S,
                )
                if self._ready:
                    return self._ready.popleft()
            finally:
                self._waiting -= 1
            trouble = "it is closed" if self._closed else self._trouble
        raise failure(
            Code.SANDBOX_UNAVAILABLE, f"the sandbox is not usable: {trouble}; nothing ran"
        )

    def give_back(self, used: Placed) -> None:
        """The call is over: tidy up after it and make new ones when few are left."""
        used.discard()
        now = time.monotonic()
        with self._changed:
            self._used.append(used.group)
            self._wanted = BUSY_SPARES if now - self._last_used < BUSY_S else SPARES
            self._last_used = now
            if len(self._ready) <= self._wanted - BATCH:
                self._order(DELAY_S if self._ready else 0.0)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            unused, self._ready = list(self._ready), deque()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._making, MAKE_TIMEOUT_S)
        for placed in unused:
            placed.discard()

    def _order(self, delay_s: float) -> None:
        """Have the background make what is wanted. The lock is held."""
        if not self._making and not self._closed:
            self._making = True
            self._background.submit(self._make, delay_s)

    def _make(self, delay_s: float) -> None:
        try:
            if delay_s:
                time.sleep(delay_s)
            self._tidy()
            while self._wanting():
                self._add()
        except (Failure, OSError) as error:
            with self._changed:
                self._trouble = str(error)
                self._failures += 1
        finally:
            with self._changed:
                self._making = False
                if self._waiting > len(self._ready):
                    # Callers that came when it was found to be enough.
                    self._order(0.0)
                self._changed.notify_all()

    def _wanting(self) -> bool:
        with self._changed:
            return not self._closed and len(self._ready) < max(self._wanted, self._waiting)

    def _tidy(self) -> None:
        """Remove the used groups, and look at a few of those that something was left in."""
        older = min(LOOKS, len(self._survived))
        with self._changed:
            self._survived.extendleft(self._used)
            older += len(self._used)
            self._used.clear()
        for _ in range(older):
            group = self._survived.popleft()
            if not group.remove():
                self._survived.append(group)

    def _add(self) -> None:
        with self._changed:
            self._made += 1
            number = self._made
        spare = self._link.prefork(number, MAKE_TIMEOUT_S)
        try:
            group = self._groups.place(spare.pid, f"call-{number}")
        except OSError as error:
            spare.close()
            raise failure(
                Code.SANDBOX_UNAVAILABLE, f"a process could not be placed in its cgroup: {error}"
            ) from error
        placed = Placed(spare, group)
        with self._changed:
            if not self._closed:
                self._ready.append(placed)
                self._changed.notify_all()
                return
        placed.discard()
