"""Budgets and approvals as the API asks for them: who may see and decide what.

Whoever holds a token may see what is left of it; of a lease, whoever may see the lease. Only
operators see and decide requests for approval: the one who asks is not the one who answers.
"""

from __future__ import annotations

import json

from stockade.edge.budget_wire import (
    ApprovalDecision,
    ApprovalList,
    ApprovalView,
    BlockSpend,
    BudgetView,
    Left,
    SpendReport,
)
from stockade.edge.service import Context
from stockade.flow.approvals import Approvals
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.holding import not_granted
from stockade.flow.leases import Leases
from stockade.flow.spending import Spending
from stockade.terms.approval import ApprovalRecord
from stockade.terms.audit import AuditKind
from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Code, failure
from stockade.terms.ports import Clock
from stockade.terms.spend import COMPONENTS
from stockade.tools.shape import timestamp


class BudgetService:
    """Implements `edge.service.BudgetVerbs`. Thread-safe."""

    def __init__(
        self,
        spending: Spending,
        approvals: Approvals,
        authority: Authority,
        leases: Leases,
        audit: Auditor,
        clock: Clock,
    ) -> None:
        self._spending = spending
        self._approvals = approvals
        self._authority = authority
        self._leases = leases
        self._audit = audit
        self._clock = clock

    def spend(self, context: Context, lease: str | None) -> SpendReport:
        tenant, token = context.peer.tenant, context.token
        if lease is not None:
            token = self._leases.own_token(self._leases.show(tenant, lease))
        if token is None:
            raise failure(Code.TOKEN_MISSING, "send a capability, or name a lease")
        permit = self._authority.verify(token, self._clock())
        if tenant not in (None, permit.tenant):
            raise not_granted()
        left: dict[str, int | None] = dict.fromkeys(COMPONENTS)
        blocks: list[BlockSpend] = []
        for budget, spent in self._spending.left(permit):
            views: list[BudgetView] = []
            for name in COMPONENTS:
                total, have = int(getattr(budget.total, name)), int(getattr(spent, name))
                if total < MAX_INTEGER:
                    views.append(BudgetView(component=name, total=total, spent=have))
                    least = left[name]
                    left[name] = total - have if least is None else min(least, total - have)
            blocks.append(
                BlockSpend(block=budget.block, not_after_s=budget.not_after_s, budgets=views)
            )
        return SpendReport(left=Left(**left), blocks=blocks)

    def approvals(self, context: Context) -> ApprovalList:
        context.operators_only("list requests for approval")
        return ApprovalList(approvals=[_view(record) for record in self._approvals.list()])

    def approval(self, context: Context, approval_id: str) -> ApprovalView:
        context.operators_only("see a request for approval")
        return _view(self._approvals.show(approval_id))

    def decide(
        self, context: Context, approval_id: str, request: ApprovalDecision, *, granted: bool
    ) -> ApprovalView:
        context.operators_only("decide a request for approval")
        made = self._approvals.decide(
            approval_id, granted=granted, by=context.by, reason=request.reason
        )
        self._audit.note(
            AuditKind.APPROVAL_GRANTED if granted else AuditKind.APPROVAL_DENIED,
            context.who,
            tenant=made.tenant,
            lease_id=made.lease_id,
            tool=made.tool,
            detail={"approval": made.id, "reason": made.reason or ""},
        )
        return _view(made)


def _view(record: ApprovalRecord) -> ApprovalView:
    return ApprovalView(
        id=record.id,
        tenant=record.tenant,
        lease_id=record.lease_id,
        tool=record.tool,
        arguments=json.loads(record.arguments),
        state=record.state,
        asked_at=timestamp(record.asked_at_s),
        decided_at=None if record.decided_at_s is None else timestamp(record.decided_at_s),
        decided_by=record.decided_by,
        reason=record.reason,
    )
