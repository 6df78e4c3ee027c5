"""Calls of a process that died: taken up again, each to its verdict.

The journal says which calls there were and in which sandbox; the guest of a sandbox that lives has
kept the call's socket, pipes and spools. What is missing is the evidence: without the sandbox a call
is in doubt.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Sequence, Set
from contextlib import ExitStack
from dataclasses import dataclass, replace
from typing import Final

from stockade.engines.oci.held import Streams
from stockade.engines.oci.journal import CallJournal, Entry
from stockade.engines.oci.making import Placed
from stockade.engines.oci.sandbox import OciSandbox
from stockade.host.anchors import Anchors
from stockade.host.call_group import CallGroup
from stockade.host.guest_link import GuestLink, Kept
from stockade.host.lease_groups import LeaseGroups, SandboxGroups
from stockade.host.spare import Spare
from stockade.terms.claim import Evidence, NotExecuted, StillRunning, Unknown
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.ports import ExecContext, LeftCall, Survivor

ADOPT_TIMEOUT_S: Final = 5.0
UNUSED_S: Final = 1.0
_KILL_S: Final = 10.0
_log: Final = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Adopted:
    """A sandbox that answers, and what its guest kept of the calls in the journal."""

    sandbox: OciSandbox
    link: GuestLink
    kept: dict[int, Kept]
    groups: dict[int, CallGroup | None]


@dataclass(frozen=True, slots=True)
class Recovered:
    """`left` could not be removed."""

    survivors: tuple[Survivor, ...]
    calls: tuple[LeftCall, ...]
    left: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Found:
    """A guest that answers. `kept` and `groups` are those of calls, `idle` the groups of spares and
    of calls that are over."""

    link: GuestLink
    pidfd: int
    kept: dict[int, Kept]
    groups: dict[int, CallGroup | None]
    idle: tuple[CallGroup, ...]


def find(name: str, path: str, groups: SandboxGroups, given: Set[int]) -> Found | None:
    """Connect to the guest of an earlier process at `path` and take what it kept of the calls
    `given`; its other spares end. None if it does not answer, or in another version of the
    protocol."""
    with ExitStack() as undo:
        try:
            link = GuestLink.connect(path, ADOPT_TIMEOUT_S)
            undo.callback(link.close)
            everything = link.kept(ADOPT_TIMEOUT_S)
            for each in everything:
                undo.callback(each.close)
            pidfd = os.pidfd_open(link.pid)
            undo.callback(os.close, pidfd)
            by_name = groups.reopen()
        except (Failure, OSError) as error:
            _log.warning("sandbox=%s of the last process is ended: %s", name, error)
            return None
        undo.pop_all()
    for each in everything:
        if each.id not in given:
            each.close()
            link.done(each.id)
    kept = {each.id: each for each in everything if each.id in given}
    mine = {number: by_name.pop(f"call-{number:x}", None) for number in kept}
    for group in by_name.values():
        group.close()
    return Found(link, pidfd, kept, mine, tuple(by_name.values()))


def anchors_of(root_fd: int, guest: int, mounts: Sequence[str]) -> Anchors | None:
    """None if what the sandbox has mounted is not at its place any more: then it only finishes what
    runs in it."""
    try:
        return Anchors.drop(root_fd, f"/proc/{guest}/root", mounts)
    except (Failure, OSError):
        return None


def end_sandboxes(lease: LeaseGroups, keep: Set[str]) -> None:
    """End those of a lease that are not to `keep`, and remove their groups."""
    for name in lease.sandboxes():
        if name not in keep:
            lease.sandbox(name).kill(_KILL_S)
            lease.sandbox(name).remove()


class OciLeftCall:
    """Implements `terms.ports.LeftCall`."""

    def __init__(self, entry: Entry, adopted: Adopted | None) -> None:
        self._entry = entry
        self._adopted = adopted
        self._known: NotExecuted | Unknown | None = None if adopted else Unknown()
        self.asked = False

    @property
    def sandbox(self) -> str:
        return self._entry.sandbox

    @property
    def call(self) -> str:
        return str(self._entry.number)

    @property
    def lease_id(self) -> str:
        return self._entry.lease_id

    def evidence(self) -> Evidence:
        self.asked = True
        if self._known is None and not self._entry.sent:
            self._known = self._unused()
        return self._known or StillRunning(self._finish)

    def _unused(self) -> NotExecuted | None:
        """Whether it ended without its command. The daemon died in the moment of giving it: a
        process that waits sees the end of its socket at once."""
        placed = self._placed()
        if placed is None:
            return None
        try:
            placed.spare.receive(UNUSED_S)
        except Failure as error:
            if error.fault.code is Code.SANDBOX_UNAVAILABLE and self._adopted is not None:
                self._adopted.sandbox.discard(placed)
                self._adopted.kept.pop(self._entry.number).close()
                return NotExecuted()
        # A duplicate of what the guest keeps: the call itself goes on.
        placed.spare.close()
        placed.streams.close()
        return None

    def _placed(self) -> Placed | None:
        """The call's process as this process needs it, or None when that is not to be had. What the
        guest kept stays open here, for a second look."""
        assert self._adopted is not None
        entry, adopted = self._entry, self._adopted
        kept, group = adopted.kept.get(entry.number), adopted.groups.get(entry.number)
        if kept is None or group is None:
            self._known = Unknown()
            return None
        fds = [os.dup(fd) for fd in kept.fds]
        try:
            streams = Streams.found(fds)
        except (OSError, ValueError):
            for fd in fds:
                os.close(fd)
            group.kill(_KILL_S)
            self._known = Unknown()
            return None
        released = entry.held and entry.sent
        spare = Spare.taken_over(
            kept.sock.dup(), entry.number, entry.pid, adopted.link.pid, released=released
        )
        return Placed(spare, group, streams, held=False)

    def _finish(self, context: ExecContext, timeout_ms: int) -> ExecOutcome:
        """See StillRunning. Raises Failure: what `evidence` says next time is why."""
        entry, adopted = self._entry, self._adopted
        assert adopted is not None
        placed = self._placed()
        if placed is None:
            raise failure(Code.SANDBOX_LOST, "nothing of the call was kept")
        capture = entry.capture
        if not all(
            s.suffices(capture.head_bytes, capture.tail_bytes) for s in placed.streams.spools
        ):
            placed.group.kill(_KILL_S)
            adopted.sandbox.discard(placed)
            self._known = Unknown()
            raise failure(Code.SANDBOX_LOST, "a part of the output went with the last process")
        try:
            outcome = adopted.sandbox.take_over(entry, placed, context, timeout_ms)
        except Failure as error:
            # A held shell's end unread proves nothing once it was sent its command (attempts.py),
            # and what it left would run on.
            placed.group.kill(_KILL_S)
            unused = error.fault.code is Code.SANDBOX_UNAVAILABLE and not entry.held
            self._known = NotExecuted() if unused else Unknown()
            raise
        finally:
            adopted.kept.pop(entry.number).close()
        if outcome.end is End.SIGNALED and not entry.sent:
            # Killed by another command: before it was given its own, or after.
            return replace(outcome, end=End.LOST, value=None)
        return outcome


class LeftCalls:
    """Those of the journal, by sandbox and spare."""

    def __init__(self, journal: CallJournal, adopted: dict[str, Adopted]) -> None:
        self._whole = journal.whole
        self.all: list[OciLeftCall] = []
        for slot, entry in journal.entries():
            taken = adopted.get(entry.sandbox)
            if taken is not None:
                taken.sandbox.expect({entry.number})
            journal.know(slot, entry.number, _done(taken, entry.number))
            self.all.append(OciLeftCall(entry, taken))
        self._named = {(left.sandbox, left.call): left for left in self.all}

    def evidence(self, sandbox: str, call: str) -> Evidence:
        """See `terms.ports.Engine`."""
        left = self._named.get((sandbox, call))
        if left is not None:
            return left.evidence()
        return NotExecuted() if self._whole else Unknown()


def _done(adopted: Adopted | None, number: int) -> Callable[[], None]:
    return (lambda: None) if adopted is None else (lambda: adopted.sandbox.forgotten(number))
