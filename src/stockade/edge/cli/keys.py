"""`key`, and the commands of `capability` that end one: what the daemon's authority rests on."""

from __future__ import annotations

import re
from typing import Final

import click

from stockade.edge.authority_wire import KeyList, RevokeRequest
from stockade.edge.bodies import check
from stockade.edge.cli.capability import capability
from stockade.edge.cli.options import json_option, socket_option
from stockade.edge.cli.output import emit, emit_all, table
from stockade.edge.client.sdk import Stockade

_BLOCK: Final = re.compile(r"[0-9a-f]{32}")


@capability.command()
@click.argument("revoked", metavar="TOKEN|ID")
@click.option("--reason", default="", metavar="TEXT", help="For the list of revocations.")
@json_option
@socket_option
def revoke(revoked: str, reason: str, as_json: bool, socket: str | None) -> int:
    """End a capability and everything that was narrowed from it. A token means its last block;
    only an operator may name a block by its id."""
    given = revoked.strip()
    named = "block" if _BLOCK.fullmatch(given) else "token"
    request = check(RevokeRequest, {named: given, "reason": reason})
    with Stockade.connect(socket) as stockade:
        made = stockade.revoke(token=request.token, block=request.block, reason=request.reason)
    emit(made.model_dump_json() if as_json else f"{made.block}: revoked at {made.revoked_at}")
    return 0


@capability.command()
@json_option
@socket_option
def revocations(as_json: bool, socket: str | None) -> int:
    """Every block that is revoked. Operators only."""
    with Stockade.connect(socket) as stockade:
        found = stockade.revocations()
    if as_json:
        emit_all(found)
    else:
        table(
            ("BLOCK", "REVOKED", "BY", "ENDS", "REASON"),
            [
                (made.block, made.revoked_at, made.revoked_by, made.not_after or "-", made.reason)
                for made in found
            ],
        )
    return 0


@click.group()
def key() -> None:
    """The keys that tokens are signed with. Operators only."""


@key.command(name="list")
@json_option
@socket_option
def list_(as_json: bool, socket: str | None) -> int:
    """Every key, oldest first, with the living leases whose token it signed."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.keys(), as_json)


@key.command()
@json_option
@socket_option
def rotate(as_json: bool, socket: str | None) -> int:
    """Add a new random key and sign with it from now on. Tokens of older keys stay valid."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.rotate_key(), as_json)


@key.command()
@click.argument("kid")
@click.option("--force", is_flag=True, help="Also while leases live under it: their tokens end.")
@json_option
@socket_option
def retire(kid: str, force: bool, as_json: bool, socket: str | None) -> int:
    """Remove an older key: its tokens are refused from the next call on."""
    with Stockade.connect(socket) as stockade:
        return _tell(stockade.retire_key(kid, force=force), as_json)


def _tell(found: KeyList, as_json: bool) -> int:
    if as_json:
        emit(found.model_dump_json())
    else:
        table(
            ("KEY", "", "LEASES"),
            [(key.kid, "current" if key.current else "", str(key.leases)) for key in found.keys],
        )
    return 0
