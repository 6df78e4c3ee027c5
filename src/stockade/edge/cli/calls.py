"""`call` and `artifact`: what programs and scripts use."""

from __future__ import annotations

import secrets
import sys

import click

from stockade.decide.canonical import parse_strict
from stockade.edge.bodies import check
from stockade.edge.cli.exits import call_exit
from stockade.edge.cli.interrupt import end_call, interruptible
from stockade.edge.cli.options import capability_option, lease_option, socket_option
from stockade.edge.cli.output import emit, say
from stockade.edge.client.lease import READS, Lease
from stockade.edge.client.sdk import Stockade
from stockade.edge.exchange import MAX_BODY_BYTES
from stockade.edge.wire import CallRequest, CancelReply
from stockade.terms.fault import Code, failure
from stockade.terms.ports import MAX_ARTIFACT_READ


@click.command()
@click.argument("tool")
@click.argument("arguments", metavar="JSON", required=False)
@lease_option
@click.option("--turn", type=click.IntRange(min=0), help="The turn of the trajectory.")
@click.option("--call-id", metavar="ID", help="The call's id within its turn.")
@capability_option
@socket_option
def call(
    tool: str,
    arguments: str | None,
    lease: str,
    turn: int | None,
    call_id: str | None,
    capability: str | None,
    socket: str | None,
) -> int:
    """Call TOOL with its arguments as a JSON object ("-" reads it from standard input), and print
    the result. `call cancel --call-id ID` ends a running call instead."""
    with Stockade.connect(socket) as stockade:
        held = stockade.attach(lease, capability)
        if tool == "cancel":
            return _cancel(held, arguments, turn, call_id)
        if arguments is None:
            raise click.UsageError("Missing argument 'JSON'.")
        # With an id of our own, Ctrl-C can name the call.
        given_id = call_id or f"cli-{secrets.token_hex(8)}"
        request = check(
            CallRequest,
            {
                "tool": tool,
                "arguments": _object(arguments),
                "lease": lease,
                "turn": turn,
                "call_id": given_id,
            },
        )
        if call_id is None and tool not in READS:
            say(f"without --call-id a repetition runs again; this call's id is {given_id}")
        result = interruptible(
            lambda: held.call(
                request.tool,
                request.arguments,
                turn=turn,
                call_id=given_id,
            ),
            lambda: end_call(held, given_id, turn),
        )
        emit(result.to_json())
        return call_exit(result.status)


@click.group()
def artifact() -> None:
    """Output that was too long for a result."""


@artifact.command()
@click.argument("artifact_id", metavar="ID")
@lease_option
@click.option("--offset", type=click.IntRange(min=0), default=0, help="First byte.")
@click.option("--length", type=click.IntRange(min=1), help="Bytes. Default: to the end.")
@capability_option
@socket_option
def get(
    artifact_id: str,
    lease: str,
    offset: int,
    length: int | None,
    capability: str | None,
    socket: str | None,
) -> int:
    """Write an artifact's bytes to standard output."""
    with Stockade.connect(socket) as stockade:
        held = stockade.attach(lease, capability)
        left = length
        while left is None or left > 0:
            wanted = MAX_ARTIFACT_READ if left is None else min(left, MAX_ARTIFACT_READ)
            data = held.artifact(artifact_id, offset, wanted)
            sys.stdout.buffer.write(data)
            offset += len(data)
            left = None if left is None else left - len(data)
            if not data:  # a short piece is no end: it ends where something was not kept
                break
        sys.stdout.buffer.flush()
    return 0


def _cancel(lease: Lease, arguments: str | None, turn: int | None, call_id: str | None) -> int:
    if arguments is not None or call_id is None:
        raise click.UsageError("call cancel needs --call-id, and no JSON.")
    found = lease.cancel(call_id, turn)
    emit(CancelReply(cancelled=found).model_dump_json())
    return 0 if found else 1


def _object(text: str) -> object:
    data = (
        sys.stdin.buffer.read(MAX_BODY_BYTES + 1)
        if text == "-"
        else text.encode(errors="surrogateescape")
    )
    value = parse_strict(data, MAX_BODY_BYTES)
    if not isinstance(value, dict):
        raise failure(Code.INVALID_ARGUMENT, "the arguments are not a JSON object")
    return value
