"""A call on its way through the pipeline: as it came, its name, what was prepared, its claim."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace

from pydantic import JsonValue, ValidationError

from stockade.decide.canonical import canonical
from stockade.decide.idempotency import (
    Place,
    call_name,
    canonical_arguments,
    drawn_id,
    idempotency_key,
)
from stockade.flow.claims import Claims
from stockade.terms.audit import Acting
from stockade.terms.base import Model
from stockade.terms.call import ExecOperation, Operation, Permit
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Tee
from stockade.terms.result import ToolResult
from stockade.terms.stage import Mark, unmarked
from stockade.tools.clean import clean_arguments
from stockade.tools.definition import AnyTool
from stockade.tools.redact import Findings, Redactor
from stockade.tools.settle import Probe

NOBODY = Acting(None)
# How long a repeat waits for a call that has no time limit of its own.
_PATIENCE_S = 30.0


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call as the edge received it. `tenant` is the peer's, None for an operator; `token` None
    means that the peer has the daemon's own uid and acts under the lease's capability.
    `idempotency_key` is what the caller takes the call's key to be, to be checked."""

    request_id: str
    lease: str
    tool: str
    arguments: Mapping[str, JsonValue]
    turn: int | None
    call_id: str | None
    tenant: str | None
    token: str | None
    tee: Tee | None = None
    stdin: int | None = None
    idempotency_key: str | None = None
    who: Acting = NOBODY
    mark: Mark = unmarked


@dataclass(frozen=True, slots=True)
class Named:
    """`id` is the call's name, `key` its idempotency key, `call_id` the caller's or a drawn one,
    `arguments` canonical JSON."""

    id: str
    key: str
    call_id: str
    arguments: str


@dataclass(frozen=True, slots=True)
class Prepared:
    """A call that has been authorized: all that is needed to carry it out."""

    named: Named
    tool: AnyTool
    arguments: Model
    values: Mapping[str, JsonValue]
    lease: LeaseRecord
    permit: Permit
    operation: Operation
    plan_digest: str | None


def name_call(request: ToolRequest, tool: AnyTool, lease: LeaseRecord) -> Named:
    """Without a call id, and for a tool that has no effect, it is named after the request: nothing
    is ever the same call. Raises Failure(invalid_argument) when the key that came is not its."""
    arguments = canonical_arguments(request.arguments)
    drawn = drawn_id(request.request_id)
    call_id = request.call_id or drawn
    place = Place(lease.tenant, lease.trajectory, request.turn, call_id)
    key = idempotency_key(place, tool.name, arguments)
    if request.idempotency_key not in (None, key):
        raise failure(
            Code.INVALID_ARGUMENT,
            "idempotency_key is not that of this call",
            argument="idempotency_key",
        )
    if tool.probe is Probe.NONE:
        place = replace(place, call_id=drawn)
    return Named(call_name(place), key, call_id, arguments.decode())


def patience_s(operation: Operation) -> float:
    """How long a repeat waits for the call that it repeats: as long as it may take itself."""
    return operation.timeout_ms / 1000 if isinstance(operation, ExecOperation) else _PATIENCE_S


def claim_of(
    request: ToolRequest, call: Prepared, claims: Claims, redactor: Redactor
) -> ClaimRecord:
    """What the claim of a call says when it begins, without secrets: its key is of what was sent."""
    findings = Findings()
    clean = clean_arguments(request.arguments, redactor, findings)
    lease, named, operation = call.lease, call.named, call.operation
    wall_limit_ms = operation.timeout_ms if isinstance(operation, ExecOperation) else None
    return ClaimRecord(
        id=named.id,
        key=named.key,
        state=ClaimState.IN_FLIGHT,
        tenant=lease.tenant,
        trajectory=lease.trajectory,
        turn=request.turn,
        call_id=named.call_id,
        tool=call.tool.name,
        arguments=canonical(clean).decode() if findings.hidden else named.arguments,
        lease_id=lease.id,
        generation=lease.generation,
        workspace_version=lease.workspace_version,
        image=lease.image,
        plan_digest=call.plan_digest,
        chain=call.permit.chain,
        request_id=request.request_id,
        boot=claims.boot,
        until_boot_s=claims.lease_end(wall_limit_ms),
        created_at_s=claims.clock(),
        wall_limit_ms=wall_limit_ms,
    )


def replayed(claim: ClaimRecord, request_id: str) -> ToolResult:
    """The stored result as the answer to another request. Raises Failure(in_doubt) for one that is
    damaged."""
    try:
        stored = ToolResult.model_validate_json(claim.result or "")
    except ValidationError as error:
        raise failure(
            Code.IN_DOUBT, "the call has ended; its stored result can't be read", claim=claim.id
        ) from error
    return stored.model_copy(update={"request_id": request_id, "replayed": True})
