"""Leases are bounded in time; reset and release are complete, or say that they are not."""

from __future__ import annotations

import os
from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseState
from stockade.terms.outcome import End
from stockade.testing.faults import Faults, raising
from stockade.testing.house import TENANT, Caller, House, code_of
from tests.unit.flow.lines import Line

ADDRESS = f"{TENANT}/run-1"


def test_b81_renew_never_shortens_and_stops_at_the_ceiling(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=60)).record
    assert house.leases.renew(TENANT, ADDRESS, 5).expires_at_s == record.expires_at_s
    later = house.leases.renew(TENANT, ADDRESS, 120)
    assert later.expires_at_s == house.clock() + 120
    assert later.token == record.token
    for _ in range(20):
        house.clock.advance(100)
        later = house.leases.renew(TENANT, record.id, 10**9)
        assert later.expires_at_s == record.not_after_s
    assert code_of(lambda: house.leases.renew(TENANT, ADDRESS, 0)) is Code.INVALID_ARGUMENT
    house.clock.advance(record.not_after_s - house.clock())
    assert code_of(lambda: house.leases.renew(TENANT, ADDRESS, 60)) is Code.LEASE_EXPIRED


def test_b81_create_is_bounded_by_the_token(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=10**12)).record
    assert record.expires_at_s == record.not_after_s


def test_b81_an_expired_lease_is_gone_at_once_and_its_name_is_free(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=60)).record
    permit = house.permit(record.token)
    house.clock.advance(59.5)
    house.leases.admit(record.id, permit)
    house.clock.advance(0.5)
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.LEASE_EXPIRED
    for action in (house.leases.reset, house.exports.changes):
        assert code_of(partial(action, TENANT, record.id)) is Code.LEASE_EXPIRED
    assert code_of(lambda: house.leases.renew(TENANT, record.id, 60)) is Code.LEASE_EXPIRED
    fresh = house.leases.create(house.request(ttl_s=60)).record
    assert fresh.id != record.id
    assert house.left_behind() == [fresh.id]


def test_how_a_lease_ended_is_told_also_when_it_is_removed(house: House) -> None:
    record = house.leases.create(house.request(ttl_s=60)).record
    permit = house.permit(record.token)
    house.clock.advance(60)
    for removed in (False, True):
        if removed:
            house.sweeper.tick()
        with pytest.raises(Failure, match="the lease has expired"):
            house.leases.admit(record.id, permit)
        with pytest.raises(Failure, match="the lease has expired"):
            house.leases.renew(TENANT, record.id, 60)
    assert house.leases.show(TENANT, record.id).state is LeaseState.RELEASED
    other = house.leases.create(house.request(ttl_s=60)).record
    permit = house.permit(other.token)
    house.leases.release(TENANT, other.id)
    with pytest.raises(Failure, match="the lease has been released"):
        house.leases.admit(other.id, permit)
    house.clock.advance(61)  # what was released stays so when its time is past
    with pytest.raises(Failure, match="the lease has been released"):
        house.leases.admit(other.id, permit)
    late = house.leases.create(house.request(ttl_s=60)).record
    house.clock.advance(60)
    house.leases.release(TENANT, late.id)  # what had expired stays so too
    with pytest.raises(Failure, match="the lease has expired"):
        house.leases.admit(late.id, house.permit(late.token))
    third = house.leases.create(house.request(ttl_s=60)).record
    house.authority.revoke_block(third.chain[-1], "uid 0", "", house.clock())
    house.sweeper.tick()
    gone = house.leases.show(TENANT, third.id)
    with pytest.raises(Failure, match="the lease has ended: its capability is revoked"):
        house.leases.own_token(gone)


def test_reset_brings_the_source_back_and_keeps_generation_and_token(
    house: House, source: Path
) -> None:
    record = house.leases.create(house.request(source=str(source))).record
    work = house.workspace(record)
    (work / "a.txt").write_text("changed")
    (work / "new").write_text("x")
    after = house.leases.reset(TENANT, ADDRESS)
    assert after == replace(record, workspace_version=2)
    assert sorted(os.listdir(house.workspace(after))) == ["a.txt", "b.txt"]
    assert (house.workspace(after) / "a.txt").read_text() == "one\n"
    house.leases.admit(record.id, house.permit(record.token))


@pytest.mark.parametrize("operation", ["reset", "release"])
def test_reset_and_release_cancel_running_calls(house: House, operation: str) -> None:
    record = house.leases.create(house.request()).record
    with Caller(house, record) as caller:
        getattr(house.leases, operation)(TENANT, ADDRESS)
    assert caller.reason is End.CANCELLED


def test_no_call_gets_in_while_a_reset_is_under_way(house: House, faults: Faults) -> None:
    record = house.leases.create(house.request()).record
    seen: list[Code] = []

    def try_to_call() -> None:
        with pytest.raises(Failure) as caught, house.running.enter(record.id, "rq", None, 8):
            pass
        seen.append(caught.value.fault.code)

    faults.arm("workspaces.reset.half", try_to_call)
    house.leases.reset(TENANT, ADDRESS)
    assert seen == [Code.BUSY]


def test_a_failed_reset_lets_no_call_in_until_it_is_repeated(
    house: House, faults: Faults, source: Path
) -> None:
    record = house.leases.create(house.request(source=str(source))).record
    permit = house.permit(record.token)
    faults.arm("workspaces.reset.half", raising(OSError("busy")))
    with pytest.raises(OSError, match="busy"):
        house.leases.reset(TENANT, ADDRESS)
    assert house.leases.show(TENANT, ADDRESS).state is LeaseState.RESETTING
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.WORKSPACE_UNAVAILABLE
    assert code_of(lambda: house.exports.changes(TENANT, ADDRESS)) is Code.WORKSPACE_UNAVAILABLE
    assert house.leases.reset(TENANT, ADDRESS).state is LeaseState.READY
    assert house.leases.admit(record.id, permit).workspace_version == 2


def test_release_removes_everything_and_is_idempotent(house: House, source: Path) -> None:
    record = house.leases.create(house.request(source=str(source))).record
    sink = house.artifacts.open(record.id, "stdout", 0, 100)
    sink.write(b"hello")
    sink.finish()
    os.mkdir(os.path.join(house.engine.directory, record.id))
    released = house.leases.release(TENANT, ADDRESS)
    assert released.state is LeaseState.RELEASED
    assert released.token == ""  # nothing that could be used is kept
    assert house.left_behind() == []
    assert house.leases.release(TENANT, record.id) == released
    assert house.leases.show(TENANT, record.id) == released
    assert house.leases.list(TENANT) == []
    assert code_of(lambda: house.leases.show(TENANT, ADDRESS)) is Code.LEASE_NOT_GRANTED
    assert code_of(lambda: house.leases.renew(TENANT, record.id, 9)) is Code.LEASE_EXPIRED
    permit = house.permit(record.token)
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.LEASE_EXPIRED


def test_b77_a_removal_that_fails_is_an_error_and_the_lease_is_never_handed_out_again(
    house: House, faults: Faults
) -> None:
    record = house.leases.create(house.request()).record
    permit = house.permit(record.token)
    faults.arm("workspaces.remove.half", raising(OSError("read-only")))
    with pytest.raises(OSError, match="read-only"):
        house.leases.release(TENANT, ADDRESS)
    assert house.leases.show(TENANT, record.id).state is LeaseState.DIRTY
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.LEASE_EXPIRED
    for action in (house.leases.reset, house.exports.changes):
        assert code_of(partial(action, TENANT, record.id)) is Code.LEASE_EXPIRED
    # While it can't be removed nobody gets its name, and afterwards nobody gets its directory.
    faults.arm("workspaces.remove.half", raising(OSError("read-only")))
    with pytest.raises(OSError, match="read-only"):
        house.leases.create(house.request())
    fresh = house.leases.create(house.request()).record
    assert fresh.id != record.id
    assert house.left_behind() == [fresh.id]


@pytest.mark.parametrize("operation", ["reset", "take over"])
def test_nothing_goes_on_in_a_sandbox_of_before(line: Line, operation: str) -> None:
    """What a command left running there would write into what is new, or for another owner."""
    house, parent = line.house, line.record
    token = line.record.token
    request = house.request("run-1/sub", capability=token, share=parent.id)
    below = house.leases.create(request).record
    line.call()
    line.call(lease=below.id, token=below.token)
    assert [sandbox.alive() for sandbox in house.engine.created] == [True, True]
    if operation == "reset":
        house.leases.reset(TENANT, parent.id)
    else:
        house.leases.create(house.request(take_over=True))
    assert [sandbox.alive() for sandbox in house.engine.created] == [False, False]


def test_a_reset_ends_what_was_to_be_removed_from_the_workspace(house: House) -> None:
    parent = house.leases.create(house.request()).record
    request = house.request("run-1/sub", capability=parent.token, share=parent.id)
    below = house.leases.create(request).record
    house.ledger.put_lease(replace(below, state=LeaseState.DIRTY))
    house.leases.reset(TENANT, parent.id)
    assert house.leases.show(None, below.id).state is LeaseState.RELEASED
