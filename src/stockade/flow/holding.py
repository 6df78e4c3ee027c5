"""Who holds a lease: which tokens are for it, and what each may ask of the lease itself.

A token is for a lease if it is bound to the lease's id and generation and its first blocks are those
of the lease's own token. A narrower one, made for a sub-agent, say, is for the lease as well: it may
call tools as far as it goes. But it can't extend the lease, drop its work or end it, because others
hold the lease too; and it takes the work out only if it may view every file of it. So does the own
token of a lease that works in another one's workspace.
"""

from __future__ import annotations

from typing import Final

from stockade.decide.authorize import authorize, descends, same_or_below
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.pathname import WORKSPACE

# None is a peer that gave no token and acts by who it is.
Holder = Permit | None

OWN_TOKEN: Final = "only the lease's own token may do this; a narrower one is for calls"


def check_holder(record: LeaseRecord, permit: Permit) -> None:
    """Raises Failure: lease_not_granted, stale_generation."""
    if (record.id, record.tenant) != (permit.lease_id, permit.tenant) or not same_or_below(
        permit.trajectory, record.trajectory
    ):
        raise not_granted()
    if permit.generation != record.generation:
        raise failure(
            Code.STALE_GENERATION,
            f"the token is for generation {permit.generation} of the lease, which has "
            f"{record.generation}",
            rule="lease.generation",
        )
    # A holder of any token could append a binding of its own: only what descends from the lease's
    # token is for this lease.
    if not descends(permit, record):
        raise not_granted()


def check_owner(record: LeaseRecord, holder: Holder) -> None:
    """For renew, reset and release. As `check_holder`, and Failure(lease_not_granted) for a
    narrower token."""
    if holder is None:
        return
    check_holder(record, holder)
    if holder.chain != record.chain:
        raise failure(Code.LEASE_NOT_GRANTED, OWN_TOKEN, rule="lease.token")


def check_reader(record: LeaseRecord, holder: Holder) -> None:
    """For exports. As `check_holder`, and as `authorize` for a token that may not view the whole
    workspace and is narrower than the lease whose workspace it is."""
    if holder is None:
        return
    check_holder(record, holder)
    if holder.chain != record.chain or record.shares is not None:
        whole = [Right("read", WORKSPACE)]
        # Without arguments, so that any check on viewing refuses: one may fit this path alone.
        authorize(holder, "file_view", whole, {}, record)


def not_granted() -> Failure:
    """One answer for a lease that isn't there and one that is another tenant's."""
    return failure(Code.LEASE_NOT_GRANTED, "there is no such lease for this caller")
