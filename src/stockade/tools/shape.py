"""The one result: a tool's verdict, or a fault of any stage, put into its frame.

Everything measured or looked up is given as a value, so the same values give the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime

from stockade.terms.fault import Fault
from stockade.terms.ids import CallRef
from stockade.terms.outcome import ExecOutcome
from stockade.terms.result import (
    RESULT_SCHEMA,
    Provenance,
    ToolResult,
    Usage,
    Warn,
    Warning,
    error_of,
)
from stockade.tools.definition import AnyTool, Shaped, warning
from stockade.tools.retry import retry_safe


@dataclass(frozen=True, slots=True)
class Frame:
    """What a result says beside the verdict. `tool` is None when the request did not get that far.
    `connect` says whether the capability lets a call be seen outside. Times are seconds since the
    epoch."""

    request_id: str
    call: CallRef
    tool: AnyTool | None
    connect: bool
    coerced: tuple[str, ...]
    started_at: float
    finished_at: float
    provenance: Provenance
    cost_micro: int | None = None


def shape_result(
    shaped: Shaped, frame: Frame, outcome: ExecOutcome | None, timeout_ms: int | None
) -> ToolResult:
    """The result of a call that was carried out. `outcome` and `timeout_ms` (the applied limit)
    are those of an execution, None for a file tool."""
    return _result(
        shaped,
        frame,
        _usage(frame, outcome, timeout_ms),
        (*_coerced(frame.coerced), *_clamped(shaped.asked_timeout_ms, timeout_ms)),
    )


def fault_result(fault: Fault, frame: Frame) -> ToolResult:
    """The result of a call that `fault` stopped at any stage."""
    return _result(Shaped(fault=fault), frame, _usage(frame, None, None), _coerced(frame.coerced))


def operation_result(shaped: Shaped, frame: Frame) -> ToolResult:
    """The result of an operation on a lease: it is no tool's, has succeeded, and adds nothing when
    it is repeated."""
    result = _result(shaped, frame, _usage(frame, None, None), ())
    return result.model_copy(update={"retry_safe": True})


def timestamp(seconds: float) -> str:
    """Seconds since the epoch as RFC 3339 in UTC, to the millisecond."""
    moment = datetime.fromtimestamp(seconds, UTC)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _result(
    shaped: Shaped, frame: Frame, usage: Usage, warnings: tuple[Warning, ...]
) -> ToolResult:
    # Without a tool nobody knows what it would have done: the highest level is assumed.
    level = frame.tool.level(connect=frame.connect) if frame.tool is not None else "A3"
    code = shaped.fault.code if shaped.fault is not None else None
    return ToolResult(
        schema=RESULT_SCHEMA,
        request_id=frame.request_id,
        call=frame.call,
        status=shaped.status,
        exit=shaped.exit,
        stdout=shaped.stdout,
        stderr=shaped.stderr,
        data=shaped.data,
        artifacts=list(shaped.artifacts),
        warnings=[*warnings, *shaped.warnings],
        error=error_of(shaped.fault) if shaped.fault is not None else None,
        retry_safe=retry_safe(shaped.status, level, code),
        items=shaped.items,
        usage=usage,
        replayed=False,
        provenance=frame.provenance,
        audit=None,
    )


def _usage(frame: Frame, outcome: ExecOutcome | None, timeout_ms: int | None) -> Usage:
    """Of an execution its own times; else from the call's begin to its end."""
    wall_ms = max(0, round((frame.finished_at - frame.started_at) * 1000))
    cpu_ms = peak = output = None
    if outcome is not None:
        wall_ms, cpu_ms, peak = outcome.wall_ms, outcome.cpu_ms, outcome.peak_memory_bytes
        output = outcome.stdout.total_bytes + outcome.stderr.total_bytes
    return Usage(
        started_at=timestamp(frame.started_at),
        finished_at=timestamp(frame.finished_at),
        wall_ms=wall_ms,
        wall_limit_ms=timeout_ms,
        cpu_ms=cpu_ms,
        peak_memory_bytes=peak,
        output_bytes=output,
        egress_bytes=None,
        cost_micro=frame.cost_micro,
    )


def _coerced(names: tuple[str, ...]) -> tuple[Warning, ...]:
    if not names:
        return ()
    return (warning(Warn.COERCED, f"{', '.join(names)}: text was read as its value", len(names)),)


def _clamped(asked_ms: int | None, applied_ms: int | None) -> tuple[Warning, ...]:
    if asked_ms is None or applied_ms is None or asked_ms <= applied_ms:
        return ()
    message = f"timeout_ms {asked_ms} was lowered to {applied_ms} by per_call.wall_ms"
    return (warning(Warn.CLAMPED, message),)
