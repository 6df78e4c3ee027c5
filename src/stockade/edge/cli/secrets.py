"""`lease secret`: values that commands get and no result shows.

A value comes through a descriptor. On the command line every user of the host could read it, in
the environment every child process could.
"""

from __future__ import annotations

import os
from typing import Final

import click

from stockade.edge.cli.options import capability_option, json_option, lease_argument, socket_option
from stockade.edge.cli.output import emit, emit_all, table
from stockade.edge.client.sdk import Stockade
from stockade.edge.secret_wire import SecretView
from stockade.terms.secret import MAX_SECRET_BYTES

_NAME = click.argument("name")
_BLOCK: Final = 64 * 1024


@click.group()
def secret() -> None:
    """Values that a lease's commands get as variables and that no result shows."""


@secret.command()
@lease_argument
@_NAME
@click.option(
    "--from-fd",
    type=click.IntRange(min=0),
    required=True,
    metavar="N",
    help="Read the value from this descriptor to its end; one newline at the end is dropped.",
)
@click.option("--redact-only", is_flag=True, help="Hide it, and give it to no command.")
@capability_option
@json_option
@socket_option
def add(
    lease_ref: str,
    name: str,
    from_fd: int,
    redact_only: bool,
    capability: str | None,
    as_json: bool,
    socket: str | None,
) -> int:
    """Register a secret, or replace the one of that name: stockade lease secret add LEASE TOKEN
    --from-fd 3 3<file."""
    value = _read(from_fd)
    with Stockade.connect(socket) as stockade:
        held = stockade.attach(lease_ref, capability)
        made = held.add_secret(name, value, redact_only=redact_only)
    emit(made.model_dump_json() if as_json else f"{made.name}: {_use(made)}")
    return 0


@secret.command(name="list")
@lease_argument
@capability_option
@json_option
@socket_option
def list_(lease_ref: str, capability: str | None, as_json: bool, socket: str | None) -> int:
    """The names of a lease's secrets; never a value."""
    with Stockade.connect(socket) as stockade:
        found = stockade.attach(lease_ref, capability).secrets()
    if as_json:
        emit_all(found)
    else:
        rows = [(each.name, _use(each), each.added_at) for each in found]
        table(("NAME", "USE", "ADDED"), rows)
    return 0


@secret.command()
@lease_argument
@_NAME
@capability_option
@socket_option
def remove(lease_ref: str, name: str, capability: str | None, socket: str | None) -> int:
    """Forget a secret: later commands don't get it, and results show it."""
    with Stockade.connect(socket) as stockade:
        stockade.attach(lease_ref, capability).remove_secret(name)
    emit(f"{name}: removed")
    return 0


def _read(fd: int) -> bytes:
    """Everything from `fd`, as far as a secret may go and one byte, so that more is refused."""
    value = b""
    try:
        while len(value) <= MAX_SECRET_BYTES and (block := os.read(fd, _BLOCK)):
            value += block
    except OSError as error:
        raise click.UsageError(f"--from-fd {fd}: {error.strerror}.") from error
    if len(value) > MAX_SECRET_BYTES:
        raise click.UsageError(f"a secret has at most {MAX_SECRET_BYTES} bytes.")
    return value.removesuffix(b"\n")


def _use(view: SecretView) -> str:
    return "hidden only" if view.redact_only else "variable of commands, hidden"
