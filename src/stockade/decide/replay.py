"""Who may be given a result that is stored.

A result holds what its call could read. The caller has been authorized for the same call, but its
capability may be narrower than the one that the call ran under: in its own, narrower sandbox the
same command could have seen less. So it must be that capability, or one it was narrowed from, or
one with the same walls.
"""

from __future__ import annotations

from stockade.decide.authorize import allowed_path
from stockade.terms.call import Permit
from stockade.terms.claim import ClaimRecord
from stockade.terms.fault import Code, failure
from stockade.terms.ports import PathScope


def check_replay(
    permit: Permit, scope: PathScope, plan_digest: str | None, claim: ClaimRecord, lease_id: str
) -> None:
    """`scope` and `plan_digest` are those of the repeat. Raises Failure: key_reused for a call of
    another lease, right_not_granted."""
    if claim.lease_id != lease_id:
        raise failure(
            Code.KEY_REUSED,
            "this turn and call id were used in an earlier or another lease of the trajectory",
            claim=claim.id,
        )
    if may_see(permit, claim.chain) or (plan_digest and plan_digest == claim.plan_digest):
        return
    edit = claim.foreseen
    if edit is not None and all(allowed_path(scope, edit.path, r) for r in ("read", "write")):
        return
    raise failure(
        Code.RIGHT_NOT_GRANTED,
        "the call has run under another capability, and its result is not for this one",
        claim=claim.id,
    )


def may_see(permit: Permit, chain: tuple[str, ...]) -> bool:
    """Whether `chain` is the permit's own or was narrowed from it; or is that of the lease's former
    owner, whose place the permit's has taken."""
    if chain[: len(permit.chain)] == permit.chain:
        return True
    at = permit.bound_at
    owner = at is not None and len(permit.chain) == at + 1
    return owner and chain[:at] == permit.chain[:at]
