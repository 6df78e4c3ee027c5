"""The service behind the API: each method is one step into the flow and one reply out of it.

What a peer may touch is decided here from its credential: a tenant's peer sees its own leases, an
operator all of them. Calls need a token, except from a peer with the daemon's own uid, which could
read the keys anyway and acts under the lease's own capability.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from stockade.decide.authorize import authorize, path_scope
from stockade.edge.audit_service import AuditService
from stockade.edge.authority_service import AuthorityService
from stockade.edge.bodies import check
from stockade.edge.budget_service import BudgetService
from stockade.edge.claim_service import ClaimService
from stockade.edge.doctor import doctor_report
from stockade.edge.exchange import Write
from stockade.edge.lease_views import (
    clamped,
    lease_data,
    lease_result,
    lease_view,
    patch_heading,
    skipped,
)
from stockade.edge.secret_service import SecretService
from stockade.edge.server.config import Defaults
from stockade.edge.service import Context
from stockade.edge.watch_service import WatchService
from stockade.edge.wire import (
    ArtifactRange,
    CallRequest,
    CancelRequest,
    DoctorReport,
    LeaseCreate,
    LeaseExport,
    LeaseGranted,
    LeaseRenew,
    LeaseReply,
    LeaseView,
    MintReply,
    MintRequest,
    RunRequest,
)
from stockade.flow.approvals import Approvals
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.exports import Exports
from stockade.flow.gate import Gate
from stockade.flow.lease_request import LeaseRequest
from stockade.flow.leases import Leases
from stockade.flow.minting import Minter
from stockade.flow.pipeline import Pipeline, ToolRequest
from stockade.flow.running import Running
from stockade.flow.secrets import Secrets
from stockade.flow.settlement import Settlement
from stockade.flow.spending import Spending
from stockade.terms.audit import AuditKind
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import ArtifactStore, Clock, PathScope, Tee, Workspace
from stockade.terms.result import EngineRef, ExportData, LeaseData, ToolResult, Warning
from stockade.tools.arguments import object_of
from stockade.tools.definition import Shaped
from stockade.tools.shape import timestamp

_PATCH_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service stands on."""

    leases: Leases
    pipeline: Pipeline
    running: Running
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
        self._exports = Exports(parts.leases)
        self.watching = parts.watching
        self.authority = AuthorityService(parts.authority, parts.audit, parts.clock)
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

    def call(self, context: Context, request: CallRequest) -> ToolResult:
        return self._parts.pipeline.call(
            ToolRequest(
                request_id=context.request_id,
                lease=request.lease,
                tool=request.tool,
                arguments=request.arguments,
                turn=request.turn,
                call_id=request.call_id,
                tenant=context.peer.tenant,
                token=_token(context),
                idempotency_key=request.idempotency_key,
                who=context.who,
                mark=context.watch.mark,
            )
        )

    def run(self, context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        arguments: dict[str, JsonValue] = {"argv": list(request.argv)}
        if request.timeout_ms is not None:
            arguments["timeout_ms"] = request.timeout_ms
        return self._parts.pipeline.call(
            ToolRequest(
                request_id=context.request_id,
                lease=request.lease,
                tool="run",
                arguments=arguments,
                turn=request.turn,
                call_id=request.call_id,
                tenant=context.peer.tenant,
                token=_token(context),
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
            self._note(
                context,
                AuditKind.CALL_CANCELLED,
                record,
                {"calls": found},
                permit.chain,
                turn=request.turn,
                call_id=request.call_id,
            )
        return found

    def create_lease(self, context: Context, request: LeaseCreate) -> LeaseReply:
        started = self._parts.clock()
        over_another = request.share is not None or request.fork is not None
        token = _token(context) if over_another else context.token
        grant = None if over_another or token is not None else self._parts.defaults.grant
        wanted = check(
            LeaseRequest,
            {
                "tenant": request.tenant,
                "trajectory": request.trajectory,
                "name": request.name,
                "source": request.source,
                "excludes": tuple(request.excludes),
                "image": request.image,
                "env": tuple(sorted(request.env.items())),
                "grant": request.grant or grant,
                "capability": token,
                "ttl_s": request.ttl_s or self._parts.defaults.ttl_s,
                "take_over": request.take_over,
                "within_ceiling": request.within_ceiling,
                "share": request.share,
                "fork": request.fork,
            },
        )
        with self._parts.audit.acting(context.who):
            made = self._parts.leases.create(wanted)
        record = made.record
        return LeaseReply(
            result=self._result(context, record, started, lease_data(record), clamped(made.cut)),
            lease=LeaseGranted(
                lease_id=record.id,
                token=record.token,
                generation=record.generation,
                expires_at=timestamp(record.expires_at_s),
            ),
        )

    def leases(self, context: Context) -> Sequence[LeaseView]:
        return [lease_view(record) for record in self._parts.leases.list(context.peer.tenant)]

    def lease(self, context: Context, lease: str) -> LeaseView:
        return lease_view(self._parts.leases.show(context.peer.tenant, lease))

    def renew_lease(self, context: Context, lease: str, request: LeaseRenew) -> ToolResult:
        return self._operate(
            context,
            lambda holder: self._parts.leases.renew(
                context.peer.tenant, lease, request.ttl_s, holder
            ),
        )

    def reset_lease(self, context: Context, lease: str) -> ToolResult:
        return self._operate(
            context, lambda holder: self._parts.leases.reset(context.peer.tenant, lease, holder)
        )

    def release_lease(self, context: Context, lease: str) -> ToolResult:
        return self._operate(
            context, lambda holder: self._parts.leases.release(context.peer.tenant, lease, holder)
        )

    def export_lease(self, context: Context, lease: str, request: LeaseExport) -> ToolResult:
        started = self._parts.clock()
        tenant = context.peer.tenant
        record, holder = self._parts.leases.show(tenant, lease), self._holder(context)
        if request.to is not None:
            self._note(context, AuditKind.LEASE_EXPORT, record, {"to": "directory"})
            data, left_out = self._exports.to_directory(tenant, lease, request.to, holder)
        else:
            data, left_out = self._exports.changes(tenant, lease, holder), ()
        # Names are the sandbox's: a secret may be one.
        hidden = [self._parts.secrets.hide_all(line) for line in left_out]
        return self._result(context, record, started, data, skipped(data, hidden))

    def patch(self, context: Context, lease: str, write: Write) -> None:
        holder = self._holder(context)
        record = self._parts.leases.show(context.peer.tenant, lease)
        self._note(context, AuditKind.LEASE_EXPORT, record, {"to": "patch"})
        # Through a file: the lease is held while the patch is made, and a reader may be slow. Not in
        # /tmp, which may be memory: a patch can be as large as what the lease wrote.
        with tempfile.TemporaryFile(dir=self._parts.state_dir) as file:
            _, left_out = self._exports.patch(context.peer.tenant, lease, file, holder)
            file.seek(0)
            if left_out and not write(patch_heading(left_out)):
                return
            while chunk := file.read(_PATCH_CHUNK):
                if not write(chunk):
                    return

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
        detail = request.model_dump(exclude={"lease"})
        self._note(context, AuditKind.ARTIFACT_READ, record, detail, permit.chain)
        return self._parts.artifacts.read(record.id, request.id, request.offset, request.length)

    def mint(self, context: Context, request: MintRequest) -> MintReply:
        made = self._parts.minter.root(
            request.tenant,
            request.trajectory,
            request.grant,
            request.ttl_s,
            self._parts.clock(),
            within_ceiling=request.within_ceiling,
        )
        self._parts.audit.note(
            AuditKind.CAPABILITY_MINTED,
            context.who,
            tenant=request.tenant,
            trajectory=request.trajectory,
            chain=self._verify(made.token).chain,
            detail={"grant": request.grant, "ttl_s": request.ttl_s, "cut": list(made.cut)},
        )
        return MintReply(token=made.token, cut=list(made.cut))

    def doctor(self) -> DoctorReport:
        return doctor_report(self._parts.state_dir)

    def _permitted(self, context: Context, lease: str) -> tuple[LeaseRecord, Permit]:
        """The lease, if the peer and its token may use it now."""
        record = self._parts.leases.show(context.peer.tenant, lease)
        token = _token(context)
        permit = self._verify(self._parts.leases.own_token(record) if token is None else token)
        return self._parts.leases.admit(record.id, permit), permit

    def _holder(self, context: Context) -> Permit | None:
        """Of the token that came. An operation on a lease needs none: it asks who the peer is."""
        return None if context.token is None else self._verify(context.token)

    def _verify(self, token: str) -> Permit:
        return self._parts.authority.verify(token, self._parts.clock())

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
                self._note(context, kind, record, detail, permit.chain)
                yield self._parts.leases.workspace(record), path_scope(permit, tool)

    def _operate(
        self, context: Context, step: Callable[[Permit | None], LeaseRecord]
    ) -> ToolResult:
        started = self._parts.clock()
        with self._parts.audit.acting(context.who):
            record = step(self._holder(context))
        return self._result(context, record, started, lease_data(record))

    def _note(
        self,
        context: Context,
        kind: AuditKind,
        record: LeaseRecord,
        detail: Mapping[str, str | int],
        chain: tuple[str, ...] | None = None,
        *,
        turn: int | None = None,
        call_id: str | None = None,
    ) -> None:
        """Before the effect, if nothing else is said: what can't be recorded is not done."""
        self._parts.audit.note(
            kind,
            context.who,
            tenant=record.tenant,
            trajectory=record.trajectory,
            lease_id=record.id,
            generation=record.generation,
            turn=turn,
            call_id=call_id,
            chain=chain,
            detail=detail,
        )

    def _result(
        self,
        context: Context,
        record: LeaseRecord,
        started: float,
        data: LeaseData | ExportData,
        warnings: Sequence[Warning] = (),
    ) -> ToolResult:
        parts = self._parts
        return lease_result(
            record,
            Shaped(data=data, warnings=tuple(warnings)),
            request_id=context.request_id,
            started_at=started,
            finished_at=parts.clock(),
            engine=parts.engine,
            version=parts.version,
        )


def _token(context: Context) -> str | None:
    """Raises Failure(token_missing) unless the peer may do without."""
    if context.token is None and not context.peer.own:
        raise failure(Code.TOKEN_MISSING, "this user's calls need the lease's token")
    return context.token


def _object(path: str) -> str:
    """A file's path as the tools understand it, so that both refuse alike."""
    try:
        return object_of(path)
    except ValueError as error:
        raise failure(Code.INVALID_ARGUMENT, str(error), argument="path") from error
