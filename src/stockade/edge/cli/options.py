"""Options that several commands share, and the connection that they describe."""

from __future__ import annotations

import os
from collections.abc import Callable
from typing import Final, Protocol, TypeVar

import click

from stockade.edge.client.sdk import SOCKET_VARIABLE, Stockade
from stockade.edge.selftest import SelftestReport
from stockade.edge.server.config import Config

F = TypeVar("F", bound=Callable[..., object])

_CAPABILITY: Final = "STOCKADE_CAPABILITY"


class Composition(Protocol):
    """What the command line needs of the composition root, which is above it."""

    def serve(self, config: Config) -> None:
        """Be the daemon until a signal ends it."""

    def selftest(self, only: str | None) -> SelftestReport:
        """Attack the boundary: all attempts, or those whose names match. Raises Failure."""

    def local(self) -> Stockade:
        """A runtime in this process, with a state of its own that `close` removes."""


def socket_option(command: F) -> F:
    return click.option(
        "--socket",
        envvar=SOCKET_VARIABLE,
        metavar="PATH",
        help="The daemon's socket.",
        show_envvar=True,
    )(command)


def capability_option(command: F) -> F:
    return click.option(
        "--capability",
        envvar=_CAPABILITY,
        callback=_not_empty,
        metavar="TOKEN",
        help="The capability to act under.",
        show_envvar=True,
    )(command)


def json_option(command: F) -> F:
    return click.option("--json", "as_json", is_flag=True, help="Print JSON.")(command)


def lease_option(command: F) -> F:
    return click.option(
        "--lease",
        envvar="STOCKADE_LEASE",
        metavar="LEASE",
        required=True,
        help="A lease's id, or TENANT/TRAJECTORY.",
        show_envvar=True,
    )(command)


def lease_argument(command: F) -> F:
    return click.argument("lease_ref", metavar="LEASE")(command)


def _not_empty(_ctx: click.Context, _option: click.Parameter, given: str | None) -> str | None:
    """click takes an empty variable for none at all, and then the daemon's own user acts under the
    lease's token: `STOCKADE_CAPABILITY=$(stockade capability attenuate …)` that failed would widen
    what follows instead of narrowing it."""
    if given is None and os.environ.get(_CAPABILITY) == "":
        raise click.UsageError(f"{_CAPABILITY} is empty; unset it to act without a capability.")
    return given


def sendable(
    _ctx: click.Context, _parameter: click.Parameter, given: str | tuple[str, ...] | None
) -> str | tuple[str, ...] | None:
    """A callback for what goes to a daemon and may be a name of this machine, which is any bytes:
    a request is JSON. Those that are no UTF-8 come as lone surrogates."""
    for text in (given,) if isinstance(given, str) else given or ():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise click.BadParameter(f"{text!a} is not UTF-8, and can't be sent.") from None
    return given
