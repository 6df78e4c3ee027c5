"""Keys and revocation as the API asks for them: who may do what, and words into values.

Operators work on keys and revoke whatever they name. A tenant's peer revokes what it holds: it
shows the token, and the token's last block is what ends. It can't name the block before, whose
token it does not have.
"""

from __future__ import annotations

from collections.abc import Mapping

from stockade.edge.authority_wire import (
    KeyList,
    KeyView,
    RetireRequest,
    RevocationList,
    RevocationView,
    RevokeRequest,
)
from stockade.edge.exchange import Peer, Role
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.terms.audit import Acting, AuditKind
from stockade.terms.authority import Revocation
from stockade.terms.fault import Code, failure
from stockade.terms.ports import Clock
from stockade.tools.shape import timestamp


class AuthorityService:
    """Implements `edge.service.AuthorityVerbs`. Thread-safe."""

    def __init__(self, authority: Authority, audit: Auditor, clock: Clock) -> None:
        self._authority = authority
        self._audit = audit
        self._clock = clock

    def revoke(self, peer: Peer, request: RevokeRequest) -> RevocationView:
        by, now = f"uid {peer.uid}", self._clock()
        if request.token is not None:
            made = self._authority.revoke_token(request.token, peer.tenant, by, request.reason, now)
        else:
            operator(peer, "revoke by a block's id; give the token")
            made = self._authority.revoke_block(request.block or "", by, request.reason, now)
        detail = {"block": made.block, "reason": made.reason}
        self._note(peer, AuditKind.CAPABILITY_REVOKED, detail)
        return _view(made)

    def revocations(self, peer: Peer) -> RevocationList:
        operator(peer, "list revocations")
        found = [_view(made) for made in self._authority.revocations()]
        return RevocationList(revocations=found)

    def keys(self, peer: Peer) -> KeyList:
        operator(peer, "list keys")
        return self._listed()

    def rotate(self, peer: Peer) -> KeyList:
        operator(peer, "rotate keys")
        self._note(peer, AuditKind.KEY_ROTATED, {"kid": self._authority.rotate()})
        return self._listed()

    def retire(self, peer: Peer, request: RetireRequest) -> KeyList:
        operator(peer, "retire keys")
        self._authority.retire(request.kid, force=request.force)
        detail = {"kid": request.kid, "force": request.force}
        self._note(peer, AuditKind.KEY_RETIRED, detail)
        return self._listed()

    def _note(self, peer: Peer, kind: AuditKind, detail: Mapping[str, object]) -> None:
        self._audit.note(kind, Acting(f"uid {peer.uid}"), tenant=peer.tenant, detail=detail)

    def _listed(self) -> KeyList:
        return KeyList(
            keys=[
                KeyView(kid=use.kid, current=use.current, leases=use.leases)
                for use in self._authority.key_uses()
            ]
        )


def operator(peer: Peer, what: str) -> None:
    """Raises Failure(peer_not_allowed) for everybody else."""
    if peer.role is not Role.OPERATOR:
        raise failure(Code.PEER_NOT_ALLOWED, f"only an operator may {what}", rule="peer.role")


def _view(made: Revocation) -> RevocationView:
    return RevocationView(
        block=made.block,
        revoked_at=timestamp(made.revoked_at_s),
        revoked_by=made.revoked_by,
        reason=made.reason,
        not_after=None if made.not_after_s is None else timestamp(made.not_after_s),
    )
