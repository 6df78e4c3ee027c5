"""`stockade run`: one program in a sandbox, as if it ran here.

Its output goes to our own stdout and stderr as it comes, whole; its exit status is ours. With no
daemon on the socket a runtime in this process does the work, with a state of its own.
"""

from __future__ import annotations

import os
import secrets
import threading
from collections.abc import Callable
from typing import Final

import click

from stockade.edge.bodies import check
from stockade.edge.cli.exits import RUN_FAULT, run_exit
from stockade.edge.cli.interrupt import end_call, interruptible
from stockade.edge.cli.options import Composition, capability_option, json_option, sendable
from stockade.edge.cli.output import emit, explain, say
from stockade.edge.cli.patches import PatchFile
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import SOCKET_VARIABLE, Stockade
from stockade.edge.exchange import DEFAULT_SOCKET
from stockade.edge.server.listening import answers
from stockade.edge.wire import LeaseCreate
from stockade.terms.fault import Status

_BROKEN_PIPE: Final = 141
# The program came to a verdict of its own, so what it wrote is what it meant to write.
_OWN_VERDICT: Final = frozenset({Status.SUCCEEDED, Status.FAILED, Status.PARTIAL})
_NOTHING_RAN: Final = frozenset(
    {Status.INVALID, Status.DENIED, Status.APPROVAL_REQUIRED, Status.REJECTED, Status.UNAVAILABLE}
)


@click.command(context_settings={"ignore_unknown_options": False, "allow_interspersed_args": False})
@json_option
@click.option("--image", metavar="NAME", help="The system inside. Default: the first granted.")
@click.option(
    "--workspace",
    type=click.Path(exists=True, file_okay=False),
    help="Work on a copy of this directory. Default: an empty one.",
)
@click.option("--grant", metavar="NAME", help="A grant file. Default: agent.")
@click.option("--connect", multiple=True, metavar="HOST:PORT", help="Allow a destination.")
@capability_option
@click.option("--timeout-ms", type=click.IntRange(min=1), help="Default: the capability's limit.")
@click.option("--apply", is_flag=True, help="Write the changes back to the workspace directory.")
@click.option(
    "--patch",
    type=click.Path(dir_okay=False),
    help='Write the changes to a patch file; "-" is a file\'s name too.',
)
@click.option("-i", "interactive", is_flag=True, help="Pass our standard input on.")
@click.option("--socket", metavar="PATH", help="Use the daemon at this socket only.")
@click.argument("command", nargs=-1, required=True, callback=sendable, metavar="-- CMD [ARG]...")
@click.pass_obj
def run(
    composition: Composition,
    as_json: bool,
    image: str | None,
    workspace: str | None,
    grant: str | None,
    connect: tuple[str, ...],
    capability: str | None,
    timeout_ms: int | None,
    apply: bool,
    patch: str | None,
    interactive: bool,
    socket: str | None,
    command: tuple[str, ...],
) -> int:
    """Run CMD in a sandbox. The exit status is CMD's own; 124 is our time limit, 125 a fault of
    ours or a refusal, 130 an interrupt."""
    if apply and patch is not None:
        raise click.UsageError("give --apply or --patch, not both.")
    if apply and workspace is None:
        raise click.UsageError("--apply needs --workspace.")
    if patch is not None and not os.path.isdir(os.path.dirname(os.path.abspath(patch))):
        # Now, and not when the program has done its work for nothing.
        raise click.UsageError("--patch names a file in a directory that is not there.")
    request = check(
        LeaseCreate,
        {
            "trajectory": f"run-{secrets.token_hex(8)}",
            "source": None if workspace is None else os.path.abspath(workspace),
            "image": image,
            "grant": grant,
            "connect": list(connect),
        },
    )
    with _connect(composition, socket) as stockade:
        made, lease = stockade.create_lease(request, capability)
        if lease is None:
            return _end(made, as_json)
        with lease:
            outlet = _Outlet(lease)
            call_id = f"run-{secrets.token_hex(8)}"
            result = interruptible(
                lambda: lease.run(
                    command,
                    timeout_ms=timeout_ms,
                    call_id=call_id,
                    stdin=0 if interactive else None,
                    stdout=None if as_json else outlet.sink(1, call_id),
                    stderr=None if as_json else outlet.sink(2, call_id),
                ),
                lambda: _cancel(lease, call_id),
            )
            status = _end(result, as_json)
            if outlet.broken:
                return _BROKEN_PIPE
            if result.status in _NOTHING_RAN:
                return status
            return _bring_back(lease, result, workspace if apply else None, patch) or status


def _connect(composition: Composition, socket: str | None) -> Stockade:
    if socket is not None:
        return Stockade.connect(socket)
    path = os.environ.get(SOCKET_VARIABLE) or DEFAULT_SOCKET
    return Stockade.connect(path) if answers(path) else composition.local()


def _end(result: Result, as_json: bool) -> int:
    if as_json:
        emit(result.to_json())
    elif result.error is not None and result.status is not Status.FAILED:
        say(f"{result.status}: {explain(result.error)}")
    return run_exit(result)


def _bring_back(lease: Lease, result: Result, target: str | None, patch: str | None) -> int:
    """Say what changed, and write it where it was asked for; an exit status if that failed."""
    own = result.status in _OWN_VERDICT
    found = lease.export_to(target) if target is not None and own else lease.changes()
    if found.error is not None:
        say(f"the changes could not be read or applied: {explain(found.error)}")
        return RUN_FAULT
    data = found.data
    if data is not None and data.kind == "export":
        count = data.added + data.modified + data.deleted
        say(
            f"{count} file{'' if count == 1 else 's'} changed "
            f"({data.added} added, {data.modified} modified, {data.deleted} deleted)"
        )
    for warning in found.warnings:
        say(f"{warning.count} {warning.message}")
    if (target is not None or patch is not None) and not own:
        say(f"the changes were not brought back: the program ended as {result.status}")
    elif patch is not None:
        # Not "-", which is stdout there: ours is the program's.
        with PatchFile(os.path.abspath(patch)) as file:
            lease.pour_patch(file.put)
    return 0


def _cancel(lease: Lease, call_id: str) -> None:
    end_call(lease, call_id, what="program")


class _Outlet:
    """The program's streams to ours. When a reader of ours is gone the program is cancelled, as
    SIGPIPE would end it here; it is done beside the exchange, which must go on to its end."""

    def __init__(self, lease: Lease) -> None:
        self._lease = lease
        self.broken = False

    def sink(self, descriptor: int, call_id: str) -> Callable[[bytes], None]:
        def write(data: bytes) -> None:
            if self.broken:
                return
            try:
                _write_all(descriptor, data)
            except BrokenPipeError:
                self.broken = True
                threading.Thread(target=_cancel, args=(self._lease, call_id), daemon=True).start()

        return write


def _write_all(descriptor: int, data: bytes) -> None:
    rest = memoryview(data)
    while rest:
        rest = rest[os.write(descriptor, rest) :]
