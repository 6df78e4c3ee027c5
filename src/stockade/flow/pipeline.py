"""One call, end to end: the ten stages of docs/design.md in their order.

    1 receive (the edge)   2 schema         3 verify and authorize   4 compile     5 claim
    6 sandbox              7 run            8 shape                  9 settle      10 reply (the edge)

After 4 is the gate (flow.gate): a person's approval where one is needed, and the budgets. A call
whose name is done already gets its stored result before it (`claims`). Stages 5 to 8 are carried out
by `carrying`, which writes the claim. A read has no claim; its record is kept when it is done.

A stage that refuses raises `Failure`; it becomes a result here and nowhere else, and no other
exception leaves. Until the claim is written nothing has happened, so an unexpected fault is
`unavailable: internal`; after it the effect is in doubt, and the answer says `unknown: in_doubt`.
Nothing is retried from there on.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Final

from stockade.decide.authorize import authorize, path_scope
from stockade.decide.policy import Policy
from stockade.decide.replay import check_replay
from stockade.flow.auditing import Auditor, referring
from stockade.flow.calls import Prepared, ToolRequest, claim_of, name_call, patience_s, replayed
from stockade.flow.carrying import Carrier
from stockade.flow.claims import Claims
from stockade.flow.gate import NOTHING_RAN, Gate
from stockade.flow.leases import Leases
from stockade.flow.places import Places
from stockade.flow.plans import Plans
from stockade.flow.progress import Origin, Progress
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.terms.call import ExecOperation, Permit
from stockade.terms.fault import Code, Failure, Fault, Status
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import ArtifactStore, Clock
from stockade.terms.result import EngineRef, ToolResult
from stockade.terms.stage import Stage
from stockade.tools import catalog, shape
from stockade.tools.clean import clean_result
from stockade.tools.definition import MAX_ARTIFACT_BYTES, AnyTool, CallLimits
from stockade.tools.program import RUN
from stockade.tools.redact import Findings
from stockade.tools.settle import Probe

_log: Final = logging.getLogger("stockade.call")


class Pipeline:
    """Thread-safe; a call runs in its caller's thread."""

    def __init__(
        self,
        *,
        leases: Leases,
        running: Running,
        places: Places,
        sandboxes: Sandboxes,
        artifacts: ArtifactStore,
        gate: Gate,
        claims: Claims,
        audit: Auditor,
        secrets: Secrets,
        policy: Policy,
        image_env: Mapping[str, Mapping[str, str]],
        verify: Callable[[str, float], Permit],
        engine: EngineRef,
        clock: Clock,
        version: str,
        fault_point: Callable[[str], None],
    ) -> None:
        """`image_env` are the variables of each image. `fault_point(name)` is called between
        stages; outside of tests it does nothing."""
        self._leases = leases
        self._sandboxes = sandboxes
        self._claims = claims
        self._audit = audit
        self._secrets = secrets
        self._plans = Plans(policy, image_env)
        self._verify = verify
        self._clock = clock
        self._origin = Origin(engine, version)
        self._fault_point = fault_point
        self._carrier = Carrier(
            leases=leases,
            running=running,
            places=places,
            sandboxes=sandboxes,
            artifacts=artifacts,
            gate=gate,
            secrets=secrets,
            origin=self._origin,
            clock=clock,
            boottime=claims.boottime,
            fault_point=fault_point,
        )

    def call(self, request: ToolRequest) -> ToolResult:
        progress = Progress(self._clock())
        return self._answered(
            request,
            progress,
            lambda: self._stages(request, progress),
            lambda result: self._refused(request, progress, result),
        )

    def _answered(
        self,
        request: ToolRequest,
        progress: Progress,
        stages: Callable[[], ToolResult],
        told: Callable[[ToolResult], ToolResult] = lambda result: result,
    ) -> ToolResult:
        """Every fault as a result, after `told` has seen it."""
        try:
            return stages()
        except Failure as error:
            return told(self._refuse(request, progress, error.fault))
        except Exception:
            _log.exception("request_id=%s a fault of Stockade", request.request_id)
            code = Code.IN_DOUBT if progress.effect_began else Code.INTERNAL
            fault = Fault(code, f"a fault of Stockade; see its log for {request.request_id}")
            return told(self._refuse(request, progress, fault))

    def _stages(self, request: ToolRequest, progress: Progress) -> ToolResult:
        request.mark(Stage.SCHEMA)
        with suppress(Failure):  # before what came is read: whatever refuses it hides its secrets
            progress.lease = self._leases.show(request.tenant, request.lease)
        tool = progress.tool = catalog.get(request.tool)
        arguments, progress.coerced = catalog.parse_arguments(tool, request.arguments)
        self._fault_point("parsed")
        request.mark(Stage.AUTHORIZE)
        record = progress.lease or self._leases.show(request.tenant, request.lease)
        named = name_call(request, tool, record)
        token = self._leases.own_token(record) if request.token is None else request.token
        permit = progress.permit = self._verify(token, self._clock())
        record = progress.lease = self._leases.admit(record.id, permit)
        values = progress.arguments = arguments.model_dump(mode="json")
        authorize(permit, tool.name, tool.rights(arguments), values, record)
        request.mark(Stage.COMPILE)
        operation = tool.operation(arguments, self._limits(tool, record, permit))
        if isinstance(operation, ExecOperation):
            progress.plan, progress.digest = self._plans.plan(record, permit, operation.kind)
        call = Prepared(named, tool, arguments, values, record, permit, operation, progress.digest)
        self._fault_point("compiled")
        redactor = self._secrets.redactor(record)
        request.mark(Stage.CLAIM)
        if tool.probe is Probe.NONE:
            result = self._answered(
                request, progress, lambda: self._carrier.carry(request, progress, call, None)
            )
            if result.status in NOTHING_RAN or not progress.begun:
                return self._refused(request, progress, result)
            request.mark(Stage.SETTLE)
            outcome = self._audit.outcome(progress.facts(request), result)
            self._claims.note(claim_of(request, call, self._claims, redactor), result, outcome)
            return result
        drawn = request.call_id is None
        with self._claims.hold(named.id, named.key, patience_s(operation), drawn=drawn) as slot:
            if slot.done is not None:
                scope = path_scope(permit, tool.name)
                check_replay(permit, scope, progress.digest, slot.done, record.id)
                return replayed(slot.done, request.request_id)
            slot.record = claim_of(request, call, self._claims, redactor)
            intent = slot.intent = self._audit.intent(progress.facts(request))
            result = self._answered(
                request, progress, lambda: self._carrier.carry(request, progress, call, slot)
            )
            self._fault_point("shaped")
            if slot.unused(result):
                return self._refused(request, progress, result)
            request.mark(Stage.SETTLE)
            # Cancelled while it waited: no effect to record, but a repeat must not start it either.
            ended = (
                self._audit.outcome_of(intent, result)
                if progress.begun
                else self._audit.refusal(progress.facts(request), result)
            )
            place = slot.settle(result, ended)
            if slot.given is not None:
                self._sandboxes.forget(*slot.given)
            self._fault_point("settled")
        return result if place is None else referring(result, place)

    def _limits(self, tool: AnyTool, record: LeaseRecord, permit: Permit) -> CallLimits:
        # Only where it is asked for: it comes of a command's plan, and what no command can be held
        # to (a limit below the least, a denial outside of the trees) is no matter of file tools.
        programs = tool is RUN
        return CallLimits(
            wall_limit_ms=permit.grant.per_call.wall_ms,
            artifact_bytes=min(permit.grant.per_call.output_bytes, MAX_ARTIFACT_BYTES),
            search_path=self._plans.search_path(record, permit) if programs else (),
        )

    def _refuse(self, request: ToolRequest, progress: Progress, fault: Fault) -> ToolResult:
        result = shape.fault_result(fault, progress.frame(request, self._origin, self._clock()))
        return clean_result(result, self._secrets.redactor(progress.lease), Findings())

    def _refused(self, request: ToolRequest, progress: Progress, result: ToolResult) -> ToolResult:
        """Recorded, unless something may have happened: that is recorded when it is known."""
        if result.status is Status.UNKNOWN:
            return result
        return self._audit.refused(progress.facts(request), result)
