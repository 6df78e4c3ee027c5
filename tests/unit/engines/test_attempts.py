"""What is believed of a process that is said to have run nothing."""

from __future__ import annotations

import os
import socket
from dataclasses import dataclass, replace
from typing import cast

import pytest

from stockade.engines.oci.adopted import Adopted, OciLeftCall
from stockade.engines.oci.attempts import Attempts
from stockade.engines.oci.held import Streams
from stockade.engines.oci.journal import Entry
from stockade.engines.oci.making import Placed
from stockade.engines.oci.sandbox import OciSandbox
from stockade.host.call_group import CallGroup
from stockade.host.guest_link import GuestLink, Kept
from stockade.host.spare import Spare
from stockade.terms.call import Capture
from stockade.terms.claim import NotExecuted, StillRunning, Unknown
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import Captured, End, ExecOutcome
from stockade.terms.patience import CancelSignal
from stockade.terms.ports import ArtifactStore, ExecContext

NUMBER = 5


@dataclass
class Process:
    """A spare, its group, or the guest."""

    pid = 1
    given: bool = True
    dies: bool = True
    killed: bool = False

    def kill(self, timeout_s: float) -> bool:
        self.killed = True
        return self.dies

    def cpu_ms(self) -> int:
        assert self.killed
        return 300

    def close(self) -> None:
        pass


class Meter:
    def more(self, used_ms: int) -> int | None:
        return used_ms


def placed(process: Process, *, held: bool = True) -> Placed:
    return Placed(
        cast("Spare", process), cast("CallGroup", process), cast("Streams", None), held=held
    )


def context() -> ExecContext:
    nothing = cast("ArtifactStore", None)
    return ExecContext("ls_1", cast("CancelSignal", None), nothing, cpu=Meter())


def outcome() -> ExecOutcome:
    empty = Captured(b"", b"", 0)
    return ExecOutcome(end=End.EXITED, value=0, stdout=empty, stderr=empty, wall_ms=1, cpu_ms=20)


@pytest.mark.parametrize(("held", "given"), [(False, True), (True, False)])
def test_our_own_program_and_a_shell_that_was_sent_nothing_are_believed(
    held: bool, given: bool
) -> None:
    attempts, process, forgotten = Attempts(context()), Process(given), list[str]()
    attempts.ended(placed(process, held=held), lambda: forgotten.append("first"))
    assert forgotten
    assert not attempts.doubtful
    assert not process.killed
    assert attempts.billed(outcome()) == outcome()
    unused = failure(Code.SANDBOX_UNAVAILABLE, "nothing ran")
    assert attempts.told(unused) is unused


def test_a_shell_that_was_sent_its_command_is_ended_and_paid_for() -> None:
    attempts, process = Attempts(context()), Process()
    attempts.ended(placed(process), lambda: None)
    assert attempts.doubtful
    assert process.killed
    assert attempts.billed(outcome()).cpu_ms == 320
    assert attempts.context.cpu is not None
    assert attempts.context.cpu.more(7) == 307
    for code in (Code.SANDBOX_UNAVAILABLE, Code.CANCELLED, Code.BUSY):
        assert attempts.told(failure(code, "nothing ran")).fault.code is Code.SANDBOX_LOST


def test_a_call_without_a_meter_has_none_after_it() -> None:
    attempts = Attempts(replace(context(), cpu=None))
    attempts.ended(placed(Process()), lambda: None)
    assert attempts.doubtful
    assert attempts.context.cpu is None


def test_what_can_not_be_ended_is_in_doubt() -> None:
    with pytest.raises(Failure) as raised:
        Attempts(context()).ended(placed(Process(dies=False)), lambda: None)
    assert raised.value.fault.code is Code.SANDBOX_LOST


def test_it_stays_in_the_journal_until_another_one_is_recorded() -> None:
    """A daemon that dies in between: a call without a record was never sent to a sandbox."""
    done, given = list[str](), replace(context(), starting=lambda _, call: done.append(call))
    attempts = Attempts(given)
    attempts.ended(placed(Process()), lambda: done.append("forgotten"))
    assert done == []
    assert attempts.context.starting is not None
    attempts.context.starting("sb_1", "second")
    assert done == ["second", "forgotten"]


class Unread:
    """A sandbox whose process is said to have read nothing."""

    def take_over(self, entry: Entry, placed: Placed, *rest: object) -> ExecOutcome:
        placed.discard()
        raise failure(Code.SANDBOX_UNAVAILABLE, "the spare died before it took a command")


@pytest.mark.parametrize(("held", "known"), [(False, NotExecuted()), (True, Unknown())])
def test_nor_is_it_believed_by_the_next_process(held: bool, known: NotExecuted | Unknown) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    streams, process = Streams(os.getuid(), spooled=True), Process()
    adopted = Adopted(
        cast("OciSandbox", Unread()),
        cast("GuestLink", Process()),
        {NUMBER: Kept(NUMBER, ours, streams.kept)},
        {NUMBER: cast("CallGroup", process)},
    )
    entry = Entry(
        "ls_1", "sb_1", NUMBER, 42, 3, 4, Capture(5, 6, 7), ("", ""), 8, 9, held=held, sent=True
    )
    left = OciLeftCall(entry, adopted)
    runs = left.evidence()
    assert isinstance(runs, StillRunning)
    with pytest.raises(Failure):
        runs.finish(context(), 1000)
    assert left.evidence() == known
    assert process.killed, "what it left would run on"
    streams.close_writes()
    theirs.close()
