"""The command line: the group of commands, and the one place where a failure becomes a line.

Whatever goes wrong is one line `stockade: …` on stderr and an exit status of docs/cli.md, never a
traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Final

import click
from pydantic import ValidationError

from stockade import __version__
from stockade.edge.bodies import invalid
from stockade.edge.cli.audit import audit
from stockade.edge.cli.budgets import approval
from stockade.edge.cli.calls import artifact, call
from stockade.edge.cli.capability import capability
from stockade.edge.cli.claims import calls
from stockade.edge.cli.exits import INTERRUPTED, RUN_FAULT, USAGE, code_exit
from stockade.edge.cli.info import config, doctor, serve, tools
from stockade.edge.cli.interrupt import Interrupted
from stockade.edge.cli.keys import key
from stockade.edge.cli.leases import lease
from stockade.edge.cli.options import Composition
from stockade.edge.cli.output import explain, say
from stockade.edge.cli.run import run
from stockade.edge.cli.secrets import secret
from stockade.edge.cli.selftest import selftest
from stockade.edge.client.results import StockadeError
from stockade.edge.server.config import ConfigError
from stockade.edge.server.listening import ListenError
from stockade.terms.fault import Failure
from stockade.terms.result import error_of

_BROKEN_PIPE: Final = 1  # what click ends with when it meets one


@click.group(context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="stockade")
def cli() -> None:
    """Run an agent's tools inside containers whose walls come from a signed capability."""


lease.add_command(secret)
for _command in (
    serve,
    run,
    lease,
    call,
    calls,
    capability,
    key,
    approval,
    audit,
    tools,
    artifact,
    doctor,
    selftest,
    config,
):
    cli.add_command(_command)


def main(composition: Composition, arguments: Sequence[str] | None = None) -> int:
    """Run one command; gives the exit status. `arguments` are without the program's name."""
    given = list(sys.argv[1:] if arguments is None else arguments)
    try:
        status = cli.main(given, prog_name="stockade", obj=composition, standalone_mode=False)
        sys.stdout.flush()
        return status if isinstance(status, int) else 0
    except BrokenPipeError:
        # The reader of our output is gone. The interpreter must not try to flush into it again.
        os.dup2(os.open(os.devnull, os.O_WRONLY | os.O_CLOEXEC), 1)
        return _BROKEN_PIPE
    except Interrupted as interrupted:
        return interrupted.status
    except (KeyboardInterrupt, click.Abort):
        return INTERRUPTED
    except Exception as error:
        status, line = _explained(error, given)
        say(line)
        return RUN_FAULT if given[:1] == ["run"] else status


def _explained(error: Exception, given: Sequence[str]) -> tuple[int, str]:
    """Exit status and line, most specific first."""
    match error:
        case click.exceptions.NoArgsIsHelpError():
            return USAGE, "give a command; see stockade --help"
        case click.UsageError():
            where = error.ctx.command_path if error.ctx else "stockade"
            return USAGE, f"{error.format_message()} See {where} --help."
        case click.ClickException():
            return USAGE, error.format_message()
        case StockadeError():
            return code_exit(error.error.code), explain(error.error)
        case Failure():
            return code_exit(error.fault.code), explain(error_of(error.fault))
        case ValidationError():
            # Of a request before it was sent: replies that can't be read are `connection_lost`.
            # Without what was given, which may be a secret.
            return _explained(invalid(error), given)
        case ConfigError():
            return USAGE, str(error)
        case ListenError():
            return 1, str(error)
        case OSError():
            what = f"{error.filename}: " if error.filename else ""
            return 1, f"{what}{error.strerror or error}"
        case ValueError() if odd := [at for at, text in enumerate(given, 1) if not _is_text(text)]:
            # An option's value may be a name of this machine, any bytes; what is sent is JSON.
            return USAGE, f"argument {odd[0]} is not UTF-8, and can't be sent to a daemon"
        case _:
            return 1, f"internal fault: {type(error).__name__}: {error}"


def _is_text(argument: str) -> bool:
    """Bytes that are no UTF-8 come as lone surrogates."""
    try:
        argument.encode()
    except UnicodeEncodeError:
        return False
    return True
