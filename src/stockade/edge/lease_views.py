"""Leases in the words of the API: what its bodies say of a record."""

from __future__ import annotations

from stockade.edge.wire import LeaseView
from stockade.terms.lease import LeaseRecord
from stockade.terms.result import LeaseData, Warn, Warning
from stockade.tools.shape import timestamp


def clamped(cut: tuple[str, ...]) -> list[Warning]:
    message = f"cut to the tenant's ceiling: {', '.join(cut)}"
    return [Warning(code=Warn.CLAMPED, message=message, count=len(cut))] if cut else []


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


def lease_view(record: LeaseRecord) -> LeaseView:
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
    )
