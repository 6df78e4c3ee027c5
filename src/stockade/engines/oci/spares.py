"""The spares of a sandbox: processes that wait in their cgroups for a command, plain or as held
shells (held.py).

A spare is a child of the guest that was forked and moved into a group of its own ahead of time, so
that starting a command is one message and no instruction of it runs outside its group. One that was
used is replaced in the background, and its group removed. A group in which a finished command left
something running stays; each later replacement looks at a few of those again, so that calls that
leave something behind for a moment don't pile up groups.

Making one is forking in the guest and moving between groups, which competes with calls for two
processors and the interpreter, and a move waits for a grace period unless another was just before.
So one job at a time makes all that are missing, once that are `BATCH`, and tidies up after calls that
are over. It begins `DELAY_S` after a call, so that its reply goes out first. Calls that follow each
other within `BUSY_S` leave no such time: then it begins when a command has begun, because its call
waits and nobody needs the interpreter; and there are more of them, because a grace period takes as
long as five such calls. There are as many of the sort that the last call used; of the other one
waits.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import replace
from typing import Final, Literal

from stockade.engines.oci.held import Template
from stockade.engines.oci.making import MAKE_TIMEOUT_S, Maker, Placed
from stockade.host.call_group import CallGroup
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import SandboxGroups
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.patience import LOOK_S, Patience

SPARES: Final = 3
BUSY_SPARES: Final = 6
BUSY_S: Final = 0.05
BATCH: Final = 2
DELAY_S: Final = 0.002
# After a sandbox is made there is a call at once, the one that it was made for: it has the two
# processors, and says which sort is wanted.
FIRST_DELAY_S: Final = 0.01
LOOKS: Final = 4
# How often in a row one that is being made may be killed at birth, by a command that kills all.
BIRTHS: Final = 3


class Spares:
    """Thread-safe. `close` after the sandbox's processes are dead."""

    def __init__(
        self,
        link: GuestLink,
        groups: SandboxGroups,
        background: Executor,
        owner: int,
        new_number: Callable[[], int],
        on_refused: Callable[[], None],
        *,
        persistent: bool,
        left: Sequence[CallGroup] = (),
    ) -> None:
        """`owner` is the host id, of user and group, of the user inside. `new_number` names a
        spare, 64 bits that no other of this guest ever had. `on_refused` is told of each process
        that a limit refused and no call wanted. `persistent` ones outlive this process. `left` are
        groups of an earlier process's calls."""
        self._link = link
        self._background = background
        self._maker = Maker(
            link, groups, owner, new_number, self._let_go, on_refused, persistent=persistent
        )
        self._changed = threading.Condition()
        self._plain: deque[Placed] = deque()
        self._held: deque[Placed] = deque()
        # The last shell that could have been held; None again once holding one has failed.
        self._template: Template | None = None
        self._can_hold = True
        self._last_held = False
        self._makings = 0
        self._used: deque[Placed] = deque()
        self._survived: deque[CallGroup] = deque(left)
        self._over: list[int] = []
        # Begun and not over: without its group the next daemon could not tell how one has ended.
        self._open: set[int] = set()
        self._making = False
        self._busy = False
        self._last_used = 0.0
        self._waiting = 0
        self._failures = 0
        self._closed = False
        self._trouble = f"no process was ready within {MAKE_TIMEOUT_S:.0f} s"

    def prepare(self) -> None:
        """Make the first one now and the others in the background. Raises Failure."""
        self._add()
        self.refill(FIRST_DELAY_S)

    @property
    def null(self) -> int:
        """An empty input for a command, until `close`."""
        return self._maker.null

    @property
    def refused(self) -> int:
        """How many processes a limit refused that no call wanted, as far as is known."""
        return self._maker.refused

    @property
    def refused_at_most(self) -> int:
        return self._maker.refused_at_most

    def refill(self, delay_s: float = 0.0) -> None:
        """Have the background make what is wanted."""
        with self._changed:
            self._order(delay_s)

    def take(self, template: Template | None, patience: Patience) -> Placed:
        """A held shell for `template` or a plain spare. Raises Failure(sandbox_unavailable, and
        what `patience` ends with); then nothing ran."""
        with self._changed:
            if template is not None and self._makings:
                template = replace(template, making=self._makings)
            if template is not None and template != self._template and self._can_hold:
                # Another environment, say a secret that was added, replaced or removed: what waits
                # with the old one is of no use and must not stay. Or shells that are distrusted.
                self._template = template
                while self._held:
                    self._let_go(self._held.popleft())
                if not self._making:
                    self._maker.forget()
            usable = template is not None and template == self._template
            self._last_held = usable
            found = self._pop(usable)
            if found is not None:
                return found
            failures = self._failures
            self._waiting += 1
            try:
                self._order(0.0)
                self._wait_for(
                    lambda: bool(
                        self._plain
                        or (usable and self._held)
                        or self._closed
                        or self._failures > failures + BIRTHS
                    ),
                    patience,
                )
                found = self._pop(usable)
                if found is not None:
                    return found
            finally:
                self._waiting -= 1
            trouble = "it is closed" if self._closed else self._trouble
        raise failure(
            Code.SANDBOX_UNAVAILABLE, f"the sandbox is not usable: {trouble}; nothing ran"
        )

    def _wait_for(self, holds: Callable[[], bool], patience: Patience) -> None:
        """Raises Failure when the patience is over first. The lock is held."""
        until = time.monotonic() + MAKE_TIMEOUT_S
        while not self._changed.wait_for(holds, LOOK_S) and time.monotonic() < until:
            patience.check("a process of the sandbox was ready")

    def distrust(self) -> None:
        """A shell that was held has found no program. One that is forked needs no file, so it
        would hide for ever that a command has taken the shell away: the next call executes it."""
        with self._changed:
            self._makings += 1

    def _pop(self, held: bool) -> Placed | None:
        if held and self._held:
            return self._held.popleft()
        return self._plain.popleft() if self._plain else None

    def keep(self, number: int) -> None:
        """The group of this call stays until the call is `over`."""
        with self._changed:
            self._open.add(number)

    def meanwhile(self, number: int) -> None:
        """A command begins to run, whose group stays until it is `over`."""
        with self._changed:
            self._open.add(number)
            now = time.monotonic()
            self._busy = now - self._last_used < BUSY_S
            self._last_used = now
            if self._busy:
                self._replace(0.0)

    def give_back(self, used: Placed) -> None:
        """The call is over. Its descriptors are closed when the next ones are made: a dozen are
        0.05 ms of a reply."""
        with self._changed:
            if not self._closed:
                self._used.append(used)
                if not self._busy:
                    self._replace(DELAY_S)
                return
        used.discard()

    def _replace(self, delay_s: float) -> None:
        """Have new ones made when few are left. The lock is held."""
        ready = self._held if self._last_held and self._template else self._plain
        if len(ready) <= self._wanted - BATCH:
            self._order(delay_s)

    @property
    def _wanted(self) -> int:
        return BUSY_SPARES if self._busy else SPARES

    def over(self, number: int, *, at_once: bool) -> None:
        """The guest need not keep what it keeps of a call, nor we its group. The guest is told with
        the next ones that are made, unless `at_once`: it would wake beside the reply (0.05 ms of a
        short call)."""
        with self._changed:
            self._open.discard(number)
            if not at_once:
                self._over.append(number)
        if at_once:
            self._link.done(number)

    def close(self) -> None:
        with self._changed:
            self._closed = True
            left = [*self._plain, *self._held, *self._used]
            self._plain.clear()
            self._held.clear()
            self._used.clear()
            self._changed.notify_all()
            self._changed.wait_for(lambda: not self._making, MAKE_TIMEOUT_S)
        for placed in left:
            placed.discard()
        self._maker.close()

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
            while (template := self._next()) is not False:
                self._add(template)
        except (Failure, OSError) as error:
            with self._changed:
                self._trouble = str(error)
                self._failures += 1
        finally:
            with self._changed:
                self._making = False
                self._maker.forget(but=self._template)
                if self._waiting > len(self._plain):
                    # Callers that came when it was found to be enough.
                    self._order(0.0)
                self._changed.notify_all()

    def _next(self) -> Template | Literal[False] | None:
        """What to make next: None is a plain spare; False when nothing is missing."""
        with self._changed:
            template = self._template
            mostly_held = template is not None and self._last_held
            if self._closed:
                return False
            if len(self._plain) < max(1 if mostly_held else self._wanted, self._waiting):
                return None
            if template and len(self._held) < (self._wanted if mostly_held else 1):
                return template
            return False

    def _tidy(self) -> None:
        """Remove the used groups, and look at a few of those that something was left in."""
        older = min(LOOKS, len(self._survived))
        with self._changed:
            over, self._over = self._over, []
            used = [each for each in self._used if each.spare.id not in self._open]
            self._used = deque(each for each in self._used if each.spare.id in self._open)
        for number in over:
            self._link.done(number)
        for placed in used:
            placed.discard()
            self._survived.appendleft(placed.group)
            older += 1
        for _ in range(older):
            group = self._survived.popleft()
            if not group.remove():
                self._survived.append(group)

    def _add(self, template: Template | None = None) -> None:
        placed = self._maker.plain() if template is None else self._maker.held(template)
        with self._changed:
            if placed is None:  # which is not tried again
                self._template, self._can_hold = None, False
            # Meanwhile another one may be wanted.
            elif not self._closed and template in (None, self._template):
                (self._held if placed.held else self._plain).append(placed)
                self._changed.notify_all()
            else:
                self._let_go(placed)

    def _let_go(self, placed: Placed) -> None:
        """Nobody gets it: it ends now, with what its environment says, and what is left of it is
        tidied up."""
        placed.discard()
        self._link.done(placed.spare.id)
        with self._changed:
            self._used.append(placed)
