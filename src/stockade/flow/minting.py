"""Where a lease's authority comes from, and the token that says so.

A lease is made either of a grant that the operator's policy names, for which a root token is minted
here, or of a capability that the caller holds. Either way the authority has to be within the
tenant's ceiling; a wider one is refused and the component named, never cut to size silently. What
the lease's calls carry is that token with one more block, which binds lease id and generation.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Final

from stockade.decide.attenuation import exceeds
from stockade.decide.blocks import grant_of, lease_block, root_block
from stockade.decide.grant_file import CeilingFile
from stockade.decide.tokens import KeyRing, attenuate, inspect, mint, verify
from stockade.flow.lease_request import LeaseRequest
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Block, Grant

DEFAULT_GRANT: Final = "agent"


@dataclass(frozen=True, slots=True)
class Offer:
    """What a lease can be made of: a token and its last block. `grant` is what the lease will be
    granted; `chain` the ids of the caller's capability, None for a grant of the policy."""

    token: str
    parent: Block
    grant: Grant
    chain: tuple[str, ...] | None
    not_after_s: int


@dataclass(frozen=True, slots=True)
class Bound:
    """The authority of one generation of one lease. `not_after_s` is the end of every renewal."""

    token: str
    grant: Grant
    chain: tuple[str, ...]
    not_after_s: float


class Minter:
    """Thread-safe. Nothing is kept between calls."""

    def __init__(
        self,
        ring: KeyRing,
        kid: str,
        *,
        grant_named: Callable[[str], Grant],
        ceiling_for: Callable[[str], CeilingFile],
    ) -> None:
        """`kid` signs new tokens. `grant_named` raises Failure(invalid_argument) for a name that
        the policy doesn't have; `ceiling_for` takes a tenant."""
        self._ring = ring
        self._kid = kid
        self._grant_named = grant_named
        self._ceiling_for = ceiling_for

    def offer(self, request: LeaseRequest, now_s: float) -> Offer:
        """Raises Failure: invalid_argument, ceiling_exceeded, lease_not_granted, token codes."""
        if request.grant is not None and request.capability is not None:
            raise failure(
                Code.INVALID_ARGUMENT,
                "give a grant or a capability, not both",
                argument="grant",
            )
        ceiling = self._ceiling_for(request.tenant)
        latest = int(now_s) + ceiling.max_ttl_s.value
        if request.capability is None:
            grant = self._grant_named(request.grant or DEFAULT_GRANT)
            self._check_ceiling(grant, ceiling)
            parent = root_block(
                grant, request.tenant, request.trajectory, self._kid, int(now_s), latest
            )
            token, chain = mint(self._ring, self._kid, parent), None
        else:
            token = request.capability
            permit = verify(token, self._ring, now_s)
            if (permit.tenant, permit.trajectory) != (request.tenant, request.trajectory):
                raise failure(
                    Code.LEASE_NOT_GRANTED,
                    "the capability is for another tenant or trajectory",
                    rule="trajectory",
                )
            if permit.lease_id is not None:
                raise failure(
                    Code.LEASE_NOT_GRANTED,
                    "the capability is bound to a lease; no other lease can be made of it",
                    rule="lease",
                )
            self._check_ceiling(permit.grant, ceiling)
            parent, chain = inspect(token).blocks[-1], permit.chain
            latest = min(latest, permit.not_after_s)
        # The id and generation don't matter here: what a lease is granted is the same for all.
        bound = grant_of(lease_block(parent, "ls_0000000000000000", 1, latest))
        return Offer(token, parent, bound, chain, latest)

    def bind(self, offer: Offer, lease_id: str, generation: int, now_s: float) -> Bound:
        """The token that calls of this lease and generation carry."""
        child = lease_block(offer.parent, lease_id, generation, offer.not_after_s)
        token = attenuate(offer.token, child)
        permit = verify(token, self._ring, now_s)
        return Bound(token, permit.grant, permit.chain, float(permit.not_after_s))

    def _check_ceiling(self, grant: Grant, ceiling: CeilingFile) -> None:
        excess = exceeds(grant, ceiling.grant())
        if excess is not None:
            raise failure(
                Code.CEILING_EXCEEDED,
                f"{excess.component}: {excess.reason}; the tenant's ceiling is {ceiling.name}",
                rule=excess.component,
                component=excess.component,
            )
