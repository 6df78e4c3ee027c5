"""What the tools that start a program have in common: applied limits, and the verdict on an end.

A program that ends by itself is judged by its exit status alone, whatever that is: 124 and 137 are
its own words. A limit is named as the cause only where the kernel's evidence says that it ended the
main process: SIGKILL together with an out-of-memory kill counted in this call. An out-of-memory
kill of a child, a refused fork and processes left behind are warnings, because the program went on
and had the last word.
"""

from __future__ import annotations

from typing import Final

from stockade.terms.base import MAX_SECONDS
from stockade.terms.call import Capture
from stockade.terms.fault import Code, Fault, failure
from stockade.terms.outcome import Captured, CapturedArtifact, End, ExecOutcome
from stockade.terms.result import Artifact, Exit, Warn, Warning
from stockade.tools.definition import MAX_ARTIFACT_BYTES, CallLimits, Shaped, warning
from stockade.tools.redact import CONTEXT_BYTES
from stockade.tools.text import stream

STREAM_HEAD_BYTES: Final = 16 * 1024
STREAM_TAIL_BYTES: Final = 16 * 1024
DEFAULT_TIMEOUT_MS: Final = 30_000
MIN_TIMEOUT_MS: Final = 1_000
MAX_TIMEOUT_MS: Final = 300_000

SIGKILL: Final = 9
_E2BIG: Final = 7
_ABSENT: Final = (2, 20, 36)  # ENOENT, ENOTDIR, ENAMETOOLONG
_NOT_STARTED: Final = {
    8: "is nothing that the kernel can run: no program for this machine, and no #! line",  # ENOEXEC
    13: "is not executable here (permission denied)",  # EACCES
}
# signal(7), the numbers of x86 and arm
_SIGNALS: Final = {
    1: "SIGHUP", 2: "SIGINT", 3: "SIGQUIT", 4: "SIGILL", 5: "SIGTRAP", 6: "SIGABRT", 7: "SIGBUS",
    8: "SIGFPE", 9: "SIGKILL", 10: "SIGUSR1", 11: "SIGSEGV", 12: "SIGUSR2", 13: "SIGPIPE",
    14: "SIGALRM", 15: "SIGTERM", 24: "SIGXCPU", 25: "SIGXFSZ", 31: "SIGSYS",
}  # fmt: skip


def capture(limits: CallLimits) -> Capture:
    return Capture(
        STREAM_HEAD_BYTES,
        STREAM_TAIL_BYTES,
        min(limits.artifact_bytes, MAX_ARTIFACT_BYTES),
        CONTEXT_BYTES,
    )


def applied_timeout_ms(asked_ms: int | None, limits: CallLimits) -> int:
    """Without an asked one the capability's own limit holds. None is longer than a hundred years.
    Raises Failure(right_not_granted) where there is no time at all: a program that is started and
    killed at once has run."""
    if limits.wall_limit_ms < 1:
        raise failure(
            Code.RIGHT_NOT_GRANTED,
            "the capability allows no time: per_call.wall_ms is 0",
            rule="per_call.wall_ms",
        )
    longest = min(limits.wall_limit_ms, MAX_SECONDS * 1000)
    return longest if asked_ms is None else min(asked_ms, longest)


def signal_name(number: int) -> str:
    return _SIGNALS.get(number, f"signal {number}")


def shape_execution(
    outcome: ExecOutcome, missing: Code, program: str, asked_timeout_ms: int | None
) -> Shaped:
    """The verdict on a program's end. `missing` is the code for a program that isn't there,
    `program` what to call it then."""
    if outcome.end is End.NOT_FOUND and outcome.errno == _E2BIG:
        return Shaped(
            fault=Fault(
                Code.ARGUMENT_TOO_LARGE,
                "the kernel refused the arguments and environment as too large; nothing ran",
            )
        )
    if outcome.end is End.NOT_FOUND:
        reason = (
            "is not in this sandbox"
            if outcome.errno in (None, *_ABSENT)
            else _NOT_STARTED.get(outcome.errno, f"can't be started (errno {outcome.errno})")
        )
        return Shaped(fault=Fault(missing, f"{program} {reason}; nothing ran"))
    return Shaped(
        fault=_fault(outcome),
        exit=_exit(outcome),
        stdout=stream(outcome.stdout),
        stderr=stream(outcome.stderr),
        artifacts=_artifacts(("stdout", outcome.stdout), ("stderr", outcome.stderr)),
        warnings=execution_warnings(outcome),
        asked_timeout_ms=asked_timeout_ms,
    )


def _exit(outcome: ExecOutcome) -> Exit | None:
    """Only of a program that ended by itself: one that was killed has no status of its own."""
    if outcome.value is None:
        return None
    if outcome.end is End.EXITED:
        return Exit(kind="exited", code=outcome.value, signal=None)
    if outcome.end is End.SIGNALED:
        return Exit(kind="signaled", code=None, signal=outcome.value)
    return None


def _fault(outcome: ExecOutcome) -> Fault | None:
    match outcome.end:
        case End.EXITED if outcome.value == 0:
            return None
        case End.EXITED if outcome.value is not None:
            return Fault(
                Code.NONZERO_EXIT,
                f"the program exited with status {outcome.value}",
                details={"exit_code": outcome.value},
            )
        case End.SIGNALED if outcome.value == SIGKILL and outcome.oom_kills > 0:
            return Fault(
                Code.MEMORY_EXCEEDED,
                "the memory limit was reached and the kernel killed the program",
                rule="per_lease.memory_bytes",
                details={"oom_kills": outcome.oom_kills},
            )
        case End.SIGNALED if outcome.value is not None:
            return Fault(
                Code.KILLED_BY_SIGNAL,
                f"the program was ended by {signal_name(outcome.value)}",
                details={"signal": outcome.value},
            )
        case _:
            return interruption(outcome)


def interruption(outcome: ExecOutcome) -> Fault:
    """Why a program did not end by itself."""
    match outcome.end:
        case End.DEADLINE:
            confirmed = outcome.kill_confirmed_ms
            return Fault(
                Code.DEADLINE_EXCEEDED,
                f"the time limit passed after {outcome.wall_ms} ms",
                rule="timeout_ms",
                details={} if confirmed is None else {"kill_confirmed_ms": confirmed},
            )
        case End.CANCELLED:
            return Fault(Code.CANCELLED, f"cancelled after {outcome.wall_ms} ms")
        case End.LEASE_EXPIRED:
            return Fault(
                Code.LEASE_EXPIRED_IN_CALL, f"the lease expired after {outcome.wall_ms} ms"
            )
        case End.BUDGET:
            return _budget(outcome)
        case _:
            # LOST, and an end without the number that belongs to it: nobody knows what happened.
            return Fault(Code.SANDBOX_LOST, "the sandbox died during the call")


def _budget(outcome: ExecOutcome) -> Fault:
    short = outcome.shortage
    if short is None:
        return Fault(
            Code.BUDGET_EXCEEDED,
            f"what the call uses could not be recorded any more after {outcome.wall_ms} ms",
        )
    return Fault(
        Code.BUDGET_EXCEEDED,
        f"{short.rule} of block {short.block} was used up after {outcome.wall_ms} ms",
        rule=short.rule,
        details={"budget": short.rule, "block": short.block, "total": short.total},
    )


def execution_warnings(outcome: ExecOutcome) -> tuple[Warning, ...]:
    found: list[Warning] = []
    main_killed = outcome.end is End.SIGNALED and outcome.value == SIGKILL
    if outcome.oom_kills > 0 and not main_killed:
        found.append(
            warning(
                Warn.OOM_IN_CHILD,
                "the memory limit was reached and the kernel killed a process of this call",
                outcome.oom_kills,
            )
        )
    if outcome.pids_refused > 0:
        found.append(
            warning(
                Warn.NEAR_LIMIT,
                "the limit of processes was reached and new ones were refused"
                + ("; what went on forking was ended" if outcome.left_ended else ""),
                outcome.pids_refused,
            )
        )
    if outcome.left_running > 0:
        found.append(
            warning(
                Warn.LEFT_RUNNING,
                "processes of this call are still running; reset or release ends them. Their "
                "output is no longer read: printing ends them unless it was redirected to a file",
                outcome.left_running,
            )
        )
    return tuple(found)


def artifact_of(name: str, kept: CapturedArtifact) -> Artifact:
    return Artifact(
        id=kept.id,
        name=name,
        media_type="application/octet-stream",
        bytes=kept.bytes,
        complete=kept.complete,
    )


def _artifacts(*streams: tuple[str, Captured]) -> tuple[Artifact, ...]:
    return tuple(
        artifact_of(name, kept)
        for name, captured in streams
        if (kept := captured.artifact) is not None
    )
