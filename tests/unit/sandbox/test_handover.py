"""The guest and a host that dies: what it keeps, for whom, and for how long."""

from __future__ import annotations

import os
import select
import signal
from typing import TYPE_CHECKING

import pytest

from stockade.host.guest_link import GuestLink, Kept
from stockade.host.spare import ExecFailed, Exited, Spare
from stockade.terms.fault import Code, Failure
from tests.unit.sandbox.conftest import ENV, LONG_S, Running

if TYPE_CHECKING:
    from tests.unit.sandbox.conftest import Start

CALL = 0xFEDC_BA98_7654_3210


class Told:
    """A call whose pipe the guest keeps; `die` is what the kernel does to a killed host."""

    def __init__(self, guest: Running, call_id: int = CALL) -> None:
        self.guest = guest
        self.read, self._write = os.pipe()
        self.spare = guest.link.prefork(call_id, LONG_S, (self.read,))

    def start(self, script: str, path: bytes = b"/bin/bash") -> None:
        with open("/dev/null", "rb") as null:
            self.spare.start(
                paths=(path,),
                argv=(b"bash", b"-c", script.encode()),
                env=ENV,
                cwd=b"/",
                fds=(null.fileno(), self._write, self._write),
            )
        os.close(self._write)

    def die(self) -> None:
        self.guest.link.close()
        self.spare.close()
        os.close(self.read)


def next_host(guest: Running) -> tuple[GuestLink, list[Kept]]:
    guest.link = GuestLink.connect(str(guest.path), LONG_S)
    return guest.link, guest.link.kept(LONG_S)


def adopted(guest: Running, told: Told) -> tuple[Spare, int]:
    link, (kept,) = next_host(guest)
    assert kept.id == told.spare.id
    (pipe,) = kept.fds
    return Spare.taken_over(kept.sock, kept.id, told.spare.pid, link.pid), pipe


def ended(event: object) -> int | None:
    assert isinstance(event, Exited)
    return event.code


def test_a_command_goes_on_and_no_byte_is_lost(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.start("for ((i = 0; i < 250000; i++)); do printf '%06d\\n' $i; done; exit 7")
    first = os.read(told.read, 1000)
    told.die()
    spare, pipe = adopted(guest, told)
    with open(pipe, "rb") as rest:
        output = first + rest.read()
    assert output == b"".join(b"%06d\n" % i for i in range(250_000))
    assert ended(spare.receive(LONG_S)) == 7
    spare.close()


def test_the_exit_waits_for_the_next_host_and_for_the_one_after_it(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.start("exit 3")
    assert ended(told.spare.receive(LONG_S)) == 3
    told.die()
    for _ in range(2):
        spare, pipe = adopted(guest, told)
        assert ended(spare.receive(LONG_S)) == 3
        spare.close()
        os.close(pipe)
        guest.link.close()
    link, (kept,) = next_host(guest)
    kept.close()
    link.done(CALL)
    assert link.kept(LONG_S) == []


def test_what_could_not_be_started_is_known_to_the_next_host(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.start("", path=b"/no/such")
    assert isinstance(told.spare.receive(LONG_S), ExecFailed)
    told.die()
    spare, pipe = adopted(guest, told)
    assert isinstance(spare.receive(LONG_S), ExecFailed)
    spare.close()
    os.close(pipe)


def test_one_that_was_never_given_its_command_says_so(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.die()
    spare, pipe = adopted(guest, told)
    with pytest.raises(Failure) as raised:
        spare.receive(LONG_S)
    assert raised.value.fault.code is Code.SANDBOX_UNAVAILABLE
    spare.close()
    os.close(pipe)


def test_a_command_that_exits_with_the_status_of_an_unused_one_has_run(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.start("exit 125")
    told.die()
    spare, pipe = adopted(guest, told)
    assert ended(spare.receive(LONG_S)) == 125
    spare.close()
    os.close(pipe)


def test_after_done_a_writer_that_is_left_gets_sigpipe(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    told.start("echo ready; while echo more; do :; done; exit 9")
    assert os.read(told.read, 6) == b"ready\n"
    os.close(told.read)
    guest.link.done(CALL)
    event = told.spare.receive(LONG_S)
    assert isinstance(event, Exited)
    assert event.code is None
    told.spare.close()


def test_done_ends_a_spare_that_is_not_used(start: Start) -> None:
    guest = start("--persist")
    told = Told(guest)
    pidfd = os.pidfd_open(told.spare.pid)
    guest.link.done(CALL)
    told.spare.close()
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    assert poller.poll(LONG_S * 1000)
    os.close(pidfd)
    os.close(told.read)


def test_many_calls_are_handed_over_each_with_its_own(start: Start) -> None:
    guest = start("--persist")
    tolds = [Told(guest, n + 1) for n in range(60)]
    for told in tolds[::2]:
        told.start(f"echo {told.spare.id}")
    for told in tolds:
        told.spare.close()
        os.close(told.read)
    guest.link.close()
    link, kept = next_host(guest)
    assert sorted(each.id for each in kept) == list(range(1, 61))
    for each in kept:
        if each.id % 2:
            with open(each.fds[0], "rb", closefd=False) as pipe:
                assert pipe.read() == b"%d\n" % each.id
        each.close()
        link.done(each.id)
    assert link.kept(LONG_S) == []


def test_what_was_not_ready_in_time_is_not_kept(start: Start) -> None:
    """Or the table of the guest fills up with what nobody knows."""
    guest = start("--persist")
    read, write = os.pipe()
    os.kill(guest.link.pid, signal.SIGSTOP)
    with pytest.raises(Failure, match="in time"):
        guest.link.prefork(CALL, 0.05, (read,))
    os.kill(guest.link.pid, signal.SIGCONT)
    assert guest.link.kept(LONG_S) == []
    os.close(read)
    os.close(write)
