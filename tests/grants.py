"""What grants and leases of the tests are made of."""

from __future__ import annotations

from dataclasses import replace
from typing import Final

from stockade.terms.base import MAX_INTEGER
from stockade.terms.call import Permit
from stockade.terms.grant import Total
from stockade.terms.lease import LeaseRecord, LeaseState

NO_BUDGET: Final = Total(
    calls=MAX_INTEGER, cost_micro=MAX_INTEGER, cpu_ms=MAX_INTEGER, egress_bytes=MAX_INTEGER
)


def lease_of(permit: Permit, **changes: object) -> LeaseRecord:
    """A lease that is ready, made with `permit`."""
    made = LeaseRecord(
        id=permit.lease_id or "ls_00112233445566aa",
        tenant=permit.tenant,
        trajectory=permit.trajectory,
        name="main",
        generation=1,
        state=LeaseState.READY,
        source=None,
        excludes=(),
        image="host",
        env=(),
        uid_base=0,
        grant=permit.grant,
        token="",
        chain=permit.chain,
        created_at_s=0,
        expires_at_s=0,
        not_after_s=0,
    )
    return replace(made, **changes)  # type: ignore[arg-type]
