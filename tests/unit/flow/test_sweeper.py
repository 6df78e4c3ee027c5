"""The sweeper ends leases on time, repeats what failed, and never dies."""

from __future__ import annotations

import os
import queue
import threading
from dataclasses import replace

import pytest

from stockade.flow.sweeper import LOOK_S, SWEEP_S, Sweeper
from stockade.terms.lease import LeaseState
from stockade.terms.outcome import End
from stockade.testing.faults import Faults, raising
from stockade.testing.house import TENANT, Caller, House


def state_of(house: House, lease_id: str) -> LeaseState:
    record = house.ledger.lease(lease_id)
    assert record is not None
    return record.state


def workspaces(house: House) -> list[str]:
    return os.listdir(house.workspaces.directory)


def test_a_lease_ends_at_its_time_and_not_before(house: House) -> None:
    short = house.leases.create(house.request(ttl_s=10)).record
    long = house.leases.create(house.request("run-2", ttl_s=100)).record
    house.clock.advance(9.9)
    house.sweeper.tick()
    assert state_of(house, short.id) is LeaseState.READY
    house.clock.advance(0.1)
    house.sweeper.tick()
    assert state_of(house, short.id) is LeaseState.RELEASED
    assert state_of(house, long.id) is LeaseState.READY
    assert workspaces(house) == [long.id]


def test_b81_a_call_in_an_expiring_lease_ends_as_lease_expired(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=3)).record
    with Caller(house, record) as caller:
        house.clock.advance(3)
        house.sweeper.tick()
    assert caller.reason is End.LEASE_EXPIRED
    assert state_of(house, record.id) is LeaseState.RELEASED


def test_a_failed_removal_is_recorded_and_repeated_later(
    house: House, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    record = house.leases.create(house.request(ttl_s=10)).record
    second = house.leases.create(house.request("run-2", ttl_s=10)).record
    house.clock.advance(10)
    faults.arm("workspaces.remove.half", raising(OSError("immutable")))
    house.sweeper.tick()
    assert state_of(house, record.id) is LeaseState.DIRTY
    assert record.id in caplog.text
    assert "immutable" in caplog.text
    assert state_of(house, second.id) is LeaseState.RELEASED  # its turn came nevertheless
    house.sweeper.tick()
    assert state_of(house, record.id) is LeaseState.DIRTY  # not every second
    house.clock.advance(SWEEP_S)
    house.sweeper.tick()
    assert state_of(house, record.id) is LeaseState.RELEASED
    assert workspaces(house) == []


def test_a_failed_reset_is_repeated_by_the_sweeper(house: House, faults: Faults) -> None:
    record = house.leases.create(house.request()).record
    faults.arm("workspaces.reset.half", raising(OSError("busy")))
    with pytest.raises(OSError, match="busy"):
        house.leases.reset(TENANT, record.id)
    house.clock.advance(SWEEP_S)
    house.sweeper.tick()
    assert state_of(house, record.id) is LeaseState.READY


def test_a_reset_that_fails_at_the_start_stops_nothing(
    house: House, faults: Faults, caplog: pytest.LogCaptureFixture
) -> None:
    record = house.leases.create(house.request()).record
    other = house.leases.create(house.request("run-2")).record
    house.ledger.put_lease(replace(record, state=LeaseState.RESETTING))
    house.ledger.put_lease(replace(other, state=LeaseState.DIRTY))
    faults.arm("workspaces.reset.half", raising(OSError("immutable")))
    house.sweeper.recover()
    assert state_of(house, record.id) is LeaseState.RESETTING
    assert state_of(house, other.id) is LeaseState.RELEASED
    assert "immutable" in caplog.text


def test_what_no_lease_claims_is_removed_and_what_one_claims_is_not(house: House) -> None:
    record = house.leases.create(house.request()).record
    places = (house.workspaces.directory, house.engine.directory, house.artifacts.directory)
    for place in places:
        os.makedirs(os.path.join(place, "ls_00000000000000aa"))
        os.makedirs(os.path.join(place, record.id), exist_ok=True)
    house.sweeper.tick()
    assert len(workspaces(house)) == 2  # sweeping is for now and then
    house.clock.advance(SWEEP_S)
    house.sweeper.tick()
    for place in places:
        assert os.listdir(place) == [record.id]


def test_a_lease_that_is_made_during_a_sweep_is_not_swept(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The live set answers when it is asked: the workspace below is listed, then its lease made."""
    made: list[str] = []
    listing = os.listdir

    def list_then_create(place: str) -> list[str]:
        if not made and place == house.workspaces.directory:
            made.append(house.leases.create(house.request()).record.id)
        return listing(place)

    monkeypatch.setattr(os, "listdir", list_then_create)
    house.clock.advance(SWEEP_S)
    house.sweeper.tick()
    monkeypatch.undo()
    assert made
    assert workspaces(house) == made
    # A set that was taken before the listing would have had it removed.
    assert made[0] not in frozenset[str]()
    assert frozenset(["ls_00000000000000aa", made[0]]) - house.steps.live == {"ls_00000000000000aa"}


def test_a_busy_lease_is_left_for_the_next_time(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=10)).record
    house.clock.advance(10)
    with house.steps.locks.hold((TENANT, "run-1", "main")):
        house.sweeper.tick()
        assert state_of(house, record.id) is LeaseState.READY
    house.sweeper.tick()
    assert state_of(house, record.id) is LeaseState.RELEASED


def test_a_lease_that_was_renewed_while_the_sweeper_looked_goes_on(
    house: House, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen = house.leases.create(house.request(ttl_s=10)).record
    house.leases.renew(TENANT, seen.id, 100)
    house.clock.advance(10)
    monkeypatch.setattr(house.ledger, "leases", lambda tenant=None: [seen])
    house.sweeper.tick()
    assert state_of(house, seen.id) is LeaseState.READY


def test_nothing_stops_the_sweeper(
    house: House, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def broken(tenant: str | None = None) -> None:
        raise OSError("disk gone")

    monkeypatch.setattr(house.ledger, "leases", broken)
    house.sweeper.tick()
    assert "disk gone" in caplog.text
    assert house.sweeper._pause() == LOOK_S


def test_the_thread_looks_when_the_next_lease_ends_and_stops_cleanly(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=10)).record
    asked: queue.Queue[float] = queue.Queue()
    go, stopped = threading.Semaphore(0), threading.Event()

    def wait(seconds: float) -> bool:
        asked.put(seconds)
        go.acquire()
        return stopped.is_set()

    sweeper = Sweeper(house.steps, clock=house.clock, wait=wait)
    sweeper.start()
    assert asked.get(timeout=10) == LOOK_S
    house.clock.advance(9.75)
    go.release()
    assert asked.get(timeout=10) == 0.25
    house.clock.advance(0.25)
    go.release()
    assert asked.get(timeout=10) == LOOK_S
    assert state_of(house, record.id) is LeaseState.RELEASED
    stopped.set()
    go.release()
    sweeper.stop()
    assert not sweeper._thread.is_alive()


def test_stop_ends_the_real_wait_at_once(house: House) -> None:
    house.sweeper.start()
    house.sweeper.stop()
    assert not house.sweeper._thread.is_alive()
