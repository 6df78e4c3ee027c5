"""A pipeline over the house of fakes, and one lease to call in."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from pydantic import JsonValue

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.auditing import Auditor
from stockade.flow.calls import ToolRequest
from stockade.flow.pipeline import Pipeline
from stockade.terms.fault import Code
from stockade.terms.lease import LeaseRecord
from stockade.terms.result import ToolResult
from stockade.testing.faults import Faults
from stockade.testing.house import TENANT, House


@dataclass
class Line:
    house: House
    faults: Faults
    pipeline: Pipeline
    record: LeaseRecord
    numbers: Iterator[int] = field(default_factory=lambda: iter(range(10**6)))

    def call(
        self,
        tool: str = "bash_execute",
        arguments: dict[str, JsonValue] | None = None,
        *,
        token: str | None = None,
        tenant: str | None = TENANT,
        lease: str | None = None,
        call_id: str | None = "",
        turn: int | None = 1,
        key: str | None = None,
    ) -> ToolResult:
        """`call_id` "" is one of its own."""
        number = next(self.numbers)
        return self.pipeline.call(
            ToolRequest(
                request_id=f"rq_{number}",
                lease=lease or self.record.id,
                tool=tool,
                arguments={"command": "true"} if arguments is None else arguments,
                turn=turn,
                call_id=f"call-{number}" if call_id == "" else call_id,
                idempotency_key=key,
                tenant=tenant,
                token=self.record.token if token is None else token,
            )
        )

    def narrowed(self, **components: object) -> str:
        parent = inspect(self.record.token).blocks[-1]
        return attenuate(self.record.token, narrow(parent, **components))  # type: ignore[arg-type]


def make_pipeline(house: House, faults: Faults, audit: Auditor | None = None) -> Pipeline:
    """With the house's audit unless another is given."""
    return Pipeline(
        leases=house.leases,
        running=house.running,
        places=house.places,
        sandboxes=house.sandboxes,
        artifacts=house.artifacts,
        gate=house.gate,
        claims=house.claims,
        audit=house.audit if audit is None else audit,
        secrets=house.secrets,
        policy=house.policy,
        image_env={"host": {"PATH": "/usr/bin:/bin"}},
        verify=house.authority.verify,
        engine=house.engine.describe(),
        clock=house.clock,
        version="test",
        fault_point=faults.point,
    )


def make_line(house: House) -> Line:
    faults = Faults()
    pipeline = make_pipeline(house, faults)
    return Line(house, faults, pipeline, house.leases.create(house.request()).record)


def code(result: ToolResult) -> Code | None:
    return result.error.code if result.error else None
