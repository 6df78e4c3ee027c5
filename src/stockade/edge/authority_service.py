"""Minting, keys and revocation as the API asks for them: who may do what, and words into values.

Operators mint, work on keys and revoke whatever they name. A tenant's peer revokes what it holds: it
shows the token, and the token's last block is what ends. It can't name the block before, whose
token it does not have.
"""

from __future__ import annotations

from stockade.edge.authority_wire import (
    KeyList,
    KeyView,
    MintReply,
    MintRequest,
    RetireRequest,
    RevocationList,
    RevocationView,
    RevokeRequest,
)
from stockade.edge.service import Context
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.minting import Minter
from stockade.terms.audit import AuditKind, Detail
from stockade.terms.authority import Revocation
from stockade.terms.ports import Clock
from stockade.tools.shape import timestamp


class AuthorityService:
    """Implements `edge.service.AuthorityVerbs`. Thread-safe."""

    def __init__(self, authority: Authority, minter: Minter, audit: Auditor, clock: Clock) -> None:
        self._authority = authority
        self._minter = minter
        self._audit = audit
        self._clock = clock

    def mint(self, context: Context, request: MintRequest) -> MintReply:
        context.operators_only("mint capabilities")
        now = self._clock()
        made = self._minter.root(
            request.tenant,
            request.trajectory,
            request.grant,
            request.ttl_s,
            now,
            within_ceiling=request.within_ceiling,
        )
        self._audit.note(
            AuditKind.CAPABILITY_MINTED,
            context.who,
            tenant=request.tenant,
            trajectory=request.trajectory,
            chain=self._authority.verify(made.token, now).chain,
            detail={"grant": request.grant, "ttl_s": request.ttl_s, "cut": list(made.cut)},
        )
        return MintReply(token=made.token, cut=list(made.cut))

    def revoke(self, context: Context, request: RevokeRequest) -> RevocationView:
        by, now = context.by, self._clock()
        if request.token is not None:
            made = self._authority.revoke_token(
                request.token, context.peer.tenant, by, request.reason, now
            )
        else:
            context.operators_only("revoke by a block's id; give the token")
            made = self._authority.revoke_block(request.block or "", by, request.reason, now)
        detail = {"block": made.block, "reason": made.reason}
        self._note(context, AuditKind.CAPABILITY_REVOKED, detail)
        return _view(made)

    def revocations(self, context: Context) -> RevocationList:
        context.operators_only("list revocations")
        found = [_view(made) for made in self._authority.revocations()]
        return RevocationList(revocations=found)

    def keys(self, context: Context) -> KeyList:
        context.operators_only("list keys")
        return self._listed()

    def rotate(self, context: Context) -> KeyList:
        context.operators_only("rotate keys")
        self._note(context, AuditKind.KEY_ROTATED, {"kid": self._authority.rotate()})
        return self._listed()

    def retire(self, context: Context, request: RetireRequest) -> KeyList:
        context.operators_only("retire keys")
        self._authority.retire(request.kid, force=request.force)
        detail: Detail = {"kid": request.kid, "force": request.force}
        self._note(context, AuditKind.KEY_RETIRED, detail)
        return self._listed()

    def _note(self, context: Context, kind: AuditKind, detail: Detail) -> None:
        self._audit.note(kind, context.who, tenant=context.peer.tenant, detail=detail)

    def _listed(self) -> KeyList:
        return KeyList(
            keys=[
                KeyView(kid=use.kid, current=use.current, leases=use.leases)
                for use in self._authority.key_uses()
            ]
        )


def _view(made: Revocation) -> RevocationView:
    return RevocationView(
        block=made.block,
        revoked_at=timestamp(made.revoked_at_s),
        revoked_by=made.revoked_by,
        reason=made.reason,
        not_after=None if made.not_after_s is None else timestamp(made.not_after_s),
    )
