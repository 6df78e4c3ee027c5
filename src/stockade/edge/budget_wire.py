"""The JSON bodies of `/v1` about budgets and approvals, shared by server and client."""

from __future__ import annotations

from pydantic import JsonValue

from stockade.edge.authority_wire import Reason
from stockade.edge.wire import LeaseRef
from stockade.terms.approval import ApprovalState
from stockade.terms.base import Model


class SpendQuery(Model):
    """Whose budgets are asked for: this lease's; null: those of the capability that is sent."""

    lease: LeaseRef | None = None


class Left(Model):
    """What every block of a chain leaves of each component of `total`; null: no budget. What
    running commands have drawn ahead counts as spent."""

    calls: int | None
    cost_micro: int | None
    cpu_ms: int | None
    egress_bytes: int | None


class BudgetView(Model):
    """One component of one block's `total`."""

    component: str
    total: int
    spent: int


class BlockSpend(Model):
    """A block that has budgets. `not_after_s` is its end, in seconds since the epoch."""

    block: str
    not_after_s: int
    budgets: list[BudgetView]


class SpendReport(Model):
    """Root first; blocks without a budget are left out."""

    left: Left
    blocks: list[BlockSpend]


class ApprovalView(Model):
    """A call that a person is asked about. `arguments` have their defaults filled in. Times are
    RFC 3339 UTC."""

    id: str
    tenant: str
    lease_id: str
    tool: str
    arguments: dict[str, JsonValue]
    state: ApprovalState
    asked_at: str
    decided_at: str | None
    decided_by: str | None
    reason: str | None


class ApprovalList(Model):
    approvals: list[ApprovalView]


class ApprovalDecision(Model):
    """`reason` is shown to the caller of a denied call."""

    reason: Reason | None = None
