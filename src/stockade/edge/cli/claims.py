"""`calls`: what was called, what became of it, and settling what nobody knows."""

from __future__ import annotations

import click

from stockade.edge.claim_wire import CallView, SettleAs
from stockade.edge.cli.options import capability_option, json_option, socket_option
from stockade.edge.cli.output import emit, emit_all, table
from stockade.edge.client.sdk import Stockade

_ID = click.argument("call", metavar="ID")


@click.group()
def calls() -> None:
    """Calls that were made. ID is that of `calls list`."""


@calls.command(name="list")
@click.option("--in-doubt", is_flag=True, help="Only those that have to be settled.")
@click.option("--lease", metavar="LEASE", help="Only those of this lease.")
@json_option
@socket_option
def list_(in_doubt: bool, lease: str | None, as_json: bool, socket: str | None) -> int:
    """The newest thousand, oldest first."""
    with Stockade.connect(socket) as stockade:
        found = stockade.calls(lease=lease, in_doubt=in_doubt)
    if as_json:
        emit_all(found)
    else:
        columns = ("ID", "STATE", "CREATED", "TENANT", "TRAJECTORY", "TURN", "CALL", "TOOL", "WHY")
        table(columns, [_row(view) for view in found])
    return 0


@calls.command()
@_ID
@capability_option
@socket_option
def show(call: str, capability: str | None, socket: str | None) -> int:
    """All that is kept of one call, as JSON. Who is no operator shows the capability that it ran
    under."""
    with Stockade.connect(socket) as stockade:
        emit(stockade.call_record(call, capability).model_dump_json(by_alias=True))
    return 0


@calls.command()
@_ID
@click.option(
    "--as",
    "settle_as",
    type=click.Choice([each.value for each in SettleAs]),
    required=True,
    help="What you found: it had its effect, or it had none.",
)
@click.option("--reason", metavar="TEXT", required=True, help="How you know. Kept.")
@socket_option
def settle(call: str, settle_as: str, reason: str, socket: str | None) -> int:
    """Settle a call in doubt. Its repeat is then answered with a result that says so, or runs."""
    with Stockade.connect(socket) as stockade:
        settled = stockade.settle_call(call, SettleAs(settle_as), reason)
    emit(settled.model_dump_json(by_alias=True))
    return 0


def _row(view: CallView) -> tuple[str, ...]:
    ref = view.call
    return (
        view.id,
        view.state,
        view.created_at,
        view.tenant,
        ref.trajectory_id or "-",
        "-" if ref.turn is None else str(ref.turn),
        ref.call_id or "-",
        ref.tool or "-",
        view.reason or "",
    )
