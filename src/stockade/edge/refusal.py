"""Faults as values, for what never reached the pipeline: a bad body, a peer that is not allowed,
a daemon that does not answer. The same shape as every other result."""

from __future__ import annotations

from typing import Final

from stockade.terms.fault import REGISTRY, Code, Fault, Status
from stockade.terms.ids import CallRef
from stockade.terms.result import RESULT_SCHEMA, Provenance, ToolResult, error_of
from stockade.tools.retry import retry_safe

NO_CALL: Final = CallRef(lease_id=None, trajectory_id=None, turn=None, call_id=None, tool=None)

_HTTP: Final = {
    Status.INVALID: 400,
    Status.DENIED: 403,
    Status.APPROVAL_REQUIRED: 403,
    Status.REJECTED: 409,
    Status.LIMITED: 507,
    Status.TIMED_OUT: 504,
    Status.CANCELLED: 409,
    Status.UNAVAILABLE: 503,
    Status.UNKNOWN: 500,
}
_HTTP_BY_CODE: Final = {
    Code.UNKNOWN_ROUTE: 404,
    Code.NOT_FOUND: 404,
    Code.BODY_TOO_LARGE: 413,
    Code.INTERNAL: 500,
}


def refusal(fault: Fault, request_id: str, version: str, call: CallRef = NO_CALL) -> ToolResult:
    """A result that says only why there is none."""
    status = fault.status
    return ToolResult(
        schema=RESULT_SCHEMA,
        request_id=request_id,
        call=call,
        status=status,
        exit=None,
        stdout=None,
        stderr=None,
        data=None,
        artifacts=[],
        warnings=[],
        error=error_of(fault),
        retry_safe=retry_safe(status, "A3", fault.code),
        items=None,
        usage=None,
        replayed=False,
        provenance=Provenance(
            trust="untrusted",
            lease_id=call.lease_id,
            generation=None,
            plan_digest=None,
            capability_chain=[],
            image_digest=None,
            workspace_version=None,
            engine=None,
            profile=None,
            stockade_version=version,
        ),
        audit=None,
    )


def http_status(code: Code) -> int:
    """The HTTP status of a control-plane error; results always travel with 200."""
    return _HTTP_BY_CODE.get(code, _HTTP.get(REGISTRY[code].status, 500))
