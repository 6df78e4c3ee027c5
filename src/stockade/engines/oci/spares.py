"""The spares of a sandbox: processes that wait in their cgroups for a command.

A spare is a child of the guest that was forked and moved into a group of its own ahead of time, so
that starting a command is one message and no instruction of it runs outside its group. One that was
used is replaced in the background, and its group removed. A group in which a finished command left
something running stays; each later replacement looks at a few of those again, so that calls that
leave something behind for a moment don't pile up groups.

Replacing begins `DELAY_S` after the call, unless none is left: forking in the guest and placing
compete with the reply for two processors and the interpreter (0.5 ms of a call, measured).
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
        self._survived: deque[CallGroup] = deque()
        self._coming = 0
        self._waiting = 0
        self._failures = 0
        self._made = 0
        self._closed = False
        self._trouble = f"no process was ready within {MAKE_TIMEOUT_S:.0f} s"

    def prepare(self) -> None:
        """Make the first one now and the others in the background. Raises Failure."""
        self._add()
        self._order(0.0)

    def take(self) -> Placed:
        """Raises Failure(sandbox_unavailable); then nothing ran."""
        with self._changed:
            failures = self._failures
            self._waiting += 1
            try:
                if not self._ready:
                    self._order_locked(0.0)
                    self._changed.wait_for(
                        lambda: (
                            self._ready
                            or self._closed
                            or (self._failures > failures and not self._coming)
                        ),
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
        """The call is over: tidy up after it and make the next spare."""
        used.spare.close()
        with self._changed:
            if self._closed:
                used.group.close()
                return
            self._coming += 1
            delay = DELAY_S if self._ready else 0.0
        self._background.submit(self._replace, used, delay)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            unused, self._ready = list(self._ready), deque()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._coming, MAKE_TIMEOUT_S)
        for placed in unused:
            placed.discard()

    def _order(self, delay_s: float) -> None:
        with self._changed:
            self._order_locked(delay_s)

    def _order_locked(self, delay_s: float) -> None:
        wanted = max(SPARES, self._waiting)
        while not self._closed and len(self._ready) + self._coming < wanted:
            self._coming += 1
            self._background.submit(self._replace, None, delay_s)

    def _replace(self, used: Placed | None, delay_s: float) -> None:
        done = False
        try:
            if delay_s:
                time.sleep(delay_s)
            if used is not None:
                used.group.close()
                self._survived.appendleft(used.group)
                self._tidy()
            with self._changed:
                enough = self._closed or len(self._ready) >= max(SPARES, self._waiting)
            if not enough:
                self._add()
            done = True
        except (Failure, OSError) as error:
            self._trouble = str(error)
        finally:
            with self._changed:
                self._coming -= 1
                if done:
                    # Callers may have come to wait for this one after it was found to be enough.
                    self._order_locked(0.0)
                else:
                    self._failures += 1
                self._changed.notify_all()

    def _tidy(self) -> None:
        """Remove the newest used group, and look at a few of the older ones."""
        for _ in range(LOOKS):
            try:
                group = self._survived.popleft()
            except IndexError:
                return
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
