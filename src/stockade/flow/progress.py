"""What is known of a call while it passes through the stages, and what is said of it then."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from pydantic import JsonValue

from stockade.flow.call_events import CallFacts
from stockade.flow.calls import ToolRequest
from stockade.flow.spending import Bill
from stockade.terms.call import Permit
from stockade.terms.ids import CallRef
from stockade.terms.lease import LeaseRecord
from stockade.terms.plan import SandboxPlan
from stockade.terms.result import EngineRef, Provenance
from stockade.tools import shape
from stockade.tools.definition import AnyTool


@dataclass(frozen=True, slots=True)
class Origin:
    """What every result of a runtime comes from."""

    engine: EngineRef
    version: str


@dataclass(slots=True)
class Progress:
    """What is known of a call so far; a fault at any stage is answered with all of it."""

    started_at: float
    tool: AnyTool | None = None
    coerced: tuple[str, ...] = ()
    lease: LeaseRecord | None = None
    permit: Permit | None = None
    plan: SandboxPlan | None = None
    digest: str | None = None
    bill: Bill | None = None
    arguments: Mapping[str, JsonValue] | None = None
    effect_began: bool = False

    @property
    def begun(self) -> bool:
        """Whether it came through the gate."""
        return self.bill is not None

    def frame(self, request: ToolRequest, origin: Origin, finished_at: float) -> shape.Frame:
        """For the result that is made now."""
        lease, permit, plan = self.lease, self.permit, self.plan
        return shape.Frame(
            request_id=request.request_id,
            call=CallRef(
                lease_id=lease.id if lease else None,
                trajectory_id=lease.trajectory if lease else None,
                turn=request.turn,
                call_id=request.call_id,
                tool=request.tool,
            ),
            tool=self.tool,
            connect=bool(permit and permit.grant.scope.connect),
            coerced=self.coerced,
            started_at=self.started_at,
            finished_at=finished_at,
            cost_micro=self.bill.cost_micro if self.bill else None,
            provenance=Provenance(
                trust="untrusted",
                lease_id=lease.id if lease else None,
                generation=lease.generation if lease else None,
                plan_digest=self.digest,
                capability_chain=list(permit.chain) if permit else [],
                image_digest=None,
                workspace_version=str(lease.workspace_version) if lease else None,
                engine=origin.engine,
                profile=plan.profile if plan else None,
                stockade_version=origin.version,
            ),
        )

    def facts(self, request: ToolRequest) -> CallFacts:
        """For the audit."""
        lease, permit = self.lease, self.permit
        return CallFacts(
            who=request.who,
            tenant=lease.tenant if lease else request.tenant,
            trajectory=lease.trajectory if lease else None,
            lease_id=lease.id if lease else None,
            generation=lease.generation if lease else None,
            turn=request.turn,
            call_id=request.call_id,
            tool=request.tool,
            arguments=request.arguments if self.arguments is None else self.arguments,
            chain=permit.chain if permit else (),
            plan_digest=self.digest,
        )
