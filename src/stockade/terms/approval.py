"""A request for a person's approval of one exact call, as the ledger keeps it."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum


class ApprovalState(StrEnum):
    """`used` is a granted one whose call has started; the same call asks again after that."""

    ASKED = "asked"
    GRANTED = "granted"
    DENIED = "denied"
    USED = "used"


@dataclass(frozen=True, slots=True)
class ApprovalRecord:
    """`id` names (tenant, lease, tool, arguments); `arguments` is their canonical JSON, defaults
    filled in. Times are seconds since the epoch. `decided_by` is the operator, as `uid:N`."""

    id: str
    tenant: str
    lease_id: str
    tool: str
    arguments: str
    state: ApprovalState
    asked_at_s: float
    decided_at_s: float | None = None
    decided_by: str | None = None
    reason: str | None = None
