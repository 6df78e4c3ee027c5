"""`run`: one program with an argument vector, for the command line and the SDK; no shell between.

The program is looked for by the guest, path by path, never by the host in a tree that the sandbox
can change. The kernel takes at most 131,071 bytes per argument or variable (MAX_ARG_STRLEN less its
NUL) and a quarter of the 8 MiB stack for all of them with the environment and their pointers. More
is refused here, before anything starts; where only the environment goes over, the kernel refuses
(E2BIG) and nothing ran either (CASES B22).
"""

from __future__ import annotations

from typing import Annotated, Final, Self

from pydantic import Field, field_validator, model_validator

from stockade.decide.objects import normalize_call_path
from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.call import ExecOperation, Right
from stockade.terms.fault import Code, failure
from stockade.terms.outcome import ExecOutcome
from stockade.terms.pathname import MAX_PATH_BYTES, TMP, WORKSPACE, to_text
from stockade.terms.plan import Kind
from stockade.tools.arguments import NoNul, PathArgument, too_large
from stockade.tools.definition import CallLimits, Description, Policy, Shaped, Target, Tool
from stockade.tools.execution import (
    applied_timeout_ms,
    capture,
    shape_execution,
)
from stockade.tools.settle import Probe
from stockade.tools.shell import SYSTEM_PROGRAMS

MAX_ARGUMENT_BYTES: Final = 131_071
MAX_TOTAL_BYTES: Final = 2 * 1024 * 1024
MAX_ARGUMENTS: Final = 65_536
MAX_CANDIDATES: Final = 64
_POINTER_BYTES: Final = 8


class RunArguments(Model):
    argv: Annotated[
        tuple[NoNul, ...],
        Field(
            strict=False,  # JSON has lists; their items stay strict
            min_length=1,
            max_length=MAX_ARGUMENTS,
            description="The program and its arguments; at most 131,071 bytes each and 2 MiB in "
            "all.",
        ),
    ]
    cwd: PathArgument = WORKSPACE
    timeout_ms: Annotated[
        Annotated[int, Field(ge=1, le=MAX_INTEGER)] | None,
        Field(description="Milliseconds; without it the capability's per_call.wall_ms."),
    ] = None

    @field_validator("argv")
    @classmethod
    def _bounded(cls, argv: tuple[str, ...]) -> tuple[str, ...]:
        if not argv[0]:
            raise ValueError("names no program: its first item is empty")
        sizes = [len(argument.encode()) for argument in argv]
        largest = max(sizes)
        if largest > MAX_ARGUMENT_BYTES:
            raise too_large(
                f"has {largest} bytes in item {sizes.index(largest)}; "
                f"at most {MAX_ARGUMENT_BYTES} are possible"
            )
        total = sum(sizes) + len(sizes) * (1 + _POINTER_BYTES)
        if total > MAX_TOTAL_BYTES:
            raise too_large(
                f"arguments have {total} bytes in all; at most {MAX_TOTAL_BYTES} are possible"
            )
        return argv

    @model_validator(mode="after")
    def _a_path(self) -> Self:
        if "/" in self.argv[0] and len(_program_path(self)) > MAX_PATH_BYTES:
            raise ValueError(f"argv: the program's path has more than {MAX_PATH_BYTES} bytes")
        return self


def _rights(arguments: RunArguments) -> tuple[Right, ...]:
    """The program itself where it lies in the lease's tree, else the system's programs."""
    program = arguments.argv[0]
    if "/" in program:
        path = _program_path(arguments)
        for tree in (WORKSPACE.encode(), TMP.encode()):
            if path.startswith(tree + b"/"):
                return (Right("execute", to_text(path)),)
    return (Right("execute", SYSTEM_PROGRAMS),)


def _program_path(arguments: RunArguments) -> bytes:
    """A program named with a slash: relative to cwd, as execve(2) has it."""
    program = arguments.argv[0].encode()
    if program.startswith(b"/"):
        return b"/" + b"/".join(part for part in program.split(b"/") if part not in (b"", b"."))
    parts = [part for part in program.split(b"/") if part not in (b"", b".")]
    return b"/".join([normalize_call_path(arguments.cwd).rstrip(b"/"), *parts])


def _operation(arguments: RunArguments, limits: CallLimits) -> ExecOperation:
    argv = tuple(argument.encode() for argument in arguments.argv)
    name = argv[0]
    if b"/" in name:
        paths: tuple[bytes, ...] = (_program_path(arguments),)
    else:
        directories = [item for item in limits.search_path if item.startswith(b"/")]
        paths = tuple(item.rstrip(b"/") + b"/" + name for item in directories[:MAX_CANDIDATES])
    if not paths:
        raise failure(
            Code.COMMAND_NOT_FOUND, "the sandbox's PATH is empty; name the program's path"
        )
    return ExecOperation(
        kind=Kind.COMMAND,
        paths=paths,
        argv=argv,
        env=(),
        cwd=normalize_call_path(arguments.cwd),
        timeout_ms=applied_timeout_ms(arguments.timeout_ms, limits),
        capture=capture(limits),
    )


def _shape(arguments: RunArguments, outcome: ExecOutcome) -> Shaped:
    program = _shown(arguments.argv[0])
    if arguments.cwd != WORKSPACE:
        program += f" or the directory {arguments.cwd}"
    return shape_execution(outcome, Code.COMMAND_NOT_FOUND, program, arguments.timeout_ms)


def _shown(program: str) -> str:
    shown = program if len(program) <= 100 else program[:100] + "…"
    return f"the program {shown!r}"


RUN: Final = Tool(
    name="run",
    description=Description(
        what="Run one program with an argument vector inside the sandbox.",
        when="For programs that call Stockade; a model uses bash_execute.",
        first="The program is looked for along the sandbox's PATH unless its name has a slash.",
        returns="The exit status, stdout and stderr.",
    ),
    policy=Policy(
        selection="Not offered to models.",
        concurrency="Parallel with other calls of the lease, up to per_lease.parallel.",
        idempotency="Runs once under its turn and call id; a repetition gets its result. Without a "
        "call id, or under another, the same program may add its effect again.",
        result="exit, stdout and stderr; status 0 is succeeded, any other is failed.",
        approval="As for bash_execute.",
        observability="Status, times, processor time, memory and output bytes; never arguments.",
    ),
    targets=(
        Target("execute", "argv[0] where it is a path below /workspace or /tmp"),
        Target("execute", "else the system's programs (/usr)"),
    ),
    effect="A2",
    effect_with_connect="A3",
    arguments=RunArguments,
    data=None,
    rights=_rights,
    operation=_operation,
    shape=_shape,
    probe=Probe.EVIDENCE,
    offered=False,
)
