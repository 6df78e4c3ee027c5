"""Exit statuses: one table for commands that print a result, one for `run`."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

from stockade.terms.fault import REGISTRY, Code, Status
from stockade.terms.result import ToolResult

CALL_EXIT: Final[Mapping[Status, int]] = {
    Status.SUCCEEDED: 0,
    Status.FAILED: 1,
    Status.PARTIAL: 1,
    Status.REJECTED: 1,
    Status.INVALID: 2,
    Status.DENIED: 3,
    Status.APPROVAL_REQUIRED: 3,
    Status.TIMED_OUT: 124,
    Status.LIMITED: 1,
    Status.CANCELLED: 1,
    Status.UNAVAILABLE: 4,
    Status.UNKNOWN: 5,
}

USAGE: Final = 2
INTERRUPTED: Final = 130
# `run` passes its program's own status through, so everything of ours is one number, as in env(1).
RUN_FAULT: Final = 125

RUN_EXIT: Final[Mapping[Status, int]] = {
    Status.SUCCEEDED: 0,
    Status.PARTIAL: 1,
    Status.REJECTED: RUN_FAULT,
    Status.INVALID: RUN_FAULT,
    Status.DENIED: RUN_FAULT,
    Status.APPROVAL_REQUIRED: RUN_FAULT,
    Status.TIMED_OUT: 124,
    Status.LIMITED: RUN_FAULT,
    Status.CANCELLED: INTERRUPTED,
    Status.UNAVAILABLE: RUN_FAULT,
    Status.UNKNOWN: RUN_FAULT,
}


def call_exit(status: Status) -> int:
    return CALL_EXIT[status]


def code_exit(code: Code) -> int:
    """For a refusal that came as an error instead of a result."""
    return CALL_EXIT[REGISTRY[code].status]


def run_exit(result: ToolResult) -> int:
    """The program's own status where it had one; 128 + N for a signal of its own, as in shells."""
    if result.status is not Status.FAILED:
        return RUN_EXIT[result.status]
    ended = result.exit
    if ended is None:
        return RUN_FAULT
    if ended.kind == "signaled":
        return 128 + (ended.signal or 0)
    return RUN_FAULT if ended.code is None else ended.code
