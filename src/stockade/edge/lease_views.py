"""Leases in the words of the API: what its bodies say of a record."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from stockade.edge.wire import NOT_IN_PATCH, LeaseView
from stockade.terms.ids import CallRef
from stockade.terms.lease import LeaseRecord
from stockade.terms.result import (
    EngineRef,
    ExportData,
    LeaseData,
    Provenance,
    ToolResult,
    Warn,
    Warning,
)
from stockade.tools.definition import Shaped
from stockade.tools.shape import Frame, operation_result, timestamp
from stockade.tools.terminal import visible

MAX_NAMED: Final = 5
MAX_SHOWN_CHARS: Final = 200


def clamped(cut: tuple[str, ...]) -> list[Warning]:
    message = f"cut to the tenant's ceiling: {', '.join(cut)}"
    return [Warning(code=Warn.CLAMPED, message=message, count=len(cut))] if cut else []


def skipped(data: ExportData, left_out: Sequence[str]) -> list[Warning]:
    """What an export could not give back, by the names that fit."""
    if not data.skipped:
        return []
    named = [
        line if len(line) <= MAX_SHOWN_CHARS else "…" + line[-MAX_SHOWN_CHARS:]
        for line in map(visible, left_out[:MAX_NAMED])
    ]
    more = "; …" if len(left_out) > MAX_NAMED else ""
    return [
        Warning(
            code=Warn.SKIPPED,
            message=f"not given back: {'; '.join(named)}{more}",
            count=data.skipped,
        )
    ]


def patch_heading(left_out: Sequence[str]) -> bytes:
    """The first lines of a patch that does not hold everything. Programs that apply patches pass
    over what is before the first file."""
    return "".join(f"{NOT_IN_PATCH}{line}\n" for line in left_out).encode()


def lease_data(record: LeaseRecord) -> LeaseData:
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


def lease_view(record: LeaseRecord, *, broken: bool) -> LeaseView:
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
        shares=record.shares,
        forked_from=record.forked_from,
        broken=broken,
    )


def lease_result(
    record: LeaseRecord,
    shaped: Shaped,
    *,
    request_id: str,
    started_at: float,
    finished_at: float,
    engine: EngineRef,
    version: str,
) -> ToolResult:
    """Of an operation on a lease, which is no call. Times are seconds since the epoch."""
    frame = Frame(
        request_id=request_id,
        call=CallRef(
            lease_id=record.id,
            trajectory_id=record.trajectory,
            turn=None,
            call_id=None,
            tool=None,
        ),
        tool=None,
        connect=False,
        coerced=(),
        started_at=started_at,
        finished_at=finished_at,
        provenance=Provenance(
            trust="untrusted",
            lease_id=record.id,
            generation=record.generation,
            plan_digest=None,
            capability_chain=list(record.chain),
            image_digest=None,
            workspace_version=str(record.workspace_version),
            engine=engine,
            profile=record.grant.system.profile,
            stockade_version=version,
        ),
    )
    return operation_result(shaped, frame)
