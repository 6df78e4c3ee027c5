"""Operations on leases. None is a call: it asks who the peer is, and a token that comes with it has to
be the lease's and bounds what is done.
"""

from __future__ import annotations

import tempfile
from collections.abc import Callable, Sequence
from typing import Final

from stockade.edge.bodies import check
from stockade.edge.exchange import Write
from stockade.edge.lease_views import (
    clamped,
    lease_data,
    lease_result,
    lease_view,
    patch_heading,
    skipped,
)
from stockade.edge.server.config import Defaults
from stockade.edge.service import Context
from stockade.edge.wire import (
    LeaseCreate,
    LeaseExport,
    LeaseGranted,
    LeaseRenew,
    LeaseReply,
    LeaseView,
)
from stockade.flow.auditing import Auditor
from stockade.flow.authority import Authority
from stockade.flow.exports import Exports
from stockade.flow.lease_request import LeaseRequest
from stockade.flow.leases import Leases
from stockade.flow.secrets import Secrets
from stockade.terms.audit import AuditKind
from stockade.terms.call import Permit
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock
from stockade.terms.result import EngineRef, ExportData, LeaseData, ToolResult, Warning
from stockade.tools.definition import Shaped
from stockade.tools.shape import timestamp

_PATCH_CHUNK: Final = 256 * 1024


class LeaseService:
    """Implements `edge.service.LeaseVerbs`. Thread-safe."""

    def __init__(
        self,
        leases: Leases,
        authority: Authority,
        audit: Auditor,
        secrets: Secrets,
        *,
        defaults: Defaults,
        engine: EngineRef,
        state_dir: str,
        broken: Callable[[str], bool],
        clock: Clock,
        version: str,
    ) -> None:
        """`state_dir` takes patches while they are sent. `broken` says of a lease's id whether one of
        its sandboxes is."""
        self._leases = leases
        self._exports = Exports(leases)
        self._authority = authority
        self._audit = audit
        self._secrets = secrets
        self._defaults = defaults
        self._engine = engine
        self._state_dir = state_dir
        self._broken = broken
        self._clock = clock
        self._version = version

    def create(self, context: Context, request: LeaseCreate) -> LeaseReply:
        started = self._clock()
        over_another = request.share is not None or request.fork is not None
        token = context.call_token() if over_another else context.token
        grant = None if over_another or token is not None else self._defaults.grant
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
                "ttl_s": request.ttl_s or self._defaults.ttl_s,
                "take_over": request.take_over,
                "within_ceiling": request.within_ceiling,
                "share": request.share,
                "fork": request.fork,
            },
        )
        with self._audit.acting(context.who):
            made = self._leases.create(wanted)
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

    def all(self, context: Context) -> Sequence[LeaseView]:
        return [self._view(record) for record in self._leases.list(context.peer.tenant)]

    def show(self, context: Context, lease: str) -> LeaseView:
        return self._view(self._leases.show(context.peer.tenant, lease))

    def renew(self, context: Context, lease: str, request: LeaseRenew) -> ToolResult:
        return self._operate(
            context,
            lambda holder: self._leases.renew(context.peer.tenant, lease, request.ttl_s, holder),
        )

    def reset(self, context: Context, lease: str) -> ToolResult:
        return self._operate(
            context, lambda holder: self._leases.reset(context.peer.tenant, lease, holder)
        )

    def release(self, context: Context, lease: str) -> ToolResult:
        return self._operate(
            context, lambda holder: self._leases.release(context.peer.tenant, lease, holder)
        )

    def export(self, context: Context, lease: str, request: LeaseExport) -> ToolResult:
        started = self._clock()
        tenant = context.peer.tenant
        record, holder = self._leases.show(tenant, lease), self._holder(context)
        if request.to is not None:
            self._note_export(context, record, "directory")
            data, left_out = self._exports.to_directory(tenant, lease, request.to, holder)
        else:
            data, left_out = self._exports.changes(tenant, lease, holder), ()
        # Names are the sandbox's: a secret may be one.
        hidden = [self._secrets.hide_all(line) for line in left_out]
        return self._result(context, record, started, data, skipped(data, hidden))

    def patch(self, context: Context, lease: str, write: Write) -> None:
        holder = self._holder(context)
        record = self._leases.show(context.peer.tenant, lease)
        self._note_export(context, record, "patch")
        # Through a file: the lease is held while the patch is made, and a reader may be slow. Not in
        # /tmp, which may be memory: a patch can be as large as what the lease wrote.
        with tempfile.TemporaryFile(dir=self._state_dir) as file:
            _, left_out = self._exports.patch(context.peer.tenant, lease, file, holder)
            file.seek(0)
            if left_out and not write(patch_heading(left_out)):
                return
            while chunk := file.read(_PATCH_CHUNK):
                if not write(chunk):
                    return

    def _view(self, record: LeaseRecord) -> LeaseView:
        return lease_view(record, broken=self._broken(record.id))

    def _note_export(self, context: Context, record: LeaseRecord, to: str) -> None:
        self._audit.note_of_lease(AuditKind.LEASE_EXPORT, context.who, record, detail={"to": to})

    def _operate(
        self, context: Context, step: Callable[[Permit | None], LeaseRecord]
    ) -> ToolResult:
        started = self._clock()
        with self._audit.acting(context.who):
            record = step(self._holder(context))
        return self._result(context, record, started, lease_data(record))

    def _holder(self, context: Context) -> Permit | None:
        """Of the token that came. An operation on a lease needs none: it asks who the peer is."""
        token = context.token
        return None if token is None else self._authority.verify(token, self._clock())

    def _result(
        self,
        context: Context,
        record: LeaseRecord,
        started: float,
        data: LeaseData | ExportData,
        warnings: Sequence[Warning] = (),
    ) -> ToolResult:
        return lease_result(
            record,
            Shaped(data=data, warnings=tuple(warnings)),
            request_id=context.request_id,
            started_at=started,
            finished_at=self._clock(),
            engine=self._engine,
            version=self._version,
        )
