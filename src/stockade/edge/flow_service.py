"""The service behind the API: each method is one step into the flow and one reply out of it.

What a peer may touch is decided here from its credential: a tenant's peer sees its own leases, an
operator all of them. Calls need a token, except from a peer with the daemon's own uid, which could
read the keys anyway and acts under the lease's own capability.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from pydantic import JsonValue

from stockade.decide.authorize import authorize, path_scope
from stockade.decide.blocks import root_block
from stockade.decide.tokens import KeyRing, mint
from stockade.edge.bodies import check
from stockade.edge.doctor import doctor_report
from stockade.edge.exchange import Write
from stockade.edge.server.config import Defaults
from stockade.edge.service import Context
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
    MintRequest,
    RunRequest,
)
from stockade.flow.lease_request import LeaseRequest
from stockade.flow.leases import Leases
from stockade.flow.pipeline import Pipeline, ToolRequest
from stockade.flow.running import Running
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Code, Status, failure
from stockade.terms.grant import Grant
from stockade.terms.ids import CallRef
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import ArtifactStore, Clock, PathScope, Tee, Workspace
from stockade.terms.result import (
    RESULT_SCHEMA,
    EngineRef,
    ExportData,
    LeaseData,
    Provenance,
    ToolResult,
    Usage,
)
from stockade.tools.arguments import object_of
from stockade.tools.shape import timestamp

_PATCH_CHUNK = 256 * 1024


@dataclass(frozen=True, slots=True)
class Parts:
    """What the service stands on."""

    leases: Leases
    pipeline: Pipeline
    running: Running
    artifacts: ArtifactStore
    verify: Callable[[str, float], Permit]
    grant_named: Callable[[str], Grant]
    max_ttl_s: Callable[[str], int]
    ring: KeyRing
    kid: str
    engine: EngineRef
    state_dir: str
    defaults: Defaults
    clock: Clock
    version: str


class FlowService:
    """Implements `edge.service.Service`. Thread-safe."""

    def __init__(self, parts: Parts) -> None:
        self._parts = parts

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
            )
        )

    def cancel(self, context: Context, request: CancelRequest) -> int:
        record, _ = self._permitted(context, request.lease)
        return self._parts.running.cancel(record.id, request.call_id, request.turn)

    def create_lease(self, context: Context, request: LeaseCreate) -> LeaseReply:
        started = self._parts.clock()
        made = self._parts.leases.create(
            check(
                LeaseRequest,
                {
                    "tenant": request.tenant,
                    "trajectory": request.trajectory,
                    "name": request.name,
                    "source": request.source,
                    "excludes": tuple(request.excludes),
                    "image": request.image,
                    "env": tuple(sorted(request.env.items())),
                    "grant": request.grant
                    or (self._parts.defaults.grant if context.token is None else None),
                    "capability": context.token,
                    "ttl_s": request.ttl_s or self._parts.defaults.ttl_s,
                    "take_over": request.take_over,
                },
            )
        )
        record = made.record
        return LeaseReply(
            result=self._result(context, record, started, _lease_data(record)),
            lease=LeaseGranted(
                lease_id=record.id,
                token=record.token,
                generation=record.generation,
                expires_at=timestamp(record.expires_at_s),
            ),
        )

    def leases(self, context: Context) -> Sequence[LeaseView]:
        return [_view(record) for record in self._parts.leases.list(context.peer.tenant)]

    def lease(self, context: Context, lease: str) -> LeaseView:
        return _view(self._parts.leases.show(context.peer.tenant, lease))

    def renew_lease(self, context: Context, lease: str, request: LeaseRenew) -> ToolResult:
        return self._operate(
            context, lambda: self._parts.leases.renew(context.peer.tenant, lease, request.ttl_s)
        )

    def reset_lease(self, context: Context, lease: str) -> ToolResult:
        return self._operate(context, lambda: self._parts.leases.reset(context.peer.tenant, lease))

    def release_lease(self, context: Context, lease: str) -> ToolResult:
        return self._operate(
            context, lambda: self._parts.leases.release(context.peer.tenant, lease)
        )

    def export_lease(self, context: Context, lease: str, request: LeaseExport) -> ToolResult:
        started = self._parts.clock()
        leases, tenant = self._parts.leases, context.peer.tenant
        record = leases.show(tenant, lease)
        if request.to is not None:
            data = leases.export_to(tenant, lease, request.to)
        else:
            data = leases.changes(tenant, lease)
        return self._result(context, record, started, data)

    def patch(self, context: Context, lease: str, write: Write) -> None:
        # Through a file: the lease is held while the patch is made, and a reader may be slow. Not in
        # /tmp, which may be memory: a patch can be as large as what the lease wrote.
        with tempfile.TemporaryFile(dir=self._parts.state_dir) as file:
            self._parts.leases.export_patch(context.peer.tenant, lease, file)
            file.seek(0)
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
        record, _ = self._permitted(context, request.lease)
        return self._parts.artifacts.read(record.id, request.id, request.offset, request.length)

    def mint(self, context: Context, request: MintRequest) -> str:
        now = int(self._parts.clock())
        longest = self._parts.max_ttl_s(request.tenant)
        if request.ttl_s > longest:
            raise failure(
                Code.CEILING_EXCEEDED,
                f"ttl_s is {request.ttl_s}; the tenant's ceiling is {longest}",
                rule="max_ttl_s",
            )
        block = root_block(
            self._parts.grant_named(request.grant),
            request.tenant,
            request.trajectory,
            self._parts.kid,
            now,
            now + request.ttl_s,
        )
        return mint(self._parts.ring, self._parts.kid, block)

    def doctor(self) -> DoctorReport:
        return doctor_report(self._parts.state_dir)

    def _permitted(self, context: Context, lease: str) -> tuple[LeaseRecord, Permit]:
        """The lease, if the peer and its token may use it now."""
        record = self._parts.leases.show(context.peer.tenant, lease)
        token = _token(context)
        permit = self._parts.verify(record.token if token is None else token, self._parts.clock())
        return self._parts.leases.admit(record.id, permit), permit

    @contextmanager
    def _workspace(
        self, context: Context, lease: str, right: Right
    ) -> Iterator[tuple[Workspace, PathScope]]:
        """Holds one of the lease's places like a call, so that no reset comes in between."""
        record, permit = self._permitted(context, lease)
        parallel = permit.grant.per_lease.parallel
        with self._parts.running.enter(record.id, context.request_id, None, parallel):
            record = self._parts.leases.admit(record.id, permit)
            tool = "file_view" if right.right == "read" else "file_edit"
            authorize(permit, tool, [right], record)
            yield self._parts.leases.workspace(record), path_scope(permit)

    def _operate(self, context: Context, step: Callable[[], LeaseRecord]) -> ToolResult:
        started = self._parts.clock()
        record = step()
        return self._result(context, record, started, _lease_data(record))

    def _result(
        self,
        context: Context,
        record: LeaseRecord,
        started: float,
        data: LeaseData | ExportData,
    ) -> ToolResult:
        finished = self._parts.clock()
        return ToolResult(
            schema=RESULT_SCHEMA,
            request_id=context.request_id,
            call=CallRef(
                lease_id=record.id,
                trajectory_id=record.trajectory,
                turn=None,
                call_id=None,
                tool=None,
            ),
            status=Status.SUCCEEDED,
            exit=None,
            stdout=None,
            stderr=None,
            data=data,
            artifacts=[],
            warnings=[],
            error=None,
            retry_safe=True,
            items=None,
            usage=Usage(
                started_at=timestamp(started),
                finished_at=timestamp(finished),
                wall_ms=max(0, int((finished - started) * 1000)),
                wall_limit_ms=None,
                cpu_ms=None,
                peak_memory_bytes=None,
                output_bytes=None,
                egress_bytes=None,
                cost_micro=None,
            ),
            replayed=False,
            provenance=Provenance(
                trust="untrusted",
                lease_id=record.id,
                generation=record.generation,
                plan_digest=None,
                capability_chain=list(record.chain),
                image_digest=None,
                workspace_version=str(record.workspace_version),
                engine=self._parts.engine,
                profile=record.grant.system.profile,
                stockade_version=self._parts.version,
            ),
            audit=None,
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


def _lease_data(record: LeaseRecord) -> LeaseData:
    return LeaseData(
        kind="lease",
        lease_id=record.id,
        tenant=record.tenant,
        trajectory=record.trajectory,
        name=record.name,
        state=record.state,
        generation=record.generation,
        expires_at=timestamp(record.expires_at_s),
        workspace_version=str(record.workspace_version),
    )


def _view(record: LeaseRecord) -> LeaseView:
    return LeaseView(
        lease_id=record.id,
        tenant=record.tenant,
        trajectory=record.trajectory,
        name=record.name,
        state=record.state,
        generation=record.generation,
        image=record.image,
        source=record.source,
        created_at=timestamp(record.created_at_s),
        expires_at=timestamp(record.expires_at_s),
        not_after=timestamp(record.not_after_s),
    )
