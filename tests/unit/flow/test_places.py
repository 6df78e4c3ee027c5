"""Places: how many calls run, who waits, and who is next."""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stockade.flow.places import RETRY_AFTER_MS, Places
from stockade.host.cancel import EventfdCancel
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.outcome import End

WAIT_S = 20


class Signal(EventfdCancel):
    """Says when it is waited for."""

    def __init__(self) -> None:
        super().__init__()
        self.watched = threading.Event()

    def fileno(self) -> int:
        self.watched.set()
        return super().fileno()


class Call:
    """Asks for a place on a thread of its own, and keeps it until `leave`."""

    def __init__(self, places: Places, tenant: str, wait_s: float | None = None) -> None:
        self.tenant = tenant
        self.cancel = Signal()
        self.inside = threading.Event()
        self.fault: Fault | None = None
        self._leave = threading.Event()
        self._over = threading.Event()

        def run() -> None:
            try:
                with places.hold(tenant, self.cancel, wait_s):
                    self.inside.set()
                    assert self._leave.wait(WAIT_S)
            except Failure as error:
                self.fault = error.fault
            finally:
                self.cancel.close()
                self._over.set()

        threading.Thread(target=run, daemon=True).start()
        states = (self.inside, self.cancel.watched, self._over)
        while not any(state.is_set() for state in states):
            self._over.wait(0.001)

    def code(self) -> Code | None:
        assert self._over.wait(WAIT_S)
        return None if self.fault is None else self.fault.code

    @property
    def over(self) -> bool:
        return self._over.is_set()

    def let_go(self) -> None:
        self._leave.set()

    def leave(self) -> None:
        self.let_go()
        assert self._over.wait(WAIT_S)


@contextmanager
def crowd(places: Places, tenant: str, number: int) -> Iterator[list[Call]]:
    calls = [Call(places, tenant) for _ in range(number)]
    yield calls
    for call in calls:
        call.leave()


def descriptors() -> int:
    return len(os.listdir("/proc/self/fd"))


def test_as_many_run_as_there_are_places_and_the_rest_wait_in_their_order() -> None:
    places = Places(calls=2, queue=4, per_tenant=2)
    first, second, third, fourth = (Call(places, "a") for _ in range(4))
    assert places.count() == (2, 2)
    second.leave()
    assert third.inside.wait(WAIT_S)
    assert not fourth.inside.is_set()
    for call in (first, third, fourth):
        call.leave()
    assert [call.fault for call in (first, second, third, fourth)] == [None] * 4
    assert places.count() == (0, 0)


def test_more_than_may_wait_are_busy_at_once_with_a_time_to_come_again() -> None:
    places = Places(calls=1, queue=1, per_tenant=1)
    with crowd(places, "a", 2):
        refused = Call(places, "a")
        assert refused.code() is Code.BUSY
        assert refused.fault is not None
        assert refused.fault.retry_after_ms == RETRY_AFTER_MS
        assert places.count() == (1, 1)
        alone = Call(Places(calls=1, queue=0, per_tenant=1), "b")
        assert alone.inside.wait(WAIT_S)
        alone.leave()


def test_a_tenant_never_has_the_last_places() -> None:
    places = Places(calls=3, queue=9, per_tenant=2)
    with crowd(places, "flood", 5) as flood:
        assert places.count() == (2, 3)
        other = Call(places, "other")
        assert other.inside.wait(WAIT_S)
        # A place that another tenant leaves is not for those who have enough.
        other.leave()
        assert places.count() == (2, 3)
        for call in flood:
            call.leave()


def test_tenants_take_turns_whatever_one_of_them_sends() -> None:
    places = Places(calls=1, queue=100, per_tenant=1)
    order: list[str] = []
    holder = Call(places, "flood")
    flood = [Call(places, "flood") for _ in range(30)]
    others = [Call(places, name) for name in ("b", "c", "b")]
    waiting = [*flood, *others]
    holder.leave()
    while waiting:
        inside = next((call for call in waiting if call.inside.wait(0.001)), None)
        if inside is None:
            continue
        order.append(inside.tenant)
        waiting.remove(inside)
        inside.leave()
    assert order[:6] == ["flood", "b", "c", "flood", "b", "flood"]
    assert Counter(order) == {"flood": 30, "b": 2, "c": 1}


def test_a_full_queue_is_shared_the_longest_gives_way() -> None:
    places = Places(calls=1, queue=4, per_tenant=1)
    with crowd(places, "flood", 5) as flood:
        first, second = Call(places, "b"), Call(places, "b")
        assert {call.code() for call in flood[3:]} == {Code.BUSY}
        assert [call.over for call in flood[:3]] == [False] * 3
        # Now both have two, and nobody gives way.
        assert Call(places, "b").code() is Code.BUSY
        assert Call(places, "flood").code() is Code.BUSY
        assert not first.over
        assert not second.over
        for call in (*flood[:3], first, second):
            call.let_go()
        assert {call.code() for call in (*flood[:3], first, second)} == {None}


@pytest.mark.parametrize(
    ("reason", "code"),
    [(End.CANCELLED, Code.CANCELLED), (End.LEASE_EXPIRED, Code.LEASE_EXPIRED)],
)
def test_who_is_cancelled_while_waiting_has_not_run(reason: End, code: Code) -> None:
    places = Places(calls=1, queue=4, per_tenant=1)
    with crowd(places, "a", 1):
        waiting, next_one = Call(places, "a"), Call(places, "a")
        waiting.cancel.set(reason)
        assert waiting.code() is code
        assert not waiting.inside.is_set()
        assert places.count() == (1, 1)
    assert next_one.inside.wait(WAIT_S)
    next_one.leave()


def test_a_place_that_comes_too_late_goes_on_to_the_next() -> None:
    """Cancelled and given a place at once: the place is not lost."""
    for _ in range(50):
        places = Places(calls=1, queue=4, per_tenant=1)
        holder, waiting = Call(places, "a"), Call(places, "a")
        cancelling = threading.Thread(target=waiting.cancel.set, args=(End.CANCELLED,))
        cancelling.start()
        holder.leave()
        cancelling.join()
        waiting.leave()
        assert waiting.code() in (None, Code.CANCELLED)
        assert places.count() == (0, 0)


def test_who_is_given_a_place_after_being_cancelled_has_not_run(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    places = Places(calls=1, queue=4, per_tenant=1)
    holder, waiting = Call(places, "a"), Call(places, "a")
    # It is not woken by the cancellation, but finds it.
    monkeypatch.setattr(waiting.cancel, "reason", lambda: End.CANCELLED)
    holder.leave()
    try:
        assert waiting.code() is Code.CANCELLED
        assert not waiting.inside.is_set()
        assert places.count() == (0, 0)
    finally:
        waiting.leave()


def test_the_wait_is_bounded_by_the_queue_and_by_the_callers_own_time() -> None:
    slow, quick = Places(1, 4, 1, queue_s=WAIT_S), Places(1, 4, 1, queue_s=0.02)
    with crowd(slow, "a", 1), crowd(quick, "a", 1):
        assert Call(slow, "a", 0.02).code() is Code.BUSY
        assert Call(quick, "a").code() is Code.BUSY
        assert Call(quick, "a", WAIT_S).code() is Code.BUSY
        assert (slow.count(), quick.count()) == ((1, 0), (1, 0))


def test_a_stop_sends_away_who_waits_and_who_comes_and_nobody_who_runs() -> None:
    places = Places(calls=1, queue=4, per_tenant=1)
    running = Call(places, "a")
    waiting = [Call(places, name) for name in ("a", "b", "b")]
    places.stop()
    assert {call.code() for call in waiting} == {Code.SHUTTING_DOWN}
    assert Call(places, "c").code() is Code.SHUTTING_DOWN
    assert not running.over
    running.leave()
    assert running.fault is None
    assert places.count() == (0, 0)


def test_waiting_leaves_no_descriptor() -> None:
    places = Places(calls=1, queue=8, per_tenant=1)
    before = descriptors()
    with crowd(places, "a", 6):
        Call(places, "b").cancel.set(End.CANCELLED)
        Call(places, "b", 0.01).code()
        places.stop()
    assert descriptors() <= before + 1  # the one that was cancelled may be closing still


def test_many_tenants_at_once_all_get_through() -> None:
    places = Places(calls=3, queue=400, per_tenant=2)
    most: Counter[str] = Counter()
    now: Counter[str] = Counter()
    lock = threading.Lock()

    def work(tenant: str) -> None:
        cancel = EventfdCancel()
        for _ in range(40):
            with places.hold(tenant, cancel):
                with lock:
                    now[tenant] += 1
                    now[""] += 1
                    for name in (tenant, ""):
                        most[name] = max(most[name], now[name])
                with lock:
                    now[tenant] -= 1
                    now[""] -= 1
        cancel.close()

    threads = [threading.Thread(target=work, args=(f"t{n % 4}",)) for n in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    assert most[""] <= 3
    assert all(most[f"t{n}"] <= 2 for n in range(4))
    assert places.count() == (0, 0)
