"""`bash_execute`: one command in a fresh, non-login shell.

The shell gets the command as one argument, so nothing of ours is glued to it, and a heredoc
terminator or a comment at its end means what it means in a script (CASES B23). Two things mean
something else in `bash -c`, so a blank or a newline sets them right: a command that begins like an
option (not every sh takes `--` there), and a backslash at the end, which continues a line only in a
script. Not a login shell, because /etc/profile would replace the image's PATH (B25).
"""

from __future__ import annotations

from typing import Annotated, Final

from pydantic import Field

from stockade.terms.base import Model
from stockade.terms.call import ExecOperation, Right
from stockade.terms.fault import Code
from stockade.terms.outcome import ExecOutcome
from stockade.terms.pathname import WORKSPACE
from stockade.terms.plan import Kind
from stockade.tools.arguments import Command
from stockade.tools.definition import CallLimits, Description, Policy, Shaped, Target, Tool
from stockade.tools.execution import (
    DEFAULT_TIMEOUT_MS,
    MAX_TIMEOUT_MS,
    MIN_TIMEOUT_MS,
    applied_timeout_ms,
    capture,
    shape_execution,
)
from stockade.tools.settle import Probe

# Programs of the image are an object of `execute` by this prefix: /bin is a link to it.
SYSTEM_PROGRAMS: Final = "/usr"
SHELLS: Final = (b"/bin/bash", b"/usr/bin/bash", b"/usr/local/bin/bash", b"/bin/sh", b"/usr/bin/sh")


class BashArguments(Model):
    command: Command
    timeout_ms: Annotated[
        int,
        Field(
            ge=MIN_TIMEOUT_MS,
            le=MAX_TIMEOUT_MS,
            description="Milliseconds until everything the command started is killed.",
        ),
    ] = DEFAULT_TIMEOUT_MS


def _rights(_: BashArguments) -> tuple[Right, ...]:
    return (Right("execute", SYSTEM_PROGRAMS),)


def _script(command: str) -> str:
    before = " " if command.startswith(("-", "+")) else ""
    return before + command + ("\n" if command.endswith("\\") else "")


def _operation(arguments: BashArguments, limits: CallLimits) -> ExecOperation:
    return ExecOperation(
        kind=Kind.COMMAND,
        paths=SHELLS,
        argv=(b"bash", b"-c", _script(arguments.command).encode()),
        env=(),
        cwd=WORKSPACE.encode(),
        timeout_ms=applied_timeout_ms(arguments.timeout_ms, limits),
        capture=capture(limits),
        late=True,
    )


def _shape(arguments: BashArguments, outcome: ExecOutcome) -> Shaped:
    return shape_execution(
        outcome, Code.SHELL_NOT_FOUND, "a shell (bash or sh)", arguments.timeout_ms
    )


BASH_EXECUTE: Final = Tool(
    name="bash_execute",
    description=Description(
        what="Run a command in a fresh bash (or sh) inside the sandbox, in /workspace.",
        when="Use it to build, test, run programs, list directories and use git. To read a file "
        "use file_view, to change one use file_edit, to search use grep_search: they are faster "
        "and say exactly what they did.",
        first="Nothing carries over between calls but files: set variables and the directory in "
        "the same command (cd src && make). stdin is empty and there is no terminal, so pass "
        "--yes or a message on the command line. Give long work a larger timeout_ms.",
        returns="The exit status, and stdout and stderr apart; of more than 32 KiB each the first "
        "and the last part. At timeout_ms everything that the command started is killed, and what "
        "was printed until then is returned.",
    ),
    policy=Policy(
        selection="The general tool; every other one is preferred where it fits.",
        concurrency="Parallel with other calls of the lease, up to per_lease.parallel; the "
        "workspace is shared.",
        idempotency="Runs once under its turn and call id; a repetition gets its result. Without a "
        "call id, or under another, the same command may add its effect again.",
        result="exit, stdout and stderr; status 0 is succeeded, any other is failed.",
        approval="Where an approve rule of the capability fits the call.",
        observability="Status, times, processor time, memory and output bytes; never the command.",
    ),
    targets=(Target("execute", "the system's programs (/usr)"),),
    effect="A2",
    effect_with_connect="A3",
    arguments=BashArguments,
    data=None,
    rights=_rights,
    operation=_operation,
    shape=_shape,
    probe=Probe.EVIDENCE,
)
