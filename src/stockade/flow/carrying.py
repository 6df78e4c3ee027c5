"""Carrying a call out: stages 5 to 8 of the pipeline.

In its place among the lease's calls and the host's, through the gate, and on the lease's files or in
the sandbox that its plan names; then its outcome is shaped, without secrets. The claim is written
here, as late as possible, through the call's slot: of a command when the process is known that waits
to become it, of an edit when it is known what it will change.

A call holds a place in `Running` before it asks whether its lease is there, so a reset or release
that comes between waits for it or cancels it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from functools import partial

from stockade.decide.authorize import path_scope
from stockade.flow.calls import Prepared, ToolRequest
from stockade.flow.claims import Slot
from stockade.flow.gate import NOTHING_RAN, Gate
from stockade.flow.leases import Leases
from stockade.flow.places import Places
from stockade.flow.progress import Origin, Progress
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.flow.showing import keep_raw
from stockade.terms.call import EditOperation, ExecOperation, ViewOperation
from stockade.terms.fault import Code
from stockade.terms.lease import LeaseRecord
from stockade.terms.outcome import EditOutcome, End, ExecOutcome, ViewOutcome
from stockade.terms.patience import GRACE_S, CancelSignal, Patience
from stockade.terms.plan import Kind
from stockade.terms.ports import ArtifactStore, Clock, ExecContext
from stockade.terms.result import ToolResult
from stockade.terms.stage import Stage
from stockade.tools import shape
from stockade.tools.clean import clean_edit, clean_outcome, clean_result
from stockade.tools.redact import Findings
from stockade.tools.shell import BASH_EXECUTE


class Carrier:
    """Thread-safe. `boottime` is a clock that nobody sets, in seconds."""

    def __init__(
        self,
        *,
        leases: Leases,
        running: Running,
        places: Places,
        sandboxes: Sandboxes,
        artifacts: ArtifactStore,
        gate: Gate,
        secrets: Secrets,
        origin: Origin,
        clock: Clock,
        boottime: Callable[[], float],
        fault_point: Callable[[str], None],
    ) -> None:
        self._leases = leases
        self._running = running
        self._places = places
        self._sandboxes = sandboxes
        self._artifacts = artifacts
        self._gate = gate
        self._secrets = secrets
        self._origin = origin
        self._clock = clock
        self._boottime = boottime
        self._fault_point = fault_point

    def carry(
        self, request: ToolRequest, progress: Progress, call: Prepared, slot: Slot | None
    ) -> ToolResult:
        """In one of the lease's places and one of the host's. Who can't have one of those before
        its call would be over at the latest need not wait for it."""
        permit, operation, tool = call.permit, call.operation, call.tool
        at_most_s = operation.timeout_ms / 1000 if isinstance(operation, ExecOperation) else None
        request.mark(Stage.QUEUE)
        with (
            self._running.enter(
                call.lease.id,
                request.request_id,
                request.call_id,
                permit.grant.per_lease.parallel,
                request.turn,
                permit.chain,
            ) as cancel,
            self._places.hold(call.lease.tenant, cancel, at_most_s),
        ):
            request.mark(Stage.CLAIM)
            record = progress.lease = self._leases.admit(call.lease.id, permit)
            with self._gate.open(
                permit, record, tool.name, call.values, command=progress.plan is not None
            ) as bill:
                progress.bill = bill
                self._fault_point("admitted")
                outcome = self._carry_out(request, progress, record, call, cancel, slot)
                self._fault_point("ran")
                request.mark(Stage.SHAPE)
                findings = Findings()
                redactor = self._secrets.redactor(record)
                if progress.plan is None or progress.plan.kind is Kind.COMMAND:
                    outcome = clean_outcome(outcome, redactor, findings)
                shaped = tool.shape(call.arguments, outcome)
                if tool is BASH_EXECUTE and progress.digest is not None:
                    lost = shaped.fault is not None and shaped.fault.code is Code.SHELL_NOT_FOUND
                    self._sandboxes.mark(record.id, progress.digest, broken=lost)
                started = not isinstance(outcome, ExecOutcome) or outcome.end is not End.NOT_FOUND
                if shaped.status in NOTHING_RAN or not started:
                    bill.give_back()
                else:
                    bill.end(outcome.cpu_ms if isinstance(outcome, ExecOutcome) else 0)
            result = shape.shape_result(
                shaped,
                progress.frame(request, self._origin, self._clock()),
                outcome if isinstance(outcome, ExecOutcome) else None,
                operation.timeout_ms if isinstance(operation, ExecOperation) else None,
            )
            result = clean_result(result, redactor, findings)
            if findings.invisible and isinstance(operation, ExecOperation):
                result = keep_raw(result, outcome, operation.capture, self._artifacts)
            return result

    def _carry_out(
        self,
        request: ToolRequest,
        progress: Progress,
        record: LeaseRecord,
        call: Prepared,
        cancel: CancelSignal,
        slot: Slot | None,
    ) -> ExecOutcome | ViewOutcome | EditOutcome:
        """Stages 6 and 7."""
        request.mark(Stage.SANDBOX)
        permit, operation = call.permit, call.operation
        workspace = self._leases.workspace(record)
        scope = path_scope(permit, request.tool)
        bill = progress.bill
        assert bill is not None
        bill.began = True
        if isinstance(operation, ViewOperation):
            request.mark(Stage.RUN)
            return workspace.files.view(operation, scope)
        if isinstance(operation, EditOperation):
            request.mark(Stage.RUN)
            assert slot is not None
            begun = partial(self._foreseen, progress, slot)
            return workspace.files.edit(operation, scope, begun)
        if operation.searches is not None:
            workspace.files.look(operation.searches, scope)
        assert progress.plan is not None
        assert progress.digest is not None
        if slot is not None and slot.record is not None:
            slot.record = bill.noted(slot.record)
        context = ExecContext(
            lease_id=record.id,
            cancel=cancel,
            artifacts=self._artifacts,
            tee=request.tee,
            stdin=request.stdin,
            cpu=bill.meter,
            starting=None if slot is None else partial(self._starting, progress, slot),
        )
        env = self._secrets.environment(record) if operation.kind is Kind.COMMAND else ()
        if env:
            # Beside the plan, which is written down, named by its digest and shown.
            operation = replace(operation, env=env)
        at_most = permit.grant.per_lease.sandboxes
        patience = Patience(cancel, operation.timeout_ms / 1000 + GRACE_S, self._boottime)
        with self._sandboxes.use(
            workspace.tree, progress.plan, progress.digest, at_most, patience
        ) as sandbox:
            self._fault_point("sandbox")
            request.mark(Stage.RUN)
            bill.runs = slot is None
            outcome = sandbox.execute(operation, context)
        return outcome if bill.shortage is None else replace(outcome, shortage=bill.shortage)

    def _foreseen(self, progress: Progress, slot: Slot, edit: EditOutcome) -> None:
        """Stage 5 of an edit: what it is going to do is known here, and nothing is done yet."""
        slot.foresee(clean_edit(edit, self._secrets.redactor(progress.lease), Findings()))
        progress.effect_began = True
        self._fault_point("foreseen")

    def _starting(self, progress: Progress, slot: Slot, sandbox: str, guest_call: str) -> None:
        """Stage 5 of a command: the process that is to become it is known here, and waits."""
        assert progress.bill is not None
        slot.start(sandbox, guest_call)
        progress.bill.claim_id = slot.name
        progress.effect_began = progress.bill.runs = True
        self._fault_point("starting")
