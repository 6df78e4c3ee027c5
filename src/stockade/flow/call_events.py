"""What the audit says of a call: the intent before its effect, the outcome after it.

Pure: facts and a result in, an event out. Whoever claims a call writes the intent in the claim's
transaction and the outcome in the settlement's.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TypedDict

from pydantic import JsonValue

from stockade.decide.chain import result_digest
from stockade.decide.checks import Arguments
from stockade.decide.idempotency import canonical_arguments
from stockade.terms.audit import (
    MAX_ARGUMENT_CHARS,
    Acting,
    AuditEvent,
    AuditKind,
    AuditUsage,
)
from stockade.terms.claim import ClaimRecord
from stockade.terms.result import ToolResult, Usage

# The arguments of a lease's call without its secrets, and how many were taken out.
Redact = Callable[[str | None, Arguments], tuple[Arguments, int]]


def nothing_secret(lease_id: str | None, arguments: Arguments) -> tuple[Arguments, int]:
    """A `Redact` that takes nothing out."""
    return arguments, 0


@dataclass(frozen=True, slots=True)
class CallFacts:
    """What is known of a call, however far it came. `arguments` are as they came or, once they were
    read, with their defaults."""

    who: Acting
    tenant: str | None
    trajectory: str | None
    lease_id: str | None
    generation: int | None
    turn: int | None
    call_id: str | None
    tool: str
    arguments: Arguments
    chain: tuple[str, ...]
    plan_digest: str | None


def intent(facts: CallFacts, at_ms: int, redact: Redact) -> AuditEvent:
    """To be written before anything of the call has an effect."""
    return _event(AuditKind.CALL_INTENT, facts, at_ms, redact)


def outcome(
    facts: CallFacts, result: ToolResult, at_ms: int, redact: Redact, *, refused: bool = False
) -> AuditEvent:
    """Covers `result` by its digest. `refused`: nothing of the call was carried out."""
    kind = AuditKind.CALL_REFUSED if refused else AuditKind.CALL_OUTCOME
    made = _event(kind, facts, at_ms, redact)
    return replace(made, **_verdict(result))


def outcome_of(intent: AuditEvent, result: ToolResult, at_ms: int) -> AuditEvent:
    """As `outcome`, of a call whose intent was written: what it was asked is cleaned once."""
    return replace(intent, kind=AuditKind.CALL_OUTCOME, at_ms=at_ms, **_verdict(result))


def settlement(
    record: ClaimRecord, at_ms: int, redact: Redact, result: ToolResult | None
) -> AuditEvent:
    """Of a call that is known from its claim only; `result` is what repeats are given."""
    given: dict[str, JsonValue] = json.loads(record.arguments)
    facts = CallFacts(
        who=Acting(None, record.request_id),
        tenant=record.tenant,
        trajectory=record.trajectory,
        lease_id=record.lease_id,
        generation=record.generation,
        turn=record.turn,
        call_id=record.call_id,
        tool=record.tool,
        arguments=given,
        chain=record.chain,
        plan_digest=record.plan_digest,
    )
    made = _event(AuditKind.CALL_SETTLED, facts, at_ms, redact)
    return made if result is None else replace(made, **_verdict(result))


def _event(kind: AuditKind, facts: CallFacts, at_ms: int, redact: Redact) -> AuditEvent:
    arguments, redactions = redact(facts.lease_id, facts.arguments)
    raw = canonical_arguments(arguments)
    return AuditEvent(
        kind=kind,
        at_ms=at_ms,
        tenant=facts.tenant,
        trajectory=facts.trajectory,
        lease_id=facts.lease_id,
        generation=facts.generation,
        turn=facts.turn,
        call_id=facts.call_id,
        tool=facts.tool,
        request_id=facts.who.request_id,
        actor=facts.who.actor,
        client=facts.who.client,
        model=facts.who.model,
        arguments=raw.decode()[:MAX_ARGUMENT_CHARS],
        arguments_bytes=len(raw),
        arguments_digest=hashlib.sha256(raw).hexdigest(),
        redactions=redactions or None,
        chain=facts.chain or None,
        plan_digest=facts.plan_digest,
    )


class _Verdict(TypedDict):
    status: str
    code: str | None
    rule: str | None
    image_digest: str | None
    result_digest: str
    usage: AuditUsage | None


def _verdict(result: ToolResult) -> _Verdict:
    return _Verdict(
        status=result.status.value,
        code=None if result.error is None else result.error.code.value,
        rule=None if result.error is None else result.error.rule,
        image_digest=result.provenance.image_digest,
        result_digest=result_digest(result),
        usage=None if result.usage is None else _usage(result.usage),
    )


def _usage(usage: Usage) -> AuditUsage:
    return AuditUsage(
        wall_ms=usage.wall_ms,
        cpu_ms=usage.cpu_ms,
        peak_memory_bytes=usage.peak_memory_bytes,
        output_bytes=usage.output_bytes,
        egress_bytes=usage.egress_bytes,
        cost_micro=usage.cost_micro,
    )
