"""Which processes wait, and which must not."""

from __future__ import annotations

import errno
import os
import threading
import time
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass, field, replace
from typing import cast

import pytest

from stockade.engines.oci import making
from stockade.engines.oci.held import Streams, Template
from stockade.engines.oci.making import MAKE_TIMEOUT_S, SLOW_TIMES, Maker, Placed
from stockade.engines.oci.spares import Spares
from stockade.host.call_group import CallGroup
from stockade.host.cancel import EventfdCancel
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import SandboxGroups
from stockade.host.spare import Spare
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End
from stockade.terms.patience import Patience


@dataclass
class Guest:
    """Notes what it need not keep."""

    told: list[int] = field(default_factory=list)

    def done(self, number: int) -> None:
        self.told.append(number)


class Waiting:
    """Stands for each part of one that waits."""

    def __init__(self, number: int) -> None:
        self.id = number
        self.writes = (0, 0)
        self.forks_refused = 0

    def waits(self) -> bool:
        return True

    def close(self) -> None:
        pass


def placed(number: int, *, held: bool) -> Placed:
    made = Waiting(number)
    return Placed(made, made, made, held)  # type: ignore[arg-type]


def spares_of(guest: Guest, background: Executor) -> Spares:
    return Spares(
        cast("GuestLink", guest),
        cast("SandboxGroups", None),
        background,
        0,
        lambda: 0,
        lambda: None,
        persistent=True,
    )


def template(secret: bytes) -> Template:
    return Template((b"/bin/sh",), (b"sh", b"-c"), ((b"TOKEN", secret),), b"/")


def take(spares: Spares, secret: bytes) -> Placed:
    with closing(EventfdCancel()) as cancel:
        return spares.take(template(secret), Patience(cancel, 60.0, time.monotonic))


def test_a_shell_with_an_old_environment_ends_at_once_and_not_with_the_next_call() -> None:
    guest = Guest()
    with ThreadPoolExecutor(1) as background:
        spares = spares_of(guest, background)
        spares._template = template(b"old")
        spares._held.append(placed(1, held=True))
        spares._plain.append(placed(2, held=False))
        assert take(spares, b"new").spare.id == 2
        assert guest.told == [1]
        spares.close()


def test_shells_that_are_distrusted_get_no_command() -> None:
    guest = Guest()
    with ThreadPoolExecutor(1) as background:
        spares = spares_of(guest, background)
        spares._template = template(b"same")
        spares._held += [placed(1, held=True), placed(3, held=True)]
        spares._plain.append(placed(2, held=False))
        assert take(spares, b"same").spare.id == 1
        spares.distrust()
        assert take(spares, b"same").spare.id == 2
        assert guest.told == [3]
        spares.close()


class Group(Waiting):
    def __init__(self, number: int, removed: list[int]) -> None:
        super().__init__(number)
        self._removed = removed

    def remove(self) -> bool:
        self._removed.append(self.id)
        return True


def test_the_group_of_a_call_stays_until_the_call_is_settled() -> None:
    """A daemon that follows needs it to tell how the command ended."""
    removed: list[int] = []
    with ThreadPoolExecutor(1) as background:
        spares = spares_of(Guest(), background)
        for number in (1, 2, 3):
            spares.meanwhile(number)
            each = placed(number, held=False)
            group = cast("CallGroup", Group(number, removed))
            spares._used.append(replace(each, group=group))
        spares.over(1, at_once=True)
        spares._tidy()
        assert removed == [1]
        spares.over(2, at_once=False)
        spares._tidy()
        spares._tidy()
        assert removed == [1, 2]
        spares.close()


class Refusing(Guest):
    """Makes nothing. `limits` says of each fork whether a limit refused it."""

    def __init__(self, limits: list[bool]) -> None:
        super().__init__()
        self.limits = limits

    def fork(self, shell: Waiting, *rest: object) -> None:
        shell.forks_refused += self.limits.pop(0)
        raise failure(Code.SANDBOX_UNAVAILABLE, "no")

    def prefork(self, *rest: object) -> None:
        raise failure(Code.SANDBOX_UNAVAILABLE, "no")


def test_only_what_a_limit_refused_is_taken_from_the_kernels_count() -> None:
    """A command that kills those that are being made would hide its own refusals otherwise."""
    told: list[None] = []
    guest = Refusing([False, True, False])
    maker = Maker(
        cast("GuestLink", guest),
        cast("SandboxGroups", None),
        0,
        lambda: 0,
        lambda placed: None,
        lambda: told.append(None),
        persistent=False,
    )
    maker._first = template(b"x"), placed(1, held=True)
    for counted in (0, 1, 1):
        with pytest.raises(Failure):
            maker.held(template(b"x"))
        assert (maker.refused, maker.refused_at_most) == (counted, counted)
        assert len(told) == counted
    maker.close()


def maker_of(guest: Guest, groups: Unplaceable, let_go: list[Placed]) -> Maker:
    return Maker(
        cast("GuestLink", guest),
        cast("SandboxGroups", groups),
        os.getuid(),
        lambda: 7,
        let_go.append,
        lambda: None,
        persistent=True,
    )


class Unplaceable:
    """No process gets a group."""

    def place(self, *asked: object, **more: object) -> CallGroup:
        raise OSError(errno.ENOSPC, "no group")


class Made(Waiting):
    """Can't hold a shell, because a command has `killed` it or for another reason."""

    def __init__(self, number: int, *, killed: bool = False) -> None:
        super().__init__(number)
        self.pid = os.getpid()
        self.killed = killed

    def hold(self, **asked: object) -> None:
        raise failure(Code.SANDBOX_UNAVAILABLE, "no shell")


class Making(Guest):
    def prefork(self, number: int, *rest: object) -> Made:
        return Made(number)

    def fork(self, shell: object, writes: object, number: int, *rest: object) -> Made:
        return Made(number)

    def process(self, spare: Made) -> int:
        return os.pidfd_open(spare.pid)


def test_what_does_not_come_about_leaves_no_descriptor_open_and_nothing_with_the_guest() -> None:
    """A sandbox says when: it has all its processes, or kills those that are being made."""
    guests: list[Guest] = [Refusing([True, True]), Making()]
    for guest in guests:
        maker = maker_of(guest, Unplaceable(), [])
        maker._first = template(b"x"), placed(1, held=True)
        before = os.listdir("/proc/self/fd")
        for make in (maker.plain, lambda maker=maker: maker.held(template(b"x"))):
            with pytest.raises(Failure) as caught:
                make()
            assert caught.value.fault.code is Code.SANDBOX_UNAVAILABLE
        assert os.listdir("/proc/self/fd") == before
        assert set(guest.told) == ({7} if isinstance(guest, Making) else set())
        maker.close()


@pytest.mark.parametrize("killed", [False, True])
def test_what_can_not_be_held_is_let_go(monkeypatch: pytest.MonkeyPatch, killed: bool) -> None:
    let_go: list[Placed] = []
    maker = maker_of(Making(), Unplaceable(), let_go)
    plain = Placed(
        cast("Spare", Made(1, killed=killed)),
        cast("CallGroup", Waiting(1)),
        Streams(os.getuid(), spooled=True),
        held=False,
    )
    monkeypatch.setattr(maker, "plain", lambda: plain)
    if killed:
        with pytest.raises(Failure):
            maker.held(template(b"x"))
    else:
        assert maker.held(template(b"x")) is None
    assert [each.spare for each in let_go] == [plain.spare]
    let_go[0].discard()
    maker.close()


def test_where_none_can_be_made_the_call_is_told_why() -> None:
    with ThreadPoolExecutor(1) as background, closing(EventfdCancel()) as cancel:
        spares = spares_of(Refusing([]), background)
        patience = Patience(cancel, 600.0, time.monotonic)
        with pytest.raises(Failure, match="not usable: sandbox_unavailable: no; nothing ran"):
            spares.take(None, patience)
        spares.close()
        with pytest.raises(Failure, match="it is closed"):
            spares.take(None, patience)


def test_who_waits_for_one_that_is_made_waits_no_longer_than_its_call() -> None:
    """Pid 1 of a sandbox whose commands have all the processors may answer late."""
    stopped = threading.Event()
    cancel = EventfdCancel()
    with ThreadPoolExecutor(1) as background:
        background.submit(stopped.wait)
        spares = spares_of(Guest(), background)
        try:
            with pytest.raises(Failure) as caught:
                spares.take(None, Patience(cancel, 0.1, time.monotonic))
            assert caught.value.fault.code is Code.SANDBOX_UNAVAILABLE
            began = time.monotonic()
            cancel.set(End.CANCELLED)
            with pytest.raises(Failure) as caught:
                spares.take(None, Patience(cancel, 600.0, time.monotonic))
            assert caught.value.fault.code is Code.CANCELLED
            assert time.monotonic() - began < MAKE_TIMEOUT_S
        finally:
            spares._closed = True
            stopped.set()
            spares.close()
    cancel.close()


class Slow(Guest):
    """A fork comes to nothing in the end."""

    def __init__(self) -> None:
        super().__init__()
        self.forked = 0

    def fork(self, *asked: object) -> None:
        self.forked += 1
        raise failure(Code.SANDBOX_UNAVAILABLE, "the guest makes no spare in time")

    def prefork(self, *asked: object) -> None:
        raise failure(Code.SANDBOX_UNAVAILABLE, "no")


@pytest.mark.parametrize(("slow_s", "times"), [(0.0, SLOW_TIMES), (MAKE_TIMEOUT_S, 9)])
def test_where_making_them_is_slow_too_often_shells_are_no_longer_held(
    monkeypatch: pytest.MonkeyPatch, slow_s: float, times: int
) -> None:
    """Each time a thread has waited that other leases need: a shell that root replaced could have
    it as long as it likes, also one that answers that it has forked."""
    monkeypatch.setattr(making, "SLOW_S", slow_s)
    guest = Slow()
    maker = Maker(
        cast("GuestLink", guest),
        cast("SandboxGroups", None),
        0,
        lambda: 0,
        lambda placed: None,
        lambda: None,
        persistent=False,
    )
    maker._first = template(b"x"), placed(1, held=True)
    for _ in range(times):
        with pytest.raises(Failure):
            maker.held(template(b"x"))
    assert guest.forked == times
    if times == SLOW_TIMES:
        assert maker.held(template(b"x")) is None
    assert guest.forked == times
    maker.close()
