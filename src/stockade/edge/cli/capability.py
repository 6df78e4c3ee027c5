"""`capability`: minting through the daemon, narrowing and looking without it."""

from __future__ import annotations

import json

import click

from stockade.decide.blocks import block_bytes
from stockade.decide.tokens import inspect as read_token
from stockade.edge.cli.options import capability_option, socket_option
from stockade.edge.cli.output import emit, say
from stockade.edge.client.narrowing import attenuate as narrowed
from stockade.edge.client.sdk import Stockade
from stockade.terms.grant import Block, Profile

_NUMBER = click.IntRange(min=0)


@click.group()
def capability() -> None:
    """Signed grants: what a call may do."""


@capability.command()
@click.option("--tenant", required=True, metavar="T")
@click.option("--trajectory", required=True, metavar="X")
@click.option("--grant", default="agent", show_default=True, metavar="NAME", help="A grant file.")
@click.option("--ttl-s", type=click.IntRange(min=1), default=3600, show_default=True)
@click.option("--within-ceiling", is_flag=True, help="Cut what the tenant's ceiling is below.")
@socket_option
def mint(
    tenant: str,
    trajectory: str,
    grant: str,
    ttl_s: int,
    within_ceiling: bool,
    socket: str | None,
) -> int:
    """Print a new capability. Operators only."""
    with Stockade.connect(socket) as stockade:
        made = stockade.mint_within(tenant, trajectory, grant, ttl_s, within_ceiling=within_ceiling)
    if made.cut:
        say(f"cut to the tenant's ceiling: {', '.join(made.cut)}")
    emit(made.token)
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
@click.option("--calls", type=_NUMBER, help="Budget: calls in all.")
@click.option("--cost-micro", type=_NUMBER, help="Budget: millionths of the price's unit.")
@click.option("--cpu-ms", type=_NUMBER, help="Budget: processor time.")
@click.option("--egress-bytes", type=_NUMBER, help="Budget: bytes sent out.")
@click.option(
    "--check",
    multiple=True,
    metavar="TOOL.ARGUMENT:KIND=VALUE",
    help="What an argument must satisfy; adds to the others. KIND=VALUE is pattern=RE2, "
    "prefix=PATH, range=MIN..MAX or one_of=TEXT; a JSON list gives several paths or texts.",
)
@click.option(
    "--approve",
    multiple=True,
    metavar="TOOL[.ARGUMENT=PATTERN]",
    help="Calls that a person must approve: all of the tool, or those in which the pattern fits "
    "the whole argument. Adds to the others.",
)
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
    check: tuple[str, ...],
    approve: tuple[str, ...],
    ttl_s: int | None,
    **limits: int | None,
) -> int:
    """Print a narrower capability. Needs no daemon and no key; what is not given stays. Anything
    wider is refused, and the component named."""
    emit(
        narrowed(
            _token(capability),
            read=_replaced("read", read, drop),
            write=_replaced("write", write, drop),
            execute=_replaced("execute", execute, drop),
            connect=_replaced("connect", connect, drop),
            deny=deny,
            tools=tool or None,
            profile=None if profile is None else Profile(profile),
            limits={name: value for name, value in limits.items() if value is not None},
            depth=depth,
            checks=check,
            approve=approve,
            ttl_s=ttl_s,
        )
    )
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


def _replaced(
    name: str, given: tuple[str, ...], dropped: tuple[str, ...]
) -> tuple[str, ...] | None:
    return () if name in dropped else given or None
