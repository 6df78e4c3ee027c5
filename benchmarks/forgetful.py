"""`stockade serve` that keeps no claims: what they cost is the difference to one that does."""

from __future__ import annotations

from collections.abc import Sequence

from stockade import command
from stockade import runtime as composition
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import AuditEvent
from stockade.terms.claim import ClaimRecord, ClaimState, Settled


class NoClaims:
    """Implements `terms.ports.ClaimBook` without a book."""

    def __init__(self, ledger: SqliteLedger, audit: AuditTable) -> None:
        pass

    def get(self, claim_id: str) -> ClaimRecord | None:
        return None

    def begin(self, record: ClaimRecord, intent: AuditEvent | None = None) -> None:
        pass

    def started(self, claim_id: str, sandbox: str, guest_call: str) -> None:
        pass

    def settle(
        self,
        claim_id: str,
        state: ClaimState,
        *,
        at_s: float,
        by: str,
        result: str | None,
        reason: str | None = None,
        outcome: AuditEvent | None = None,
    ) -> Settled | None:
        return Settled(None)

    def put(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> Settled:
        return Settled(None)

    def note(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> None:
        pass

    def list(
        self, tenant: str | None, lease_id: str | None, states: Sequence[ClaimState], at_most: int
    ) -> Sequence[ClaimRecord]:
        return ()

    def sweep(self, now_s: float, kept_s: float) -> None:
        pass


if __name__ == "__main__":
    setattr(composition, "ClaimTable", NoClaims)  # noqa: B010 - it is no part of its surface
    command.main()
