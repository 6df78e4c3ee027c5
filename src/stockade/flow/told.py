"""Results of calls that are known from their claims only."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from stockade.decide.canonical import parse_strict
from stockade.decide.idempotency import is_drawn
from stockade.terms.claim import ClaimRecord
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.ids import CallRef
from stockade.terms.outcome import EditOutcome, ExecOutcome
from stockade.terms.ports import Clock
from stockade.terms.result import EngineRef, Provenance, ToolResult, Warn, Warning
from stockade.tools import catalog, shape
from stockade.tools.clean import clean_outcome, clean_result
from stockade.tools.definition import Shaped
from stockade.tools.redact import Findings, Redactor

_MAX_ARGUMENTS: Final = 1 << 26  # they were accepted once


class Teller:
    """`engine` and `version` are those of now; `redactor` gives what hides a lease's secrets."""

    def __init__(
        self,
        engine: EngineRef,
        clock: Clock,
        version: str,
        redactor: Callable[[str], Redactor],
    ) -> None:
        self._redactor = redactor
        self._engine = engine
        self._clock = clock
        self._version = version

    def result(
        self,
        record: ClaimRecord,
        outcome: ExecOutcome | EditOutcome,
        cost_micro: int | None = None,
    ) -> ToolResult:
        """As the call itself would have answered. `cost_micro` is None where it is not known."""
        tool = catalog.get(record.tool)
        given = parse_strict(record.arguments.encode(), _MAX_ARGUMENTS)
        try:
            arguments, coerced = catalog.parse_arguments(tool, given)
        except Failure:
            assert isinstance(given, dict)
            # They were accepted as they came: here a mark may stand for what made two texts differ.
            arguments, coerced = tool.arguments.model_construct(**given), ()
        redactor, findings = self._redactor(record.lease_id), Findings()
        clean = clean_outcome(outcome, redactor, findings)
        result = shape.shape_result(
            tool.shape(arguments, clean),
            self._frame(record, coerced, cost_micro),
            outcome if isinstance(outcome, ExecOutcome) else None,
            record.wall_limit_ms,
        )
        return clean_result(result, redactor, findings)

    def in_doubt(self, record: ClaimRecord, reason: str) -> ToolResult:
        fault = Fault(
            Code.IN_DOUBT, f"the call was cut off: {reason}", details={"claim": record.id}
        )
        return shape.fault_result(fault, self._frame(record))

    def hidden(self, record: ClaimRecord, text: str) -> str:
        """What a person wrote of a call, without the secrets of its lease."""
        return self._redactor(record.lease_id).text(text, Findings())

    def by_hand(self, record: ClaimRecord, by: str, reason: str) -> ToolResult:
        """Of a call that a person says has been executed: nothing else is known of it."""
        said = f"settled as completed by {by}: {reason}"
        shaped = Shaped(warnings=(Warning(code=Warn.SETTLED, message=said, count=1),))
        result = shape.shape_result(shaped, self._frame(record), None, record.wall_limit_ms)
        return clean_result(result, self._redactor(record.lease_id), Findings())

    def _frame(
        self,
        record: ClaimRecord,
        coerced: tuple[str, ...] = (),
        cost_micro: int | None = None,
    ) -> shape.Frame:
        return shape.Frame(
            request_id=record.request_id,
            call=call_ref(record),
            tool=catalog.get(record.tool),
            connect=False,
            coerced=coerced,
            started_at=record.created_at_s,
            finished_at=self._clock(),
            cost_micro=cost_micro,
            provenance=Provenance(
                trust="untrusted",
                lease_id=record.lease_id,
                generation=record.generation,
                plan_digest=record.plan_digest,
                capability_chain=list(record.chain),
                image_digest=None,
                workspace_version=str(record.workspace_version),
                engine=self._engine,
                profile=None,
                stockade_version=self._version,
            ),
        )


def call_ref(record: ClaimRecord) -> CallRef:
    return CallRef(
        lease_id=record.lease_id,
        trajectory_id=record.trajectory,
        turn=record.turn,
        call_id=given_id(record),
        tool=record.tool,
    )


def given_id(record: ClaimRecord) -> str | None:
    """The call id as its caller gave it."""
    return None if is_drawn(record.call_id) else record.call_id
