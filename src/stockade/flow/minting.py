"""Where a lease's authority comes from, and the token that says so.

A lease is made either of a grant that the operator's policy names, for which a root token is minted
here, or of a capability that the caller holds. Either way the authority has to be within the
tenant's ceiling. A wider one is refused and the component named, never cut to size silently; a
request that says `within_ceiling` asks for the intersection instead, and is told what was cut. A
grant is cut in the root block, a capability in the block that the lease adds, since the blocks
before it can't be changed. What the lease's calls carry is the token with this one more block,
which binds lease id and generation. It also holds a random number: whoever holds the token before
it could make any other block of it, and would then hold the new lease's token.

A capability that is bound to a lease already makes leases of child trajectories only. The new
block then replaces the binding, and the token is for the parent's lease no longer.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.decide.attenuation import exceeds, meet, wider_names
from stockade.decide.authorize import below, same_or_below
from stockade.decide.blocks import grant_of, lease_block, root_block
from stockade.decide.grant_file import CeilingFile
from stockade.decide.tokens import attenuate, inspect, mint
from stockade.flow.authority import Authority
from stockade.flow.lease_request import LeaseRequest
from stockade.terms.call import Permit
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Block, Grant
from stockade.terms.lease import LeaseRecord

DEFAULT_GRANT: Final = "agent"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a lease can be made of: a token, its last block, and the ceiling that the next block is
    cut to, if it is. `grant` is what the lease will be granted; `chain` the ids of the caller's
    capability, None for a grant of the policy; `cut` the components that the ceiling made
    smaller; `giver` the lease that the caller's capability is bound to."""

    token: str
    parent: Block
    ceiling: Grant | None
    grant: Grant
    chain: tuple[str, ...] | None
    not_after_s: int
    cut: tuple[str, ...]
    giver: LeaseRecord | None = None


@dataclass(frozen=True, slots=True)
class Bound:
    """The authority of one generation of one lease. `not_after_s` is the end of every renewal."""

    token: str
    grant: Grant
    chain: tuple[str, ...]
    not_after_s: float


@dataclass(frozen=True, slots=True)
class Minted:
    """A root capability, and the components that the ceiling made smaller."""

    token: str
    cut: tuple[str, ...]


class Minter:
    """Thread-safe. Nothing is kept between calls."""

    def __init__(
        self,
        authority: Authority,
        *,
        grant_named: Callable[[str], Grant],
        ceiling_for: Callable[[str], CeilingFile],
    ) -> None:
        """`grant_named` raises Failure(invalid_argument) for a name that the policy doesn't have;
        `ceiling_for` takes a tenant."""
        self._authority = authority
        self._grant_named = grant_named
        self._ceiling_for = ceiling_for

    def root(
        self,
        tenant: str,
        trajectory: str,
        grant: str,
        ttl_s: int,
        now_s: float,
        *,
        within_ceiling: bool = False,
    ) -> Minted:
        """A capability of a grant file. Raises Failure: invalid_argument, ceiling_exceeded."""
        ceiling = self._ceiling_for(tenant)
        longest = ceiling.max_ttl_s.value
        wanted = self._grant_named(grant)
        cut = self._cut(wanted, ceiling, within_ceiling)
        if ttl_s > longest:
            if not within_ceiling:
                raise failure(
                    Code.CEILING_EXCEEDED,
                    f"ttl_s is {ttl_s}; the tenant's ceiling is {longest}",
                    rule="max_ttl_s",
                )
            ttl_s, cut = longest, (*cut, "max_ttl_s")
        if within_ceiling:
            wanted = meet(wanted, ceiling.grant())
        token, _ = self._mint(wanted, tenant, trajectory, int(now_s), int(now_s) + ttl_s)
        return Minted(token, cut)

    def offer(
        self,
        request: LeaseRequest,
        now_s: float,
        bound_to: Callable[[Permit], LeaseRecord] | None = None,
    ) -> Offer:
        """`bound_to` gives the lease that a permit is bound to, if it is admitted there; without
        it no capability that is bound makes a lease. Raises Failure: invalid_argument,
        ceiling_exceeded, lease_not_granted, token codes."""
        giver = None
        if request.grant is not None and request.capability is not None:
            raise failure(
                Code.INVALID_ARGUMENT,
                "give a grant or a capability, not both",
                argument="grant",
            )
        ceiling = self._ceiling_for(request.tenant)
        latest = int(now_s) + ceiling.max_ttl_s.value
        bounds = ceiling.grant() if request.within_ceiling else None
        if request.capability is None:
            grant = self._grant_named(request.grant or DEFAULT_GRANT)
            cut = self._cut(grant, ceiling, request.within_ceiling)
            grant = grant if bounds is None else meet(grant, bounds)
            token, parent = self._mint(
                grant, request.tenant, request.trajectory, int(now_s), latest
            )
            chain = None
        else:
            token = request.capability
            permit = self._authority.verify(token, now_s)
            giver = _giver(permit, request, bound_to)
            cut = self._cut(permit.grant, ceiling, request.within_ceiling)
            parent, chain = inspect(token).blocks[-1], permit.chain
            latest = min(latest, permit.not_after_s)
        # The id and generation don't matter here: what a lease is granted is the same for all.
        bound = grant_of(_child(parent, bounds, "ls_0000000000000000", 1, latest))
        return Offer(token, parent, bounds, bound, chain, latest, cut, giver)

    def bind(self, offer: Offer, lease_id: str, generation: int, now_s: float, nonce: str) -> Bound:
        """The token that calls of this lease and generation carry. `nonce` is 32 random hex
        digits."""
        child = _child(offer.parent, offer.ceiling, lease_id, generation, offer.not_after_s, nonce)
        token = attenuate(offer.token, child)
        permit = self._authority.verify(token, now_s)
        return Bound(token, permit.grant, permit.chain, float(permit.not_after_s))

    def _mint(
        self, grant: Grant, tenant: str, trajectory: str, from_s: int, until_s: int
    ) -> tuple[str, Block]:
        ring, kid = self._authority.signer()
        block = root_block(grant, tenant, trajectory, kid, from_s, until_s)
        return mint(ring, kid, block), block

    def _cut(self, grant: Grant, ceiling: CeilingFile, within: bool) -> tuple[str, ...]:
        """The components that the ceiling makes smaller. Raises Failure(ceiling_exceeded) for the
        first one unless the caller asked for what is `within` it."""
        bounds = ceiling.grant()
        if within:
            return wider_names(grant, bounds)
        excess = exceeds(grant, bounds)
        if excess is not None:
            raise failure(
                Code.CEILING_EXCEEDED,
                f"{excess.component}: {excess.reason}; the tenant's ceiling is {ceiling.name}",
                rule=excess.component,
                component=excess.component,
            )
        return ()


def _giver(
    permit: Permit, request: LeaseRequest, bound_to: Callable[[Permit], LeaseRecord] | None
) -> LeaseRecord | None:
    """The lease that the capability is bound to; None for an unbound one. Raises
    Failure(lease_not_granted) if no lease of this request can be made of it, and what `bound_to`
    raises."""
    if permit.tenant != request.tenant or not same_or_below(permit.trajectory, request.trajectory):
        raise failure(
            Code.LEASE_NOT_GRANTED,
            "the capability is for another tenant or trajectory",
            rule="trajectory",
        )
    if permit.lease_id is None:
        return None
    giver = None if bound_to is None else bound_to(permit)
    if giver is None or not below(giver.trajectory, request.trajectory):
        raise failure(
            Code.LEASE_NOT_GRANTED,
            "the capability is bound to a lease; only leases of trajectories below that lease's "
            "can be made of it",
            rule="lease",
        )
    return giver


def _child(
    parent: Block,
    ceiling: Grant | None,
    lease_id: str,
    generation: int,
    not_after_s: int,
    nonce: str | None = None,
) -> Block:
    """The block that binds a lease, cut to the ceiling if there is one."""
    child = lease_block(parent, lease_id, generation, not_after_s, nonce)
    if ceiling is None:
        return child
    cut = meet(grant_of(child), ceiling)
    return child.model_copy(update={name: getattr(cut, name) for name in Grant.model_fields})
