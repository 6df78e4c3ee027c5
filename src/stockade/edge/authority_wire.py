"""The JSON bodies of `/v1` about minting, keys and revocation, shared by server and client."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field, StringConstraints, model_validator

from stockade.edge.wire import Seconds
from stockade.terms.authority import MAX_KEYS
from stockade.terms.base import Model
from stockade.terms.ids import Name, Tenant, Trajectory

MAX_REASON_CHARS = 256

BlockId = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")]
Reason = Annotated[
    str, StringConstraints(pattern=r"^[^\x00-\x1f\x7f]*$", max_length=MAX_REASON_CHARS)
]


class MintRequest(Model):
    """A root capability from a grant file. Operators only. `within_ceiling` asks for what the
    tenant's ceiling leaves of it, instead of a refusal where the grant is wider."""

    tenant: Tenant
    trajectory: Trajectory
    grant: Name
    ttl_s: Seconds
    within_ceiling: bool = False


class MintReply(Model):
    """`cut` are the components that the ceiling made smaller."""

    token: str
    cut: list[str]


class RevokeRequest(Model):
    """Exactly one of `token`, whose last block is revoked, and `block`, a block's id. Everything
    that was narrowed from the block goes with it. Only an operator may name an id: a holder proves
    what it holds by its token."""

    token: str | None = None
    block: BlockId | None = None
    reason: Reason = ""

    @model_validator(mode="after")
    def _one(self) -> RevokeRequest:
        if (self.token is None) == (self.block is None):
            raise ValueError("give exactly one of token and block")
        return self


class RevocationView(Model):
    """`not_after` is the end of the block's own life, after which the row may be forgotten; null
    where only its id was known. Times are RFC 3339 UTC."""

    block: str
    revoked_at: str
    revoked_by: str
    reason: str
    not_after: str | None


class RevocationList(Model):
    revocations: list[RevocationView]


class KeyView(Model):
    """`leases` are those that live and whose token is signed with the key. Never the secret."""

    kid: str
    current: bool
    leases: int


class KeyList(Model):
    """Oldest first; the last one is current."""

    keys: Annotated[list[KeyView], Field(max_length=MAX_KEYS)]


class RetireRequest(Model):
    """`force` retires a key also while leases live under it: their tokens end."""

    kid: Name
    force: bool = False
