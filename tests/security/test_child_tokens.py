"""A holder can append any block to a token. No binding that a holder makes is for any lease.

Leases of one family are the interesting ones: their chains begin alike. From each token a block is
appended that binds each other lease, in each generation that may matter, as the daemon would make
it; the result verifies, and is refused wherever a token is looked at. The positive controls say
that the tokens before the append work, and that it is the daemon's random number and the place of
the binding which refuse: with the number known, or the place not looked at, the attack succeeds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Final

import pytest

from stockade.decide.authorize import authorize
from stockade.decide.blocks import lease_block, narrow
from stockade.decide.tokens import attenuate, inspect, verify
from stockade.flow.lease_request import LeaseRequest
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseRecord
from stockade.testing.house import TENANT, House, code_of, open_house

NONCES: Final = (None, "0" * 32)


class Family:
    """Every relation that two leases can have."""

    def __init__(self, house: House) -> None:
        self.house = house
        self.root = house.leases._minter.offer(house.request(), house.clock()).token
        self.parent = self.make("run-1", capability=self.root)
        token = self.parent.token
        self.twin = self.make("run-1", name="twin", capability=self.root)
        self.child = self.make("run-1/a", capability=token, share=self.parent.id)
        self.grandchild = self.make("run-1/a/x", capability=self.child.token, share=self.child.id)
        self.sibling = self.make("run-1/b", capability=token, fork=self.parent.id)
        self.apart = self.make("run-1/c")
        self.stranger = self.make("run-2")
        self.foreign = house.leases.create(
            LeaseRequest(tenant="other", trajectory="run-1/a")
        ).record
        self.leases = [each for each in vars(self).values() if isinstance(each, LeaseRecord)]

    def make(self, trajectory: str, **changes: object) -> LeaseRecord:
        return self.house.leases.create(self.house.request(trajectory, **changes)).record

    def tokens(self) -> Iterator[tuple[str, LeaseRecord | None]]:
        yield self.root, None
        for record in self.leases:
            yield record.token, record
            yield attenuate(record.token, narrow(inspect(record.token).blocks[-1])), record


@pytest.fixture
def family(tmp_path: Path) -> Iterator[Family]:
    house = open_house(str(tmp_path))
    yield Family(house)
    house.close()


def rebound(token: str, lease_id: str, generation: int, nonce: str | None) -> str:
    last = inspect(token).blocks[-1]
    return attenuate(token, lease_block(last, lease_id, generation, last.not_after_s, nonce))


def paths(
    house: House, permit: Permit, token: str, target: LeaseRecord
) -> Iterator[Callable[[], object]]:
    """Every place of the flow that looks at a token."""
    leases, tenant = house.leases, target.tenant
    yield lambda: authorize(permit, "file_view", [], {}, target)
    yield lambda: leases.admit(target.id, permit)
    yield lambda: leases.renew(tenant, target.id, 10, permit)
    yield lambda: leases.reset(tenant, target.id, permit)
    yield lambda: house.exports.changes(tenant, target.id, permit)
    yield lambda: leases.release(tenant, target.id, permit)
    below = f"{target.trajectory}/z"
    for how in ({}, {"share": target.id}, {"fork": target.id}):
        made = {"tenant": tenant, "trajectory": below, "capability": token, **how}
        yield partial(leases.create, LeaseRequest.model_validate(made))
    again = LeaseRequest(
        tenant=tenant,
        trajectory=target.trajectory,
        name=target.name,
        capability=token,
        take_over=True,
    )
    yield partial(leases.create, again)


def test_a_binding_that_a_holder_makes_is_for_no_lease(family: Family) -> None:
    house, tried = family.house, 0
    for token, _ in family.tokens():
        for target in family.leases:
            for generation in (1, 2):
                for nonce in NONCES:
                    forged = rebound(token, target.id, generation, nonce)
                    permit = house.permit(forged)
                    assert (permit.lease_id, permit.generation) == (target.id, generation)
                    for path in paths(house, permit, forged, target):
                        assert code_of(path) in (
                            Code.LEASE_NOT_GRANTED,
                            Code.STALE_GENERATION,
                            Code.KEY_REUSED,
                        )
                        tried += 1
    assert tried > 5000
    assert len(house.ledger.leases()) == len(family.leases)


def test_a_token_is_for_its_own_lease_only(family: Family) -> None:
    house = family.house
    for token, own in family.tokens():
        permit = house.permit(token)
        for target in family.leases:
            if target is own:
                house.leases.admit(target.id, permit)  # the control
                authorize(permit, "file_view", [], {}, target)
                continue
            for path in list(paths(house, permit, token, target))[:6]:
                assert code_of(path) is Code.LEASE_NOT_GRANTED


def test_a_late_owner_gets_at_nothing_of_the_next(family: Family) -> None:
    house, old = family.house, family.parent
    new = family.make("run-1", capability=family.root, take_over=True)
    for nonce in NONCES:
        for token in (old.token, family.child.token, family.root):
            permit = house.permit(rebound(token, new.id, 2, nonce))
            assert code_of(partial(house.leases.admit, new.id, permit)) is Code.LEASE_NOT_GRANTED
    permit = house.permit(family.child.token)
    assert code_of(lambda: house.leases.admit(family.child.id, permit)) is not None


def test_what_the_refusals_rest_on(family: Family) -> None:
    """Each defence alone: with it taken away, the attack succeeds."""
    house, parent, child = family.house, family.parent, family.child
    # The random number: whoever knew it could make the child's own token from the parent's.
    binding = inspect(child.token).blocks[-1].lease
    assert binding is not None
    assert binding.nonce not in NONCES
    assert rebound(parent.token, child.id, 1, binding.nonce) == child.token
    # The place of the binding: without it a child's token could be bound back to the parent.
    back = house.permit(rebound(child.token, parent.id, 1, None))
    assert back.chain[: len(parent.chain)] == parent.chain
    house.leases.admit(parent.id, replace(back, bound_at=len(parent.chain) - 1))
    with pytest.raises(Failure):
        house.leases.admit(parent.id, back)


def test_a_binding_can_not_be_taken_away(family: Family) -> None:
    last = inspect(family.child.token).blocks[-1]
    unbound = last.model_copy(update={"lease": None, "depth": last.depth - 1})
    with pytest.raises(Failure) as caught:
        attenuate(family.child.token, unbound)
    assert (caught.value.fault.code, caught.value.fault.rule) == (Code.WIDER_BLOCK, "lease")


def test_revoking_a_block_of_the_parent_ends_its_children(family: Family) -> None:
    house = family.house
    house.steps.authority.revoke_block(family.parent.chain[-1], "uid 0", "", house.clock())
    permits = {each.id: verify(each.token, house.ring, house.clock()) for each in family.leases}
    for record in (family.parent, family.child, family.grandchild, family.sibling):
        assert code_of(partial(house.permit, record.token)) is Code.TOKEN_REVOKED
        admit = partial(house.leases.admit, record.id, permits[record.id])
        assert code_of(admit) is Code.TOKEN_REVOKED
    for record in (family.twin, family.apart):
        house.leases.admit(record.id, house.permit(record.token))
    assert house.leases.show(TENANT, family.twin.id) == family.twin
