"""Leases over a workspace that exists: what may be asked for, and who may ask.

`share` works in the workspace of the lease it names, `fork` begins with a copy of it. Either way
the new lease is of a trajectory strictly below that lease's, and its authority is a capability that
stands in that lease's line: its own token, a narrower one, or one that its token was made from. So
the new lease's token continues the capability that was given, block after block: what its blocks
lack the lease lacks, what it spends counts against each of them, and revoking any of them ends it.
"""

from __future__ import annotations

from stockade.decide.authorize import below, check_disk
from stockade.flow.lease_request import LeaseRequest
from stockade.flow.minting import Offer
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord


def named_origin(request: LeaseRequest) -> str | None:
    """The address of the lease whose workspace is asked for. Raises Failure(invalid_argument) for
    a request that asks for another one beside it, or for authority that isn't of that lease."""
    address = request.share or request.fork
    if address is None:
        return None
    for name, given in (
        ("fork", request.share is not None and request.fork is not None),
        ("source", request.source is not None),
        ("excludes", bool(request.excludes)),
        ("grant", request.grant is not None),
    ):
        if given:
            word = "share" if request.share is not None else "fork"
            raise failure(
                Code.INVALID_ARGUMENT, f"{name} and {word} exclude each other", argument=name
            )
    return address


def check_below(request: LeaseRequest, origin: LeaseRecord) -> None:
    """Raises Failure(lease_not_granted)."""
    if not below(origin.trajectory, request.trajectory):
        raise failure(
            Code.LEASE_NOT_GRANTED,
            f"the trajectory must be below {origin.trajectory}, whose workspace is asked for",
            rule="trajectory",
        )


def check_entitled(request: LeaseRequest, origin: LeaseRecord, offer: Offer) -> None:
    """Whether the capability that the offer is made of stands in the line of `origin`, and may
    read what is to be copied. Raises Failure: lease_not_granted, right_not_granted."""
    of_origin = offer.giver is not None and offer.giver.id == origin.id
    before = offer.giver is None and offer.chain == origin.chain[: len(offer.chain or ())]
    if not (of_origin or (before and offer.chain)):
        raise failure(
            Code.LEASE_NOT_GRANTED,
            "the capability is not for the lease whose workspace is asked for",
            rule="lease",
        )
    if request.fork is not None and not offer.grant.scope.read:
        raise failure(
            Code.RIGHT_NOT_GRANTED,
            "the capability may read nothing of the workspace that is to be copied",
            rule="scope.read",
        )


def check_shared_disk(owner: LeaseRecord, offer: Offer) -> None:
    """A lease that shares the workspace of `owner` has that one's disk. Raises
    Failure(unenforceable) for one that may write there and is granted less of it."""
    if offer.grant.scope.write or offer.grant.scope.execute:
        check_disk(offer.grant.per_lease, owner.grant.per_lease)


def may_take_over(found: LeaseRecord, offer: Offer) -> bool:
    """A capability that is bound to a lease takes over only what was made from it: the holder of
    one narrowed token must not get what the holder of another one made beside it."""
    if offer.giver is None or offer.chain is None:
        return True
    return found.chain[: len(offer.chain)] == offer.chain
