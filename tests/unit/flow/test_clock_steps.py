"""Leases run on the clock of the boot: the wall clock may be set, and the host may boot."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from stockade.terms.fault import Code
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.outcome import End
from stockade.testing.clock import ManualClock
from stockade.testing.house import TENANT, Caller, House, code_of, open_house

HOUR_S = 3600


def found(house: House, lease_id: str) -> LeaseRecord:
    record = house.ledger.lease(lease_id)
    assert record is not None
    return record


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_stepped_wall_clock_neither_ends_a_lease_nor_lets_it_live_on(
    house: House, step_s: int
) -> None:
    record = house.leases.create(house.request(ttl_s=600)).record
    house.clock.advance(100)
    house.clock.step(step_s)
    house.sweeper.tick()
    assert found(house, record.id).state is LeaseState.READY
    assert house.sweeper._pause() == 1.0
    house.clock.advance(499.5)
    house.sweeper.tick()
    assert found(house, record.id).state is LeaseState.READY
    assert house.sweeper._pause() == 0.5
    house.clock.advance(0.5)
    assert code_of(lambda: house.leases.renew(TENANT, record.id, 10)) is Code.LEASE_EXPIRED
    house.sweeper.tick()
    assert found(house, record.id).state is LeaseState.RELEASED


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_renewal_counts_from_now_whatever_the_wall_clock_says(house: House, step_s: int) -> None:
    record = house.leases.create(house.request(ttl_s=600)).record
    house.clock.step(step_s)
    longer = house.leases.renew(TENANT, record.id, 900)
    assert longer.left_s(house.clock.moment()) == 900
    assert longer.expires_at_s == house.clock() + 900
    assert house.leases.renew(TENANT, record.id, 1) == longer


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_stepped_wall_clock_during_a_restart_changes_nothing(tmp_path: Path, step_s: int) -> None:
    clock = ManualClock()
    first = open_house(str(tmp_path), clock=clock)
    record = first.leases.create(first.request(ttl_s=600)).record
    first.close()
    clock.step(step_s)
    clock.advance(100)
    second = open_house(str(tmp_path), clock=clock)
    second.sweeper.recover()
    assert found(second, record.id).left_s(clock.moment()) == 500
    clock.advance(500)
    second.sweeper.tick()
    assert found(second, record.id).state is LeaseState.RELEASED
    second.close()


def test_after_a_reboot_the_wall_clock_says_once_what_is_left(tmp_path: Path) -> None:
    clock = ManualClock()
    first = open_house(str(tmp_path), clock=clock)
    long = first.leases.create(first.request(ttl_s=600)).record
    short = first.leases.create(first.request("run-2", ttl_s=50)).record
    first.close()
    clock.reboot(100)
    second = open_house(str(tmp_path), clock=clock)
    second.sweeper.recover()
    assert found(second, short.id).state is LeaseState.RELEASED
    kept = found(second, long.id)
    assert (kept.boot, kept.left_s(clock.moment())) == (clock.moment().boot, 500)
    clock.step(HOUR_S)
    second.sweeper.tick()
    assert found(second, long.id).state is LeaseState.READY
    clock.advance(500)
    second.sweeper.tick()
    assert found(second, long.id).state is LeaseState.RELEASED
    second.close()


def test_a_boot_without_a_clock_gives_a_lease_no_more_than_it_had(tmp_path: Path) -> None:
    """The wall clock says 1970 until a time service has set it."""
    clock = ManualClock()
    first = open_house(str(tmp_path), clock=clock)
    record = first.leases.create(first.request(ttl_s=600)).record
    first.close()
    clock.reboot(100)
    now_s = clock()
    clock.step(-now_s)
    second = open_house(str(tmp_path), clock=clock)
    second.sweeper.recover()
    assert found(second, record.id).left_s(clock.moment()) == 600
    clock.step(now_s)
    clock.advance(600)
    second.sweeper.tick()
    assert found(second, record.id).state is LeaseState.RELEASED
    second.close()


def test_a_boottime_of_another_boot_is_not_compared(tmp_path: Path) -> None:
    """The new boot is younger than the end that was written in the old one, and older."""
    clock = ManualClock()
    house = open_house(str(tmp_path), clock=clock)
    record = house.leases.create(house.request(ttl_s=60)).record
    clock.reboot(61)
    assert record.ends_boot_s > clock.moment().boot_s
    assert record.left_s(clock.moment()) == -1
    clock.reboot(0)
    clock.advance(10_000)
    clock.step(-10_061)
    assert record.ends_boot_s < clock.moment().boot_s
    assert record.left_s(clock.moment()) == 60
    house.close()


def test_a_call_goes_on_over_a_step_and_ends_with_its_lease(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=10)).record
    with Caller(house, record) as caller:
        for step_s in (HOUR_S, -2 * HOUR_S):
            house.clock.step(step_s)
            house.sweeper.tick()
            assert caller.reason is None
        house.clock.advance(10)
        house.sweeper.tick()
    assert caller.reason is End.LEASE_EXPIRED


def test_a_renewal_that_races_the_end_is_kept_or_refused(house: House) -> None:
    """Whoever comes first decides: what was renewed lives on, what was refused is removed."""
    for number in range(40):
        record = house.leases.create(house.request(f"run-{number}", ttl_s=10)).record
        house.clock.advance(9.999)
        go = threading.Barrier(2)
        codes: list[Code | None] = []

        def renew(
            lease_id: str = record.id, go: threading.Barrier = go, codes: list[Code | None] = codes
        ) -> None:
            go.wait(10)
            codes.append(code_of(lambda: house.leases.renew(TENANT, lease_id, 60)))

        thread = threading.Thread(target=renew)
        thread.start()
        go.wait(10)
        house.clock.advance(0.001)
        house.sweeper.tick()
        thread.join(10)
        state = found(house, record.id).state
        if codes == [None]:
            assert state is LeaseState.READY
            house.leases.release(TENANT, record.id)
        else:
            assert codes == [Code.LEASE_EXPIRED]
            house.sweeper.tick()
            assert found(house, record.id).state is LeaseState.RELEASED


@pytest.mark.parametrize("renewed_first", [True, False])
def test_both_orders_of_renewal_and_end(house: House, renewed_first: bool) -> None:
    record = house.leases.create(house.request(ttl_s=10)).record
    if renewed_first:
        house.clock.advance(9.999)
        house.leases.renew(TENANT, record.id, 60)
        house.clock.advance(0.001)
        house.sweeper.tick()
        assert found(house, record.id).state is LeaseState.READY
    else:
        house.clock.advance(10)
        house.sweeper.tick()
        assert code_of(lambda: house.leases.renew(TENANT, record.id, 60)) is Code.LEASE_EXPIRED


def test_tokens_run_on_the_wall_clock_with_a_stated_skew(tmp_path: Path) -> None:
    house = open_house(str(tmp_path), skew_s=5)
    now = house.clock()
    token = house.minter.root(TENANT, "run-1", "agent", 100, now).token
    for step_s, code in ((104.5, None), (0.5, Code.TOKEN_EXPIRED), (-109.5, None)):
        house.clock.step(step_s)
        assert code_of(lambda: house.permit(token)) is code
    house.clock.step(-1)
    assert code_of(lambda: house.permit(token)) is Code.TOKEN_NOT_YET_VALID
    house.close()
