"""One call, end to end: the ten stages of docs/design.md in their order.

    1 receive (the edge)   2 schema         3 verify and authorize   4 compile     5 claim
    6 sandbox              7 run            8 shape                  9 settle      10 reply (the edge)

Between 4 and 5 is the gate (flow.gate): a person's approval where one is needed, and the budgets.
A call whose name is done already gets its stored result before it (`claims`). A read has no claim;
its record is kept when it is done.

A stage that refuses raises `Failure`; it becomes a result here and nowhere else, and no other
exception leaves. Until stage 7 begins nothing has happened, so an unexpected fault is
`unavailable: internal`; after it the effect is in doubt, and the answer says `unknown: in_doubt`.
Nothing is retried from stage 7 on.

A call holds a place in `Running` before it asks whether its lease is there, so a reset or release
that comes between waits for it or cancels it.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from functools import partial
from typing import Final

from stockade.decide.authorize import authorize, path_scope
from stockade.decide.policy import Policy
from stockade.decide.replay import check_replay
from stockade.flow.calls import Prepared, claim_of, name_call, patience_s, replayed
from stockade.flow.calls import ToolRequest as ToolRequest
from stockade.flow.claims import Claims, Slot
from stockade.flow.gate import NOTHING_RAN, Gate
from stockade.flow.leases import Leases
from stockade.flow.plans import Plans
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.spending import Bill
from stockade.terms.call import EditOperation, ExecOperation, Permit, ViewOperation
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.ids import CallRef
from stockade.terms.lease import LeaseRecord
from stockade.terms.outcome import EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import ArtifactStore, CancelSignal, Clock, ExecContext
from stockade.terms.result import EngineRef, Provenance, ToolResult
from stockade.tools import catalog, shape
from stockade.tools.definition import MAX_ARTIFACT_BYTES, AnyTool, CallLimits
from stockade.tools.settle import Probe

_log: Final = logging.getLogger("stockade.call")


@dataclass(slots=True)
class _Progress:
    """What is known of a call so far; a fault at any stage is answered with all of it."""

    started_at: float
    tool: AnyTool | None = None
    coerced: tuple[str, ...] = ()
    lease: LeaseRecord | None = None
    permit: Permit | None = None
    plan: SandboxPlan | None = None
    digest: str | None = None
    bill: Bill | None = None
    effect_began: bool = False


class Pipeline:
    """Thread-safe; a call runs in its caller's thread."""

    def __init__(
        self,
        *,
        leases: Leases,
        running: Running,
        sandboxes: Sandboxes,
        artifacts: ArtifactStore,
        gate: Gate,
        claims: Claims,
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
        self._running = running
        self._sandboxes = sandboxes
        self._artifacts = artifacts
        self._gate = gate
        self._claims = claims
        self._plans = Plans(policy, image_env)
        self._verify = verify
        self._engine = engine
        self._clock = clock
        self._version = version
        self._fault_point = fault_point

    def call(self, request: ToolRequest) -> ToolResult:
        progress = _Progress(self._clock())
        return self._answered(request, progress, lambda: self._stages(request, progress))

    def _answered(
        self, request: ToolRequest, progress: _Progress, stages: Callable[[], ToolResult]
    ) -> ToolResult:
        """Every fault as a result."""
        try:
            return stages()
        except Failure as error:
            return self._refuse(request, progress, error.fault)
        except Exception:
            _log.exception("request_id=%s a fault of Stockade", request.request_id)
            code = Code.IN_DOUBT if progress.effect_began else Code.INTERNAL
            fault = Fault(code, f"a fault of Stockade; see its log for {request.request_id}")
            return self._refuse(request, progress, fault)

    def _stages(self, request: ToolRequest, progress: _Progress) -> ToolResult:
        tool = progress.tool = catalog.get(request.tool)
        arguments, progress.coerced = catalog.parse_arguments(tool, request.arguments)
        self._fault_point("parsed")
        record = progress.lease = self._leases.show(request.tenant, request.lease)
        named = name_call(request, tool, record)
        token = record.token if request.token is None else request.token
        permit = progress.permit = self._verify(token, self._clock())
        record = progress.lease = self._leases.admit(record.id, permit)
        values = arguments.model_dump(mode="json")
        authorize(permit, tool.name, tool.rights(arguments), values, record)
        operation = tool.operation(arguments, self._limits(record, permit))
        if isinstance(operation, ExecOperation):
            progress.plan, progress.digest = self._plans.plan(record, permit, operation.kind)
        call = Prepared(named, tool, arguments, values, record, permit, operation, progress.digest)
        self._fault_point("compiled")
        if tool.probe is Probe.NONE:
            result = self._answered(
                request, progress, lambda: self._carried(request, progress, call, None)
            )
            self._claims.note(claim_of(request, call, self._claims), result)
            return result
        with self._claims.hold(named.id, named.key, patience_s(operation)) as slot:
            if slot.done is not None:
                scope = path_scope(permit, tool.name)
                check_replay(permit, scope, progress.digest, slot.done, record.id)
                return replayed(slot.done, request.request_id)
            slot.record = claim_of(request, call, self._claims)
            result = self._answered(
                request, progress, lambda: self._carried(request, progress, call, slot)
            )
            self._fault_point("shaped")
            slot.settle(result)
            if slot.given is not None:
                self._sandboxes.forget(*slot.given)
            self._fault_point("settled")
        return result

    def _carried(
        self, request: ToolRequest, progress: _Progress, call: Prepared, slot: Slot | None
    ) -> ToolResult:
        """Stages 5 to 8, in one of the lease's places."""
        permit, operation, tool = call.permit, call.operation, call.tool
        with self._running.enter(
            call.lease.id,
            request.request_id,
            request.call_id,
            permit.grant.per_lease.parallel,
            request.turn,
            permit.chain,
        ) as cancel:
            record = progress.lease = self._leases.admit(call.lease.id, permit)
            with self._gate.open(
                permit, record, tool.name, call.values, command=progress.plan is not None
            ) as bill:
                progress.bill = bill
                self._fault_point("admitted")
                if slot is not None and isinstance(operation, ExecOperation):
                    slot.begin()
                self._fault_point("claimed")
                outcome = self._carry_out(request, progress, record, call, cancel, slot)
                self._fault_point("ran")
                shaped = tool.shape(call.arguments, outcome)
                if shaped.status in NOTHING_RAN:
                    bill.give_back()
                else:
                    bill.end(outcome.cpu_ms if isinstance(outcome, ExecOutcome) else 0)
            return shape.shape_result(
                shaped,
                self._frame(request, progress),
                outcome if isinstance(outcome, ExecOutcome) else None,
                operation.timeout_ms if isinstance(operation, ExecOperation) else None,
            )

    def _carry_out(
        self,
        request: ToolRequest,
        progress: _Progress,
        record: LeaseRecord,
        call: Prepared,
        cancel: CancelSignal,
        slot: Slot | None,
    ) -> ExecOutcome | ViewOutcome | EditOutcome:
        """Stages 6 and 7."""
        permit, operation = call.permit, call.operation
        workspace = self._leases.workspace(record)
        scope = path_scope(permit, request.tool)
        bill = progress.bill
        assert bill is not None
        bill.began = True
        if isinstance(operation, ViewOperation):
            return workspace.files.view(operation, scope)
        if isinstance(operation, EditOperation):
            assert slot is not None
            begun = partial(self._foreseen, progress, slot)
            return workspace.files.edit(operation, scope, begun)
        if operation.searches is not None:
            workspace.files.look(operation.searches, scope)
        assert progress.plan is not None
        assert progress.digest is not None
        context = ExecContext(
            lease_id=record.id,
            cancel=cancel,
            artifacts=self._artifacts,
            tee=request.tee,
            stdin=request.stdin,
            cpu=bill.meter,
            starting=None if slot is None else partial(self._starting, slot),
        )
        at_most = permit.grant.per_lease.sandboxes
        with self._sandboxes.use(
            workspace.tree, progress.plan, progress.digest, at_most
        ) as sandbox:
            self._fault_point("sandbox")
            progress.effect_began = bill.runs = True
            outcome = sandbox.execute(operation, context)
        return outcome if bill.shortage is None else replace(outcome, shortage=bill.shortage)

    def _foreseen(self, progress: _Progress, slot: Slot, edit: EditOutcome) -> None:
        """Stage 5 of an edit: what it is going to do is known here, and nothing is done yet."""
        slot.foresee(edit)
        progress.effect_began = True
        self._fault_point("foreseen")

    def _starting(self, slot: Slot, sandbox: str, guest_call: str) -> None:
        slot.started(sandbox, guest_call)
        self._fault_point("starting")

    def _limits(self, record: LeaseRecord, permit: Permit) -> CallLimits:
        env: tuple[tuple[str, str], ...] = ()
        if permit.grant.scope.execute:
            env = self._plans.plan(record, permit, Kind.COMMAND)[0].env
        path = dict(env).get("PATH", "")
        return CallLimits(
            wall_limit_ms=permit.grant.per_call.wall_ms,
            artifact_bytes=min(permit.grant.per_call.output_bytes, MAX_ARTIFACT_BYTES),
            search_path=tuple(p.encode() for p in path.split(":") if p.startswith("/")),
        )

    def _frame(self, request: ToolRequest, progress: _Progress) -> shape.Frame:
        lease, permit, plan = progress.lease, progress.permit, progress.plan
        return shape.Frame(
            request_id=request.request_id,
            call=CallRef(
                lease_id=lease.id if lease else None,
                trajectory_id=lease.trajectory if lease else None,
                turn=request.turn,
                call_id=request.call_id,
                tool=request.tool,
            ),
            tool=progress.tool,
            connect=bool(permit and permit.grant.scope.connect),
            coerced=progress.coerced,
            started_at=progress.started_at,
            finished_at=self._clock(),
            cost_micro=progress.bill.cost_micro if progress.bill else None,
            provenance=Provenance(
                trust="untrusted",
                lease_id=lease.id if lease else None,
                generation=lease.generation if lease else None,
                plan_digest=progress.digest,
                capability_chain=list(permit.chain) if permit else [],
                image_digest=None,
                workspace_version=str(lease.workspace_version) if lease else None,
                engine=self._engine,
                profile=plan.profile if plan else None,
                stockade_version=self._version,
            ),
        )

    def _refuse(self, request: ToolRequest, progress: _Progress, fault: Fault) -> ToolResult:
        return shape.fault_result(fault, self._frame(request, progress))
