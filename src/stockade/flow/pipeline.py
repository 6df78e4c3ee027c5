"""One call, end to end: the ten stages of docs/design.md in their order.

    1 receive (the edge)   2 schema         3 verify and authorize   4 compile     5 claim
    6 sandbox              7 run            8 shape                  9 settle      10 reply (the edge)

Between 4 and 5 is the gate (flow.gate): a person's approval where one is needed, and the budgets.

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
from typing import Final

from pydantic import JsonValue

from stockade.decide.authorize import authorize, path_scope
from stockade.decide.policy import Policy
from stockade.flow.gate import NOTHING_RAN, Gate
from stockade.flow.leases import Leases
from stockade.flow.plans import Plans
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.spending import Bill
from stockade.terms.call import EditOperation, ExecOperation, Operation, Permit, ViewOperation
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.ids import CallRef
from stockade.terms.lease import LeaseRecord
from stockade.terms.outcome import EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import ArtifactStore, CancelSignal, Clock, ExecContext, Tee
from stockade.terms.result import EngineRef, Provenance, ToolResult
from stockade.tools import catalog, shape
from stockade.tools.definition import MAX_ARTIFACT_BYTES, AnyTool, CallLimits

_log: Final = logging.getLogger("stockade.call")


@dataclass(frozen=True, slots=True)
class ToolRequest:
    """A call as the edge received it. `tenant` is the peer's, None for an operator; `token` None
    means that the peer has the daemon's own uid and acts under the lease's capability."""

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
        self._plans = Plans(policy, image_env)
        self._verify = verify
        self._engine = engine
        self._clock = clock
        self._version = version
        self._fault_point = fault_point

    def call(self, request: ToolRequest) -> ToolResult:
        progress = _Progress(self._clock())
        try:
            return self._stages(request, progress)
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
        token = record.token if request.token is None else request.token
        permit = progress.permit = self._verify(token, self._clock())
        with self._running.enter(
            record.id,
            request.request_id,
            request.call_id,
            permit.grant.per_lease.parallel,
            request.turn,
            permit.chain,
        ) as cancel:
            record = progress.lease = self._leases.admit(record.id, permit)
            values = arguments.model_dump(mode="json")
            authorize(permit, tool.name, tool.rights(arguments), values, record)
            limits = self._limits(record, permit)
            operation = tool.operation(arguments, limits)
            if isinstance(operation, ExecOperation):
                progress.plan, progress.digest = self._plans.plan(record, permit, operation.kind)
            self._fault_point("compiled")
            with self._gate.open(
                permit, record, tool.name, values, command=progress.plan is not None
            ) as bill:
                progress.bill = bill
                self._fault_point("admitted")
                self._claim()
                outcome = self._carry_out(request, progress, record, permit, operation, cancel)
                self._fault_point("ran")
                shaped = tool.shape(arguments, outcome)
                if shaped.status in NOTHING_RAN:
                    bill.give_back()
                else:
                    bill.end(outcome.cpu_ms if isinstance(outcome, ExecOutcome) else 0)
            result = shape.shape_result(
                shaped,
                self._frame(request, progress),
                outcome if isinstance(outcome, ExecOutcome) else None,
                operation.timeout_ms if isinstance(operation, ExecOperation) else None,
            )
            self._settle()
            self._fault_point("settled")
        return result

    def _claim(self) -> None:
        """Stage 5. Nothing is recorded: a repeated call id runs again (SPEC.md says so)."""

    def _settle(self) -> None:
        """Stage 9. Nothing is recorded."""

    def _carry_out(
        self,
        request: ToolRequest,
        progress: _Progress,
        record: LeaseRecord,
        permit: Permit,
        operation: Operation,
        cancel: CancelSignal,
    ) -> ExecOutcome | ViewOutcome | EditOutcome:
        """Stages 6 and 7."""
        workspace = self._leases.workspace(record)
        scope = path_scope(permit, request.tool)
        bill = progress.bill
        assert bill is not None
        bill.began = True
        if isinstance(operation, ViewOperation):
            return workspace.files.view(operation, scope)
        if isinstance(operation, EditOperation):
            return workspace.files.edit(operation, scope)
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
        )
        at_most = permit.grant.per_lease.sandboxes
        with self._sandboxes.use(
            workspace.tree, progress.plan, progress.digest, at_most
        ) as sandbox:
            self._fault_point("sandbox")
            progress.effect_began = bill.runs = True
            outcome = sandbox.execute(operation, context)
        return outcome if bill.shortage is None else replace(outcome, shortage=bill.shortage)

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
