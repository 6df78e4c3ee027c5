"""Budgets and approvals in memory: what the ledger's tables must do, in the plainest way."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import replace

from stockade.terms.approval import ApprovalRecord, ApprovalState
from stockade.terms.fault import Code, failure
from stockade.terms.spend import Amount, Budget, Shortage


class FakeSpendBook:
    """Implements `terms.books.SpendBook`. It has no claims."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._sums: dict[str, Amount] = {}

    def add(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> Shortage | None:
        with self._lock:
            for budget in budgets:
                shortage = budget.shortage(self._sum(budget), amount)
                if shortage is not None:
                    return shortage
            for budget in budgets:
                self._sums[budget.block] = _plus(self._sum(budget), budget.counted(amount), 1)
        return None

    def take_back(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> None:
        with self._lock:
            for budget in budgets:
                self._sums[budget.block] = _plus(self._sum(budget), budget.counted(amount), -1)

    def spent(self, budgets: Sequence[Budget]) -> Sequence[Amount]:
        with self._lock:
            return [self._sum(budget) for budget in budgets]

    def _sum(self, budget: Budget) -> Amount:
        return self._sums.get(budget.block, Amount())


def _plus(a: Amount, b: Amount, sign: int) -> Amount:
    return Amount(
        calls=max(0, a.calls + sign * b.calls),
        cost_micro=max(0, a.cost_micro + sign * b.cost_micro),
        cpu_ms=max(0, a.cpu_ms + sign * b.cpu_ms),
        egress_bytes=max(0, a.egress_bytes + sign * b.egress_bytes),
    )


class FakeApprovalBook:
    """Implements `terms.books.ApprovalBook`. `end(lease_id)` is the end of a lease."""

    def __init__(self) -> None:
        self._records: dict[str, ApprovalRecord] = {}

    def ask(self, record: ApprovalRecord, at_most: int) -> ApprovalRecord:
        found = self._records.get(record.id)
        if found is not None and found.state is not ApprovalState.USED:
            return found
        waiting = [r for r in self._records.values() if r.state is ApprovalState.ASKED]
        if sum(r.lease_id == record.lease_id for r in waiting) >= at_most:
            raise failure(Code.BUSY, "too many requests of the lease wait", rule="approve")
        self._records[record.id] = record
        return record

    def get(self, approval_id: str) -> ApprovalRecord | None:
        return self._records.get(approval_id)

    def list(self) -> Sequence[ApprovalRecord]:
        return sorted(self._records.values(), key=lambda r: (r.asked_at_s, r.id))

    def decide(
        self, approval_id: str, state: ApprovalState, at_s: float, by: str, reason: str | None
    ) -> ApprovalRecord | None:
        found = self._records.get(approval_id)
        if found is not None and found.state is not ApprovalState.USED:
            self._records[approval_id] = replace(
                found, state=state, decided_at_s=at_s, decided_by=by, reason=reason
            )
        return self._records.get(approval_id)

    def use(self, approval_id: str) -> bool:
        return self._move(approval_id, ApprovalState.GRANTED, ApprovalState.USED)

    def give_back(self, approval_id: str) -> None:
        self._move(approval_id, ApprovalState.USED, ApprovalState.GRANTED)

    def end(self, lease_id: str) -> None:
        ended = [r.id for r in self._records.values() if r.lease_id == lease_id]
        for approval_id in ended:
            del self._records[approval_id]

    def _move(self, approval_id: str, old: ApprovalState, new: ApprovalState) -> bool:
        found = self._records.get(approval_id)
        if found is None or found.state is not old:
            return False
        self._records[approval_id] = replace(found, state=new)
        return True
