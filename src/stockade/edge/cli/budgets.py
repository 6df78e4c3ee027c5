"""`approval`, and what is left of a capability's budgets."""

from __future__ import annotations

import json
import re
from typing import Final

import click

from stockade.edge.budget_wire import ApprovalView, SpendReport
from stockade.edge.cli.capability import capability
from stockade.edge.cli.options import capability_option, json_option, socket_option
from stockade.edge.cli.output import emit, emit_all, fields, table
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LEASE_REF_PATTERN

_LEASE: Final = re.compile(LEASE_REF_PATTERN)
_SHOWN_CHARS: Final = 100
_ID = click.argument("approval_id", metavar="ID")
_REASON = click.option(
    "--reason", metavar="TEXT", help="Kept, and told the caller of a denied call."
)


@capability.command()
@click.argument("target", required=False, metavar="[TOKEN|LEASE]")
@capability_option
@json_option
@socket_option
def spend(target: str | None, capability: str | None, as_json: bool, socket: str | None) -> int:
    """What a capability, or the one of a lease, has spent of its budgets and what is left."""
    given = (target or capability or "").strip()
    if not given:
        raise click.UsageError("give a TOKEN or a LEASE, or set STOCKADE_CAPABILITY.")
    with Stockade.connect(socket) as stockade:
        found = (
            stockade.spend(lease=given) if _LEASE.fullmatch(given) else stockade.spend(token=given)
        )
    if as_json:
        emit(found.model_dump_json())
    else:
        table(("BLOCK", "BUDGET", "TOTAL", "SPENT", "LEFT"), _spend_rows(found))
    return 0


@click.group()
def approval() -> None:
    """Calls that wait for a person. Operators only."""


@approval.command(name="list")
@json_option
@socket_option
def list_(as_json: bool, socket: str | None) -> int:
    """Every request of the leases that live, oldest first."""
    with Stockade.connect(socket) as stockade:
        found = stockade.approvals()
    if as_json:
        emit_all(found)
    else:
        table(
            ("APPROVAL", "STATE", "ASKED", "TENANT", "LEASE", "TOOL", "ARGUMENTS"),
            [(*_row(view), _arguments(view)[:_SHOWN_CHARS]) for view in found],
        )
    return 0


@approval.command()
@_ID
@json_option
@socket_option
def show(approval_id: str, as_json: bool, socket: str | None) -> int:
    """One request, with the whole call."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.approval(approval_id), as_json)


@approval.command()
@_ID
@_REASON
@json_option
@socket_option
def grant(approval_id: str, reason: str | None, as_json: bool, socket: str | None) -> int:
    """Let exactly this call start, once."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.decide_approval(approval_id, granted=True, reason=reason), as_json)


@approval.command()
@_ID
@_REASON
@json_option
@socket_option
def deny(approval_id: str, reason: str | None, as_json: bool, socket: str | None) -> int:
    """Refuse this call until its lease ends."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.decide_approval(approval_id, granted=False, reason=reason), as_json)


def _tell(view: ApprovalView, as_json: bool) -> int:
    if as_json:
        emit(view.model_dump_json())
    else:
        values = view.model_dump(mode="json", exclude={"arguments"}).items()
        fields([*values, ("arguments", _arguments(view))])
    return 0


def _row(view: ApprovalView) -> tuple[str, ...]:
    return (view.id, view.state, view.asked_at, view.tenant, view.lease_id, view.tool)


def _arguments(view: ApprovalView) -> str:
    return json.dumps(view.arguments, ensure_ascii=True)


def _spend_rows(found: SpendReport) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        (
            block.block,
            budget.component,
            str(budget.total),
            str(budget.spent),
            str(budget.total - budget.spent),
        )
        for block in found.blocks
        for budget in block.budgets
    ]
    left = ((name, value) for name, value in found.left.model_dump().items())
    rows += [
        ("all", name, "-", "-", "no budget" if value is None else str(value))
        for name, value in left
    ]
    return rows
