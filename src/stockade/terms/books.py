"""The parts of the ledger that calls write to: what they spend, are approved for and claim, and the
secrets of leases. Every method is one durable transaction."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from stockade.terms.approval import ApprovalRecord, ApprovalState
from stockade.terms.audit import AuditEvent
from stockade.terms.claim import ClaimRecord, ClaimState, Settled
from stockade.terms.secret import Secret
from stockade.terms.spend import Amount, Budget, Shortage


class SpendBook(Protocol):
    """Durable sums of what was spent, by block. Every method is one transaction; raises
    Failure(storage_unavailable)."""

    def add(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> Shortage | None:
        """Count `amount` against every budget, or none of it: then the first one, in the order
        given, that does not suffice. The claim's `drawn_ms` grows by it."""

    def take_back(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> None:
        """Undo a part of what `add` counted against the same budgets, and for the same claim."""

    def spent(self, budgets: Sequence[Budget]) -> Sequence[Amount]:
        """The sum of each."""


class ApprovalBook(Protocol):
    """Durable requests for approval. Every method is one transaction; raises
    Failure(storage_unavailable). Requests of a lease that ended are not there."""

    def ask(self, record: ApprovalRecord, at_most: int) -> ApprovalRecord:
        """The request with this id, which is `record` if there was none or it was used up. Raises
        Failure(busy) for a new one when `at_most` of the lease wait already."""

    def get(self, approval_id: str) -> ApprovalRecord | None: ...
    def list(self) -> Sequence[ApprovalRecord]:
        """All of them, oldest first."""

    def decide(
        self, approval_id: str, state: ApprovalState, at_s: float, by: str, reason: str | None
    ) -> ApprovalRecord | None:
        """The request as it is then: a used one is not changed. None when there is none."""

    def use(self, approval_id: str) -> bool:
        """Granted becomes used. False, and nothing, when it was not granted."""

    def give_back(self, approval_id: str) -> None:
        """Used becomes granted: its call did not start."""


class ClaimBook(Protocol):
    """Durable claims, by the call's name. Every method is one transaction; raises
    Failure(storage_unavailable)."""

    def get(self, claim_id: str) -> ClaimRecord | None: ...
    def begin(self, record: ClaimRecord, intent: AuditEvent | None = None) -> None:
        """Power-safe when it returns. Takes the place of a claim that was not executed, and of the
        same call's own. `intent` becomes a record of the audit in the same transaction."""

    def started(self, claim_id: str, sandbox: str, guest_call: str) -> None:
        """Outlives this process, and not the host: after a power cut no sandbox is left that it
        could name."""

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
        """End an unsettled claim; None, and nothing, when there is none. Power-safe unless nothing
        was executed. `outcome` becomes a record of the audit in the same transaction, and the
        result that is stored names it."""

    def put(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> Settled:
        """Write a settled call that had no claim. Power-safe."""

    def note(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> None:
        """Write a finished read some time soon. Never waits for a disk, save every hundredth."""

    def list(
        self, tenant: str | None, lease_id: str | None, states: Sequence[ClaimState], at_most: int
    ) -> Sequence[ClaimRecord]:
        """The newest, oldest first, without results."""

    def chain_of_artifact(self, lease_id: str, artifact_id: str) -> tuple[str, ...] | None:
        """The capability of the lease's call whose result names the artifact."""

    def sweep(self, now_s: float, kept_s: float) -> None:
        """Write what waits, and forget claims of leases that were released `kept_s` ago."""


class SecretBook(Protocol):
    """Durable secrets of leases, which end with their lease. Every method is one transaction;
    raises Failure(storage_unavailable)."""

    def put(self, secret: Secret) -> bool:
        """Add it, or replace the one of its name. False, and nothing, for a lease that is not
        there (any more)."""

    def remove(self, lease_id: str, name: str) -> bool: ...
    def all(self) -> Sequence[Secret]:
        """Those of every lease that is not released, oldest first."""
