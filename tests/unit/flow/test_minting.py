"""Authority: where a lease's comes from, and which tokens are for which lease and generation."""

from __future__ import annotations

from functools import partial
from pathlib import Path

import pytest

from stockade.decide.blocks import lease_block, narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.lease_request import LeaseRequest
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import End
from stockade.testing.house import KID, TENANT, Caller, House, code_of, open_house

ADDRESS = f"{TENANT}/run-1"


def test_an_unknown_grant_is_named(house: House) -> None:
    request = house.request(grant="absent")
    assert code_of(lambda: house.leases.create(request)) is Code.INVALID_ARGUMENT
    both = house.request(grant="agent", capability="x")
    assert code_of(lambda: house.leases.create(both)) is Code.INVALID_ARGUMENT


def test_a_grant_above_the_ceiling_is_refused_by_name(tmp_path: Path) -> None:
    def lower(given: object) -> object:
        per_lease = given.per_lease  # type: ignore[attr-defined]
        pids = per_lease.pids.model_copy(update={"value": 1})
        return given.model_copy(  # type: ignore[attr-defined]
            update={"per_lease": per_lease.model_copy(update={"pids": pids})}
        )

    house = open_house(str(tmp_path), ceiling=lower)  # type: ignore[arg-type]
    with pytest.raises(Failure) as caught:
        house.leases.create(house.request())
    assert caught.value.fault.code is Code.CEILING_EXCEEDED
    assert caught.value.fault.rule == "per_lease.pids"
    assert house.ledger.leases() == []
    house.close()


def test_an_image_that_is_not_granted_is_refused(house: House) -> None:
    request = house.request(image="debian")
    assert code_of(lambda: house.leases.create(request)) is Code.RIGHT_NOT_GRANTED


def root_token(house: House, trajectory: str = "run-1", tenant: str = TENANT) -> str:
    """A capability that isn't bound to a lease: the parent of one that is."""
    offer = house.leases._minter.offer(
        LeaseRequest(tenant=tenant, trajectory=trajectory), house.clock()
    )
    return offer.token


def test_a_capability_makes_a_lease_that_is_narrowed_from_it(house: House) -> None:
    root = root_token(house)
    parent = inspect(root).blocks[-1]
    per_call = parent.per_call.model_copy(update={"wall_ms": 1000})
    narrowed = attenuate(
        root, narrow(parent, per_call=per_call, not_after_s=parent.not_after_s - 9)
    )
    record = house.leases.create(house.request(capability=narrowed)).record
    assert record.grant.per_call.wall_ms == 1000
    assert record.not_after_s == parent.not_after_s - 9
    assert record.chain[:2] == house.permit(narrowed).chain
    again = house.leases.create(house.request(capability=narrowed))
    assert again.record == record
    # The same grant by another chain is another owner.
    with pytest.raises(Failure) as caught:
        house.leases.create(
            house.request(capability=attenuate(root, narrow(parent, per_call=per_call)))
        )
    assert caught.value.fault.rule == "capability"


def test_a_capability_of_someone_else_or_of_a_lease_makes_none(house: House) -> None:
    for token in (root_token(house, "run-9"), root_token(house, tenant="other")):
        foreign = house.request(capability=token)
        assert code_of(partial(house.leases.create, foreign)) is Code.LEASE_NOT_GRANTED
    bound = house.leases.create(house.request("run-5")).record.token
    request = house.request("run-5", name="second", capability=bound)
    assert code_of(lambda: house.leases.create(request)) is Code.LEASE_NOT_GRANTED
    request = house.request(capability="nonsense")
    assert code_of(lambda: house.leases.create(request)) is Code.TOKEN_MALFORMED


def test_an_expired_capability_makes_no_lease(house: House) -> None:
    root = root_token(house)
    house.clock.advance(inspect(root).blocks[0].not_after_s - house.clock())
    request = house.request(capability=root)
    assert code_of(lambda: house.leases.create(request)) is Code.TOKEN_EXPIRED


def test_the_same_key_signs_for_its_tenant_only(house: House) -> None:
    record = house.leases.create(house.request()).record
    assert inspect(record.token).blocks[0].kid == KID
    assert inspect(record.token).blocks[0].tenant == TENANT


def test_take_over_fences_the_old_owner_and_keeps_the_workspace(house: House) -> None:
    old = house.leases.create(house.request()).record
    (house.workspace(old) / "kept").write_text("x")
    new = house.leases.create(house.request(take_over=True)).record
    assert (new.id, new.generation) == (old.id, 2)
    assert (house.workspace(new) / "kept").exists()
    house.leases.admit(new.id, house.permit(new.token))
    assert code_of(lambda: house.leases.admit(old.id, house.permit(old.token))) is (
        Code.STALE_GENERATION
    )
    # A repeated create without take_over joins the new generation.
    assert house.leases.create(house.request()).record == new


def test_take_over_cancels_what_runs_under_the_old_generation(house: House) -> None:
    old = house.leases.create(house.request()).record
    with Caller(house, old) as caller:
        house.leases.create(house.request(take_over=True))
    assert caller.reason is End.CANCELLED


def test_unknown_and_foreign_leases_are_one_answer(house: House) -> None:
    mine = house.leases.create(house.request()).record
    theirs = house.leases.create(LeaseRequest(tenant="other", trajectory="run-1")).record
    permit = house.permit(mine.token)
    answers = set()
    for address in (theirs.id, "ls_ffffffffffffffff", "other/run-1", "other/none", "nonsense", "/"):
        with pytest.raises(Failure) as caught:
            house.leases.show(TENANT, address)
        answers.add((caught.value.fault.code, caught.value.fault.message))
    for lease_id in (theirs.id, "ls_ffffffffffffffff"):
        with pytest.raises(Failure) as caught:
            house.leases.admit(lease_id, permit)
        answers.add((caught.value.fault.code, caught.value.fault.message))
    assert len(answers) == 1
    assert answers.pop()[0] is Code.LEASE_NOT_GRANTED
    for action in (house.leases.reset, house.leases.release):
        assert code_of(partial(action, TENANT, theirs.id)) is Code.LEASE_NOT_GRANTED
    assert house.leases.show(None, theirs.id) == theirs  # the operator


def test_a_binding_that_a_holder_made_himself_is_not_admitted(house: House) -> None:
    root = root_token(house)
    victim = house.leases.create(house.request()).record
    narrowed = attenuate(root, narrow(inspect(root).blocks[-1]))
    binding = lease_block(inspect(narrowed).blocks[-1], victim.id, 1, int(victim.not_after_s))
    permit = house.permit(attenuate(narrowed, binding))  # genuine, and bound by its holder
    assert (permit.lease_id, permit.generation) == (victim.id, 1)
    assert code_of(lambda: house.leases.admit(victim.id, permit)) is Code.LEASE_NOT_GRANTED


def test_a_narrowed_token_of_the_lease_is_admitted(house: House) -> None:
    record = house.leases.create(house.request()).record
    narrowed = attenuate(record.token, narrow(inspect(record.token).blocks[-1]))
    assert house.leases.admit(record.id, house.permit(narrowed)) == record


def test_an_unbound_token_is_not_admitted(house: House) -> None:
    record = house.leases.create(house.request()).record
    permit = house.permit(root_token(house))
    assert code_of(lambda: house.leases.admit(record.id, permit)) is Code.LEASE_NOT_GRANTED
