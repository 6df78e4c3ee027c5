"""`capability`: minting through the daemon, narrowing and looking without it."""

from __future__ import annotations

import json
import time

import click

from stockade.decide.blocks import block_bytes, narrow
from stockade.decide.objects import parse_connect_sugar
from stockade.decide.tokens import attenuate as append_block
from stockade.decide.tokens import inspect as read_token
from stockade.edge.cli.options import capability_option, socket_option
from stockade.edge.cli.output import emit
from stockade.edge.client.sdk import Stockade
from stockade.terms.grant import Block, Profile

_NUMBER = click.IntRange(min=0)
# Components that a holder may lower, as options: name in the block -> the group it is in.
_PER_CALL = ("wall_ms", "output_bytes")
_PER_LEASE = (
    "memory_bytes", "cpu_millis", "pids", "disk_bytes", "inodes", "sandboxes", "parallel",
)  # fmt: skip


@click.group()
def capability() -> None:
    """Signed grants: what a call may do."""


@capability.command()
@click.option("--tenant", required=True, metavar="T")
@click.option("--trajectory", required=True, metavar="X")
@click.option("--grant", default="agent", show_default=True, metavar="NAME", help="A grant file.")
@click.option("--ttl-s", type=click.IntRange(min=1), default=3600, show_default=True)
@socket_option
def mint(tenant: str, trajectory: str, grant: str, ttl_s: int, socket: str | None) -> int:
    """Print a new capability. Operators only."""
    with Stockade.connect(socket) as stockade:
        emit(stockade.mint(tenant, trajectory, grant, ttl_s))
    return 0


@capability.command()
@capability_option
@click.option("--read", multiple=True, metavar="PATH", help="Replaces what may be read.")
@click.option("--write", multiple=True, metavar="PATH", help="Replaces what may be written.")
@click.option("--execute", multiple=True, metavar="PATH", help="Replaces where programs may be.")
@click.option("--connect", multiple=True, metavar="HOST:PORT", help="Replaces the destinations.")
@click.option("--drop", multiple=True, type=click.Choice(("write", "execute", "connect")))
@click.option("--deny", multiple=True, metavar="PATH", help="Never writable; adds to the others.")
@click.option("--tool", multiple=True, metavar="NAME", help="Replaces the granted tools.")
@click.option("--profile", type=click.Choice([profile.value for profile in Profile]))
@click.option("--wall-ms", type=_NUMBER)
@click.option("--output-bytes", type=_NUMBER)
@click.option("--memory-bytes", type=_NUMBER)
@click.option("--cpu-millis", type=_NUMBER)
@click.option("--pids", type=_NUMBER)
@click.option("--disk-bytes", type=_NUMBER)
@click.option("--inodes", type=_NUMBER)
@click.option("--sandboxes", type=_NUMBER)
@click.option("--parallel", type=_NUMBER)
@click.option("--depth", type=_NUMBER, help="How often it may be narrowed again.")
@click.option("--ttl-s", type=click.IntRange(min=1), help="Ends this many seconds from now.")
def attenuate(
    capability: str | None,
    read: tuple[str, ...],
    write: tuple[str, ...],
    execute: tuple[str, ...],
    connect: tuple[str, ...],
    drop: tuple[str, ...],
    deny: tuple[str, ...],
    tool: tuple[str, ...],
    profile: str | None,
    depth: int | None,
    ttl_s: int | None,
    **limits: int | None,
) -> int:
    """Print a narrower capability. Needs no daemon and no key; what is not given stays. Anything
    wider is refused, and the component named."""
    token = _token(capability)
    parent = read_token(token).blocks[-1]
    scope = parent.scope.model_copy(
        update={
            **{
                name: paths
                for name, paths in (("read", read), ("write", write), ("execute", execute))
                if paths
            },
            **({"connect": tuple(_destination(text) for text in connect)} if connect else {}),
            **dict.fromkeys(drop, ()),
        }
    )
    child = narrow(
        parent,
        scope=scope,
        deny=parent.deny + deny,
        tools=tool or None,
        system=None
        if profile is None
        else parent.system.model_copy(update={"profile": Profile(profile)}),
        per_call=parent.per_call.model_copy(update=_given(limits, _PER_CALL)),
        per_lease=parent.per_lease.model_copy(update=_given(limits, _PER_LEASE)),
        depth=depth,
        not_after_s=None if ttl_s is None else int(time.time()) + ttl_s,
    )
    emit(append_block(token, child))
    return 0


@capability.command()
@capability_option
@click.argument("token", required=False)
def inspect(capability: str | None, token: str | None) -> int:
    """Print what a capability says, as JSON. Nothing is verified."""
    found = read_token(_token(token or capability))
    value = {"last_id": found.last_id, "blocks": [_block(block) for block in found.blocks]}
    emit(json.dumps(value, indent=2, ensure_ascii=True))
    return 0


def _block(block: Block) -> object:
    return json.loads(block_bytes(block))


def _token(token: str | None) -> str:
    if token is None:
        raise click.UsageError("give --capability, or set STOCKADE_CAPABILITY.")
    return token.strip()


def _given(limits: dict[str, int | None], names: tuple[str, ...]) -> dict[str, int]:
    return {name: value for name in names if (value := limits[name]) is not None}


def _destination(text: str) -> object:
    try:
        return parse_connect_sugar(text)
    except ValueError as error:
        raise click.UsageError(f"--connect {text!r}: {error}") from error
