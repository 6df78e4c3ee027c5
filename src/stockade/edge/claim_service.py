"""Calls that were made, as the API asks for them.

A tenant's peer lists and settles its tenant's, an operator all of them. What a call was given and
what it printed an operator sees, and whoever shows the capability that it ran under or one that
this was narrowed from: of the tenant's other holders some may not read what it could read.
"""

from __future__ import annotations

import json

from stockade.decide.replay import may_see
from stockade.edge.claim_wire import (
    CallList,
    CallRecord,
    CallsQuery,
    CallView,
    SettleAs,
    SettleRequest,
)
from stockade.edge.exchange import Role
from stockade.edge.service import Context
from stockade.flow.authority import Authority
from stockade.flow.leases import Leases
from stockade.flow.settlement import Settlement
from stockade.flow.told import call_ref
from stockade.terms.call import Permit
from stockade.terms.claim import ClaimRecord
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock
from stockade.terms.result import ToolResult
from stockade.tools.shape import timestamp


class ClaimService:
    """Implements `edge.service.ClaimVerbs`. Thread-safe."""

    def __init__(
        self, settlement: Settlement, leases: Leases, authority: Authority, clock: Clock
    ) -> None:
        self._settlement = settlement
        self._leases = leases
        self._authority = authority
        self._clock = clock

    def calls(self, context: Context, query: CallsQuery) -> CallList:
        lease = (
            None if query.lease is None else self._leases.show(context.peer.tenant, query.lease).id
        )
        found = self._settlement.list(context.peer.tenant, lease, in_doubt=query.in_doubt == "true")
        return CallList(calls=[CallView.model_validate(_view(record)) for record in found])

    def call_record(self, context: Context, claim_id: str) -> CallRecord:
        found = self._settlement.show(context.peer.tenant, claim_id)
        if context.token is not None:
            permit = self._authority.verify(context.token, self._clock())
            if not may_see(permit, found.chain):
                raise failure(Code.RIGHT_NOT_GRANTED, "the call has run under another capability")
        elif context.peer.role is not Role.OPERATOR:
            raise failure(Code.TOKEN_MISSING, "show the capability that the call ran under")
        return _record(found)

    def check_artifact(self, permit: Permit, lease: LeaseRecord, artifact_id: str) -> None:
        """An artifact is for who may see its call's result, which is cut where it goes on. Raises
        Failure(not_found), as for one that is not there."""
        if permit.chain == lease.chain:
            return
        chain = self._settlement.chain_of_artifact(lease.id, artifact_id)
        if chain is None or not may_see(permit, chain):
            raise failure(Code.NOT_FOUND, f"there is no artifact {artifact_id}")

    def settle(self, context: Context, claim_id: str, request: SettleRequest) -> CallView:
        settled = self._settlement.settle(
            context.peer.tenant,
            claim_id,
            completed=request.settle_as is SettleAs.COMPLETED,
            by=context.by,
            reason=request.reason,
        )
        return CallView.model_validate(_view(settled))


def _view(record: ClaimRecord) -> dict[str, object]:
    return {
        "id": record.id,
        "state": record.state,
        "call": call_ref(record),
        "tenant": record.tenant,
        "created_at": timestamp(record.created_at_s),
        "settled_at": None if record.settled_at_s is None else timestamp(record.settled_at_s),
        "settled_by": record.settled_by,
        "reason": record.reason,
    }


def _record(record: ClaimRecord) -> CallRecord:
    stored = record.result
    return CallRecord.model_validate(
        {
            **_view(record),
            "key": record.key,
            "arguments": json.loads(record.arguments),
            "request_id": record.request_id,
            "generation": record.generation,
            "workspace_version": str(record.workspace_version),
            "image": record.image,
            "plan_digest": record.plan_digest,
            "capability_chain": list(record.chain),
            "result": None if stored is None else ToolResult.model_validate_json(stored),
        }
    )
