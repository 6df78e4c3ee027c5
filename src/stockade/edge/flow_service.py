"""The service behind the API: each method is one step into the flow and one reply out of it.

What a peer may touch is decided here from its credential: a tenant's peer sees its own leases, an
operator all of them. Calls need a token, except from a peer with the daemon's own uid, which could
read the keys anyway and acts under the lease's own capability.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from stockade.decide.authorize import authorize, path_scope
from stockade.edge.audit_service import AuditService
from stockade.edge.authority_service import AuthorityService
from stockade.edge.budget_service import BudgetService
from stockade.edge.claim_service import ClaimService
from stockade.edge.doctor import doctor_report
from stockade.edge.lease_service import LeaseService
from stockade.edge.secret_service import SecretService
from stockade.edge.server.config import Defaults
from stockade.edge.service import Context
from stockade.edge.watch_service import WatchService
from stockade.edge.wire import (
    ArtifactRange,
    CallRequest,
    CancelRequest,
    DoctorReport,
    RunRequest,
)
from stockade.flow.approvals import Approvals
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.calls import ToolRequest
from stockade.flow.gate import Gate
from stockade.flow.leases import Leases
from stockade.flow.minting import Minter
from stockade.flow.pipeline import Pipeline
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.flow.settlement import Settlement
from stockade.flow.spending import Spending
from stockade.terms.audit import AuditKind
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import ArtifactStore, Clock, PathScope, Tee, Workspace
from stockade.terms.result import EngineRef, ToolResult
from stockade.tools.arguments import object_of


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service stands on."""

    leases: Leases
    pipeline: Pipeline
    running: Running
    sandboxes: Sandboxes
    artifacts: ArtifactStore
    authority: Authority
    minter: Minter
    spending: Spending
    approvals: Approvals
    gate: Gate
    settlement: Settlement
    audit: Auditor
    audit_key: bytes
    secrets: Secrets
    engine: EngineRef
    state_dir: str
    defaults: Defaults
    watching: WatchService
    clock: Clock
    version: str


class FlowService:
    """Implements `edge.service.Service`. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts
        self.watching = parts.watching
        self.authority = AuthorityService(parts.authority, parts.minter, parts.audit, parts.clock)
        self.audit = AuditService(parts.audit, parts.audit_key, parts.secrets.hide_all)
        self.claims = ClaimService(parts.settlement, parts.leases, parts.authority, parts.clock)
        self.budgets = BudgetService(
            parts.spending,
            parts.approvals,
            parts.authority,
            parts.leases,
            parts.audit,
            parts.clock,
        )
        self.secrets = SecretService(
            parts.secrets, parts.authority, parts.leases, parts.audit, parts.clock
        )
        self.leases = LeaseService(
            parts.leases,
            parts.authority,
            parts.audit,
            parts.secrets,
            defaults=parts.defaults,
            engine=parts.engine,
            state_dir=parts.state_dir,
            broken=parts.sandboxes.broken,
            clock=parts.clock,
            version=parts.version,
        )

    def call(self, context: Context, request: CallRequest) -> ToolResult:
        return self._call(context, request, request.tool, request.arguments)

    def run(self, context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        arguments: dict[str, JsonValue] = {"argv": list(request.argv)}
        if request.timeout_ms is not None:
            arguments["timeout_ms"] = request.timeout_ms
        return self._call(context, request, "run", arguments, tee, stdin)

    def _call(
        self,
        context: Context,
        request: CallRequest | RunRequest,
        tool: str,
        arguments: dict[str, JsonValue],
        tee: Tee | None = None,
        stdin: int | None = None,
    ) -> ToolResult:
        return self._parts.pipeline.call(
            ToolRequest(
                request_id=context.request_id,
                lease=request.lease,
                tool=tool,
                arguments=arguments,
                turn=request.turn,
                call_id=request.call_id,
                tenant=context.peer.tenant,
                token=context.call_token(),
                tee=tee,
                stdin=stdin,
                idempotency_key=request.idempotency_key,
                who=context.who,
                mark=context.watch.mark,
            )
        )

    def cancel(self, context: Context, request: CancelRequest) -> int:
        record, permit = self._permitted(context, request.lease)
        found = self._parts.running.cancel(record.id, request.call_id, request.turn)
        if found:
            # After the effect: a disk that is full must not keep a command alive.
            self._parts.audit.note_of_lease(
                AuditKind.CALL_CANCELLED,
                context.who,
                record,
                chain=permit.chain,
                turn=request.turn,
                call_id=request.call_id,
                detail={"calls": found},
            )
        return found

    def read_file(self, context: Context, lease: str, path: str) -> tuple[int, Iterator[bytes]]:
        path = _object(path)
        with self._workspace(context, lease, Right("read", path)) as (workspace, scope):
            return workspace.files.read(path, scope)

    def write_file(self, context: Context, lease: str, path: str, content: Iterator[bytes]) -> str:
        path = _object(path)
        with self._workspace(context, lease, Right("write", path)) as (workspace, scope):
            return workspace.files.write(path, content, scope)

    def read_artifact(self, context: Context, request: ArtifactRange) -> bytes:
        record, permit = self._permitted(context, request.lease)
        self.claims.check_artifact(permit, record, request.id)
        data = self._parts.artifacts.read(record.id, request.id, request.offset, request.length)
        if data:  # whoever reads to the end asks once more
            detail = request.model_dump(exclude={"lease"})
            self._parts.audit.note_of_lease(
                AuditKind.ARTIFACT_READ, context.who, record, chain=permit.chain, detail=detail
            )
        return data

    def doctor(self, context: Context) -> DoctorReport:
        named = context.peer.tenant is None  # an operator; a tenant learns no path of the host
        return doctor_report(self._parts.state_dir, named=named)

    def _permitted(self, context: Context, lease: str) -> tuple[LeaseRecord, Permit]:
        """The lease, if the peer and its token may use it now."""
        record = self._parts.leases.show(context.peer.tenant, lease)
        token = context.call_token()
        token = self._parts.leases.own_token(record) if token is None else token
        permit = self._parts.authority.verify(token, self._parts.clock())
        return self._parts.leases.admit(record.id, permit), permit

    @contextmanager
    def _workspace(
        self, context: Context, lease: str, right: Right
    ) -> Iterator[tuple[Workspace, PathScope]]:
        """Holds one of the lease's places like a call, so that no reset comes in between."""
        record, permit = self._permitted(context, lease)
        parallel = permit.grant.per_lease.parallel
        with self._parts.running.enter(
            record.id, context.request_id, None, parallel, chain=permit.chain
        ):
            record = self._parts.leases.admit(record.id, permit)
            tool = "file_view" if right.right == "read" else "file_edit"
            # A check on any other argument of the tool refuses: a whole file has none.
            arguments = {"path": right.object}
            authorize(permit, tool, [right], arguments, record)
            with self._parts.gate.transfer(permit, record, tool, arguments):
                kind = AuditKind.FILE_READ if right.right == "read" else AuditKind.FILE_WRITE
                detail = {"path": right.object}
                self._parts.audit.note_of_lease(
                    kind, context.who, record, chain=permit.chain, detail=detail
                )
                yield self._parts.leases.workspace(record), path_scope(permit, tool)


def _object(path: str) -> str:
    """A file's path as the tools understand it, so that both refuse alike."""
    try:
        return object_of(path)
    except ValueError as error:
        raise failure(Code.INVALID_ARGUMENT, str(error), argument="path") from error
