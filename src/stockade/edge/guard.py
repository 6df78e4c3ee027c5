"""The last wall before the caller: whatever a service raises becomes a result, and a log line.

A `Failure` says what happened. Any other exception is a fault of ours whose effect is not known,
so it answers `in_doubt`, never "nothing ran". The log gets its type and where it was raised, not
its message, which may hold what a caller or a program wrote.
"""

from __future__ import annotations

import logging
import re
import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

from stockade.edge.exchange import Response
from stockade.edge.log_context import within
from stockade.edge.refusal import refusal
from stockade.edge.routing import Inbound, record_denied
from stockade.edge.server.logs import FIELDS, place_of
from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.ids import NAME_PATTERN, CallRef, is_lease_id
from stockade.terms.result import ToolResult

LOG: Final = logging.getLogger("stockade.edge")

_NAME: Final = re.compile(NAME_PATTERN)


class Asked(NamedTuple):
    """What is known of a call before its lease was looked up; nothing for what is no call."""

    lease_id: str | None = None
    turn: int | None = None
    call_id: str | None = None
    tool: str | None = None

    def ref(self) -> CallRef:
        return CallRef(
            lease_id=self.lease_id,
            trajectory_id=None,
            turn=self.turn,
            call_id=self.call_id,
            tool=self.tool,
        )


def asked(lease: str, turn: int | None, call_id: str | None, tool: str) -> Asked:
    return Asked(lease if is_lease_id(lease) else None, turn, call_id, tool)


def guarded(
    inbound: Inbound, call: Asked, work: Callable[[], ToolResult]
) -> tuple[ToolResult, Callable[[], None]]:
    """The result of `work`, or the refusal that it raised; and what writes the call's one log line,
    to be called once, when the reply was sent or could not be."""
    started = time.perf_counter()
    request_id = inbound.context.request_id
    with within(request_id, call):
        try:
            result = work()
        except Failure as known:
            record_denied(inbound.service, inbound.request, inbound.context, known.fault)
            result = refusal(known.fault, request_id, inbound.version, call.ref())
        except Exception as unexpected:
            log_unexpected(request_id, unexpected)
            doubt = Fault(
                Code.IN_DOUBT, "a fault of Stockade during the call; its effect is not known"
            )
            result = refusal(doubt, request_id, inbound.version, call.ref())
    if result.error is not None:
        inbound.watcher.refused(result.status, result.error.code)
    took_ms = round((time.perf_counter() - started) * 1000, 1)
    return result, partial(log_result, result, took_ms)


def answer(model: Model, log_line: Callable[[], None]) -> Response:
    """A JSON reply whose call's line is written after it; at once where no reply can be made."""
    try:
        return Response(200, model.model_dump_json(by_alias=True).encode(), after=log_line)
    except Exception:
        log_line()
        raise


def log_result(result: ToolResult, took_ms: float) -> None:
    """Ids, status and milliseconds; never arguments or output."""
    tool = result.call.tool
    fields = {
        "request_id": result.request_id,
        "lease": result.call.lease_id or "-",
        "call_id": result.call.call_id or "-",
        "tool": "-" if tool is None else tool if _NAME.match(tool) else "?",
        "status": result.status.value,
        "code": result.error.code.value if result.error else "-",
        "ms": took_ms,
    }
    LOG.info("%s", _Words(fields), extra={FIELDS: fields})


class _Words:
    """Fields as text, written when somebody reads it."""

    def __init__(self, fields: Mapping[str, object]) -> None:
        self._fields = fields

    def __str__(self) -> str:
        return " ".join(f"{name}={value}" for name, value in self._fields.items())


def log_unexpected(request_id: str, error: Exception) -> None:
    """Where an exception of ours came from, on one line."""
    LOG.error("request_id=%s internal fault %s", request_id, place_of(error))
