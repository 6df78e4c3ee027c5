"""A lease whose capability was revoked is over, as if its time had come."""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from pathlib import Path

import pytest

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.terms.fault import Code
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.testing.house import TENANT, House, code_of, open_house


def made_of(house: House, trajectory: str = "run-1") -> tuple[str, LeaseRecord]:
    """A capability, and a lease that was made of it."""
    token = house.minter.root(TENANT, trajectory, "agent", 600, house.clock()).token
    return token, house.leases.create(house.request(trajectory, capability=token)).record


def revoke(house: House, token: str) -> None:
    house.authority.revoke_token(token, None, "uid 0", "", house.clock())


def test_no_lease_is_made_of_a_revoked_capability(house: House) -> None:
    token, record = made_of(house)
    revoke(house, token)
    for request in (
        house.request(capability=token),
        house.request(capability=token, take_over=True),
        house.request("run-1", name="second", capability=token),
    ):
        assert code_of(partial(house.leases.create, request)) is Code.TOKEN_REVOKED
    assert house.leases.show(TENANT, record.id) == record


def test_its_operations_are_refused_by_token_and_without(house: House) -> None:
    token, record = made_of(house)
    permit = house.permit(record.token)
    revoke(house, token)
    leases = house.leases
    for holder in (None, permit):
        for work in (
            partial(leases.renew, TENANT, record.id, 60, holder),
            partial(leases.reset, TENANT, record.id, holder),
            partial(house.exports.changes, TENANT, record.id, holder),
        ):
            assert code_of(work) is Code.TOKEN_REVOKED
    assert code_of(partial(leases.admit, record.id, permit)) is Code.TOKEN_REVOKED
    # Whoever may end it by who it is still may.
    assert leases.release(TENANT, record.id).state is LeaseState.RELEASED


def test_the_sweeper_removes_it_and_nothing_beside(house: House) -> None:
    token, record = made_of(house)
    _, other = made_of(house, "run-2")
    house.leases.workspace(record)
    house.sweeper.tick()
    assert house.leases.show(None, record.id).state is LeaseState.READY
    revoke(house, token)
    house.sweeper.tick()
    assert house.leases.show(None, record.id).state is LeaseState.RELEASED
    assert house.leases.show(None, other.id).state is LeaseState.READY
    assert record.id not in house.left_behind()


def test_a_narrower_block_leaves_the_lease_itself(house: House) -> None:
    _, record = made_of(house)
    child = attenuate(record.token, narrow(inspect(record.token).blocks[-1]))
    permit = house.permit(child)
    revoke(house, child)
    house.sweeper.tick()
    assert house.leases.admit(record.id, house.permit(record.token)) == record
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.TOKEN_REVOKED


def test_a_start_removes_what_was_revoked_before_the_stop(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    token, record = made_of(house)
    revoke(house, token)
    house.close()
    again = open_house(str(tmp_path), clock=house.clock)
    again.sweeper.recover()
    assert again.leases.show(None, record.id).state is LeaseState.RELEASED
    again.close()


def test_its_name_is_free_for_a_lease_of_another_capability(house: House) -> None:
    token, old = made_of(house)
    (house.workspace(old) / "work").write_text("of the revoked one")
    revoke(house, token)
    new = house.leases.create(house.request()).record
    assert new.id != old.id
    assert not (house.workspace(new) / "work").exists()


def test_taken_over_before_it_keeps_its_work(house: House) -> None:
    """What an operator does who wants to keep the work of a capability that leaked."""
    token, old = made_of(house)
    (house.workspace(old) / "work").write_text("kept")
    new = house.leases.create(house.request(take_over=True)).record
    revoke(house, token)
    house.sweeper.tick()
    assert house.leases.admit(new.id, house.permit(new.token)) == new
    assert (house.workspace(new) / "work").read_text() == "kept"


def test_the_leases_of_sub_trajectories_go_with_it(house: House) -> None:
    token, parent = made_of(house)
    shared = house.leases.create(house.request("run-1/sub", share=parent.id)).record
    forked = house.leases.create(house.request("run-1/fork", fork=parent.id)).record
    # An end of the child's alone leaves the parent.
    revoke(house, shared.token)
    house.sweeper.tick()
    states = [house.leases.show(None, one.id).state for one in (parent, shared, forked)]
    assert states == [LeaseState.READY, LeaseState.RELEASED, LeaseState.READY]
    revoke(house, token)
    house.sweeper.tick()
    for record in (parent, forked):
        assert house.leases.show(None, record.id).state is LeaseState.RELEASED
    assert house.left_behind() == []


def test_a_lease_in_the_workspace_of_a_revoked_one_lets_no_call_in(house: House) -> None:
    """Though its own capability does not come from the one that was revoked."""
    token, parent = made_of(house)
    shared = house.leases.create(
        house.request("run-1/sub", capability=token, share=parent.id)
    ).record
    permit = house.permit(shared.token)
    house.leases.admit(shared.id, permit)
    revoke(house, parent.token)
    assert not house.authority.revoked(shared.chain)
    assert code_of(partial(house.leases.admit, shared.id, permit)) is Code.LEASE_EXPIRED


@pytest.mark.parametrize("state", [LeaseState.DIRTY, LeaseState.RELEASED])
def test_a_lease_is_over_with_the_one_whose_workspace_it_works_in(
    house: House, state: LeaseState
) -> None:
    """Also where a crash came between the end of the one and of the other."""
    _, parent = made_of(house)
    shared = house.leases.create(house.request("run-1/sub", share=parent.id)).record
    assert not house.steps.over(shared, house.clock.moment())
    house.ledger.put_lease(replace(parent, state=state))
    assert house.steps.over(shared, house.clock.moment())
