"""How one process comes to wait for a command: plain, or as a held shell (held.py).

The guest forks it, its own greeting says which process of the host it is, and it is moved into a
group of its own and below the limits; as a held shell it then executes the shell. Half a millisecond
of processor time and three moves between groups, and twice that for a shell.

So only the first shell of its kind is made in that way. It is kept, and the others are forked from
it: no exec, no loader, and one move, because they are below the limits from the start
(sandbox/hold.c). That one never gets a command, whose account would have all that it ever forked.
What a command can do to it is what it can do to any process that waits: kill or stop it, then the
next one takes its place; or use up the lease's processes, then others are made in the first way.
Where making one is slow `SLOW_TIMES`, as one can have it that root put in the shell's place, no shell
is held.
"""

from __future__ import annotations

import logging
import os
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.engines.oci.held import Streams, Template, hold
from stockade.host.call_group import CallGroup
from stockade.host.devices import own_null
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import SandboxGroups
from stockade.host.reasons import reason
from stockade.host.spare import Spare
from stockade.terms.fault import Code, Failure, failure

MAKE_TIMEOUT_S: Final = 10.0
HOLD_TIMEOUT_S: Final = 5.0
FORK_TIMEOUT_S: Final = 2.0
# How often a held shell may take so long, in the life of a sandbox. Each time is one in which nothing
# is made for it, and a thread waits that all sandboxes share. Whatever has failed or not: a shell
# that answers can make what does not greet.
SLOW_S: Final = 1.0
SLOW_TIMES: Final = 3

_log: Final = logging.getLogger("stockade.engines.oci.spares")


@dataclass(frozen=True, slots=True)
class Placed:
    """A spare in its own group with its pipes; `held` if it is a shell that waits for its
    command."""

    spare: Spare
    group: CallGroup
    streams: Streams
    held: bool

    def discard(self) -> None:
        """Let go of it. Where the guest keeps it too, it goes on until the guest is told."""
        self.streams.close()
        self.spare.close()
        self.group.close()


class Maker:
    """Used by one thread at a time. `close` after the sandbox's processes are dead. `null` is the
    empty input of the sandbox's commands."""

    def __init__(
        self,
        link: GuestLink,
        groups: SandboxGroups,
        owner: int,
        new_number: Callable[[], int],
        let_go: Callable[[Placed], None],
        on_refused: Callable[[], None],
        *,
        persistent: bool,
    ) -> None:
        """`owner`, `new_number`, `on_refused` and `persistent` as of Spares. `let_go` is for one
        that nobody gets."""
        self._link = link
        self._groups = groups
        self._owner = owner
        self._new_number = new_number
        self._let_go = let_go
        self._on_refused = on_refused
        self._persistent = persistent
        self.null = own_null()
        self._first: tuple[Template, Placed] | None = None
        self._slow = 0
        # How many forks of that shell a limit refused, and with the one that is being made: the
        # kernel counts them with those of the sandbox's calls, before the answer is here.
        self.refused = self.refused_at_most = 0

    def plain(self) -> Placed:
        """Raises Failure(sandbox_unavailable), OSError."""
        streams, number = self._streams()
        try:
            spare = self._link.prefork(number, MAKE_TIMEOUT_S, streams.kept)
        except BaseException:
            streams.close()
            raise
        return self._placed(spare, streams, held=False)

    def held(self, template: Template) -> Placed | None:
        """None where shells can't be held, or were slow too often. Raises
        Failure(sandbox_unavailable), OSError."""
        if self._slow >= SLOW_TIMES:
            return None
        began = time.monotonic()
        try:
            return self._held(template)
        finally:
            self._slow += time.monotonic() - began >= SLOW_S

    def _held(self, template: Template) -> Placed | None:
        self.forget(but=template)
        if self._first is None:
            made = self._shell(template)
            if made is None:
                return None
            self._first = template, made
        _, first = self._first
        self.refused_at_most += 1
        known = first.spare.forks_refused
        try:
            made = self._forked(first)
        except Failure as error:
            _log.debug("a held shell is not forked: %s", error)
            # Not of others' making: a command that kills those that are being made would have its
            # own refusals forgiven.
            if first.spare.forks_refused > known:
                self.refused += 1
                self._on_refused()
            else:
                self.refused_at_most -= 1
            if not first.spare.waits():
                self.forget()
            return self._shell(template)
        self.refused_at_most -= 1
        return made

    def forget(self, *, but: Template | None = None) -> None:
        """Let go of the shell that others are forked from, unless it is one for `but`."""
        if self._first is not None and self._first[0] != but:
            _, first = self._first
            self._first = None
            self._let_go(first)

    def close(self) -> None:
        self.forget()
        os.close(self.null)

    def _forked(self, first: Placed) -> Placed:
        streams, number = self._streams()
        try:
            out, err = streams.writes
            spare = self._link.fork(first.spare, (out, err), number, FORK_TIMEOUT_S, streams.kept)
            streams.close_writes()
        except BaseException:
            streams.close()
            raise
        return self._placed(spare, streams, held=True)

    def _shell(self, template: Template) -> Placed | None:
        plain = self.plain()
        made = Placed(plain.spare, plain.group, plain.streams, held=True)
        try:
            hold(
                made.spare,
                template,
                made.streams,
                stdin=self.null,
                timeout_s=HOLD_TIMEOUT_S,
            )
        except (Failure, OSError) as error:
            if made.spare.killed:
                # By `kill -9 -1`, or the memory limit. The next call's background tries again.
                self._let_go(made)
                raise
            _log.info("shells are not started ahead in this sandbox: %s", error)
            self._let_go(made)
            return None
        return made

    def _streams(self) -> tuple[Streams, int]:
        return Streams(self._owner, spooled=self._persistent), self._new_number()

    def _placed(self, spare: Spare, streams: Streams, *, held: bool) -> Placed:
        try:
            process = self._link.process(spare)
            try:
                group = self._groups.place(spare.pid, process, f"call-{spare.id:x}", limited=held)
            finally:
                os.close(process)
        except (OSError, Failure) as error:
            streams.close()
            spare.close()
            self._link.done(spare.id)
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                f"a process could not be placed in its cgroup: {reason(error)}",
            ) from error
        return Placed(spare, group, streams, held)
