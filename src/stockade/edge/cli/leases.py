"""`lease`: making leases, looking at them, and giving their work back."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final

import click

from stockade.edge.bodies import check
from stockade.edge.cli.exits import call_exit
from stockade.edge.cli.options import (
    capability_option,
    json_option,
    lease_argument,
    sendable,
    socket_option,
)
from stockade.edge.cli.output import emit, emit_all, explain, fields, say, table
from stockade.edge.cli.patches import PatchFile
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate, LeaseGranted, LeaseView

_COLUMNS: Final = (
    "LEASE",
    "TENANT",
    "TRAJECTORY",
    "NAME",
    "STATE",
    "GENERATION",
    "EXPIRES",
    "WORKSPACE",
)


@click.group()
def lease() -> None:
    """A trajectory's hold on a workspace. LEASE is an id, or TENANT/TRAJECTORY."""


@lease.command()
@click.option("--tenant", required=True, metavar="T")
@click.option("--trajectory", required=True, metavar="X")
@click.option("--name", default="main", show_default=True, help="One of several of a trajectory.")
@click.option(
    "--source",
    type=click.Path(exists=True, file_okay=False),
    callback=sendable,
    help="Copied once.",
)
@click.option(
    "--exclude", multiple=True, callback=sendable, metavar="GLOB", help="Left out of the copy."
)
@click.option("--image", metavar="NAME", help="Default: the first that is granted.")
@click.option("--grant", metavar="NAME", help="A grant file. Default: agent.")
@click.option(
    "--env",
    multiple=True,
    callback=sendable,
    metavar="K=V",
    help="For every command of the lease.",
)
@click.option("--ttl-s", type=click.IntRange(min=1), help="Lifetime. Default: the daemon's.")
@click.option("--within-ceiling", is_flag=True, help="Cut what the tenant's ceiling is below.")
@click.option("--share", metavar="LEASE", help="Work in the workspace of this lease.")
@click.option("--fork", metavar="LEASE", help="Begin with a copy of this lease's workspace.")
@click.option("--take-over", is_flag=True, help="Refuse the present holder from now on.")
@capability_option
@json_option
@socket_option
def create(
    tenant: str,
    trajectory: str,
    name: str,
    source: str | None,
    exclude: tuple[str, ...],
    image: str | None,
    grant: str | None,
    env: tuple[str, ...],
    ttl_s: int | None,
    within_ceiling: bool,
    share: str | None,
    fork: str | None,
    take_over: bool,
    capability: str | None,
    as_json: bool,
    socket: str | None,
) -> int:
    """Make a lease, or give the one that the trajectory has; print its id and token."""
    request = check(
        LeaseCreate,
        {
            "tenant": tenant,
            "trajectory": trajectory,
            "name": name,
            "source": None if source is None else os.path.abspath(source),
            "excludes": list(exclude),
            "image": image,
            "grant": grant,
            "env": _variables(env),
            "ttl_s": ttl_s,
            "take_over": take_over,
            "within_ceiling": within_ceiling,
            "share": share,
            "fork": fork,
        },
    )
    with Stockade.connect(socket) as stockade:
        # A token in the environment is a default; a grant on the command line is a decision.
        made, held = stockade.create_lease(request, None if grant is not None else capability)
    if held is None:
        return _tell(made, as_json=False, good="")
    for warning in made.warnings:
        say(warning.message)
    granted = LeaseGranted.model_validate(
        {
            "lease_id": held.id,
            "token": held.token,
            "generation": held.generation,
            "expires_at": held.expires_at,
        }
    )
    if as_json:
        emit(granted.model_dump_json())
    else:
        for field, value in granted.model_dump().items():
            emit(f"{field}: {value}")
    return 0


@lease.command(name="list")
@json_option
@socket_option
def list_(as_json: bool, socket: str | None) -> int:
    """The leases that you may see."""
    with Stockade.connect(socket) as stockade:
        found = stockade.leases()
    if as_json:
        emit_all(found)
    else:
        table(_COLUMNS, [_row(view) for view in found])
    return 0


@lease.command()
@lease_argument
@capability_option
@json_option
@socket_option
def show(lease_ref: str, capability: str | None, as_json: bool, socket: str | None) -> int:
    """One lease."""
    with Stockade.connect(socket) as stockade:
        view = stockade.attach(lease_ref, capability).show()
    if as_json:
        emit(view.model_dump_json())
    else:
        fields(view.model_dump().items())
    return 0


@lease.command()
@lease_argument
@click.option("--ttl-s", type=click.IntRange(min=1), required=True, help="Counted from now.")
@capability_option
@json_option
@socket_option
def renew(
    lease_ref: str, ttl_s: int, capability: str | None, as_json: bool, socket: str | None
) -> int:
    """Make a lease last longer; it never becomes shorter."""
    return _operate(lease_ref, capability, as_json, socket, lambda held: held.renew(ttl_s))


@lease.command()
@lease_argument
@capability_option
@json_option
@socket_option
def reset(lease_ref: str, capability: str | None, as_json: bool, socket: str | None) -> int:
    """End everything that runs in a lease and drop everything that was written."""
    return _operate(lease_ref, capability, as_json, socket, Lease.reset)


@lease.command()
@lease_argument
@capability_option
@json_option
@socket_option
def release(lease_ref: str, capability: str | None, as_json: bool, socket: str | None) -> int:
    """End a lease and remove its workspace."""
    return _operate(lease_ref, capability, as_json, socket, Lease.release)


@lease.command()
@lease_argument
@click.option("--to", type=click.Path(exists=True, file_okay=False), help="Apply the changes here.")
@click.option("--patch", type=click.Path(dir_okay=False), help='Write a patch; "-" is stdout.')
@capability_option
@json_option
@socket_option
def export(
    lease_ref: str,
    to: str | None,
    patch: str | None,
    capability: str | None,
    as_json: bool,
    socket: str | None,
) -> int:
    """Give the work of a lease back, to a directory or as a patch."""
    if (to is None) == (patch is None):
        raise click.UsageError("give exactly one of --to and --patch.")
    if to is not None:
        return _operate(lease_ref, capability, as_json, socket, lambda held: held.export_to(to))
    with Stockade.connect(socket) as stockade, PatchFile(patch or "-") as file:
        stockade.attach(lease_ref, capability).pour_patch(file.put)
    return 0


def _operate(
    lease_ref: str,
    capability: str | None,
    as_json: bool,
    socket: str | None,
    work: Callable[[Lease], Result],
) -> int:
    with Stockade.connect(socket) as stockade:
        return _tell(work(stockade.attach(lease_ref, capability)), as_json, lease_ref)


def _tell(result: Result, as_json: bool, good: str) -> int:
    """The result as JSON, or a line about it."""
    data = result.data
    if as_json:
        emit(result.to_json())
    elif result.error is not None:
        say(f"{result.status}: {explain(result.error)}")
    elif data is not None and data.kind == "lease":
        emit(f"{data.lease_id}: {data.state}, expires {data.expires_at}")
    elif data is not None and data.kind == "export":
        emit(f"{data.added} added, {data.modified} modified, {data.deleted} deleted")
        for warning in result.warnings:
            say(f"{warning.count} {warning.message}")
    else:
        emit(f"{good}: {result.status}")
    return call_exit(result.status)


def _row(view: LeaseView) -> tuple[str, ...]:
    return (
        view.lease_id,
        view.tenant,
        view.trajectory,
        view.name,
        f"{view.state}, broken" if view.broken else view.state,
        str(view.generation),
        view.expires_at,
        _workspace(view),
    )


def _workspace(view: LeaseView) -> str:
    if view.shares is not None:
        return f"of {view.shares}"
    return "own" if view.forked_from is None else f"fork of {view.forked_from}"


def _variables(given: tuple[str, ...]) -> dict[str, str]:
    found: dict[str, str] = {}
    for entry in given:
        name, equals, value = entry.partition("=")
        if not equals or not name:
            raise click.UsageError(f"--env {entry!r} is not K=V.")
        found[name] = value
    return found
