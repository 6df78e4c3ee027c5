"""Grant and ceiling files: `terms.grant.Grant`, every component with the reason for it.

What the program uses is the part without the reasons, objects in normal form (`GrantFile.grant`).
"""

from __future__ import annotations

from typing import Annotated, Generic, Literal, Self, TypeVar

from pydantic import Field, StringConstraints, model_validator

from stockade.decide.blocks import normal
from stockade.terms.base import MAX_SECONDS, Model
from stockade.terms.fault import Failure
from stockade.terms.grant import (
    MAX_BLOCKS,
    MAX_LIST,
    Approvals,
    Checks,
    Connect,
    Count,
    Grant,
    Paths,
    PerCall,
    PerLease,
    Profile,
    Scope,
    System,
    Tier,
    Total,
)
from stockade.terms.ids import Name
from stockade.terms.spend import Prices

Reason = Annotated[str, StringConstraints(min_length=8, max_length=600)]
_Value = TypeVar("_Value")


class Reasoned(Model, Generic[_Value]):
    """One rule and why it is so."""

    value: _Value
    reason: Reason


class ScopeFile(Model):
    read: Reasoned[Paths]
    write: Reasoned[Paths]
    execute: Reasoned[Paths]
    connect: Reasoned[Annotated[tuple[Connect, ...], Field(max_length=MAX_LIST)]]


class SystemFile(Model):
    profile: Reasoned[Profile]
    images: Reasoned[Annotated[tuple[Name, ...], Field(max_length=MAX_LIST)]]
    tier_min: Reasoned[Tier]


class PerCallFile(Model):
    wall_ms: Reasoned[Count]
    output_bytes: Reasoned[Count]


class PerLeaseFile(Model):
    memory_bytes: Reasoned[Count]
    cpu_millis: Reasoned[Count]
    pids: Reasoned[Count]
    disk_bytes: Reasoned[Count]
    inodes: Reasoned[Count]
    sandboxes: Reasoned[Count]
    parallel: Reasoned[Count]


class TotalFile(Model):
    calls: Reasoned[Count]
    cost_micro: Reasoned[Count]
    cpu_ms: Reasoned[Count]
    egress_bytes: Reasoned[Count]


class GrantFile(Model):
    """A named capability template: `terms.grant.Grant`, every component with its reason."""

    version: Literal[1]
    name: Name
    reason: Reason
    scope: ScopeFile
    deny: Reasoned[Paths]
    tools: Reasoned[Annotated[tuple[Name, ...], Field(max_length=MAX_LIST)]]
    system: SystemFile
    per_call: PerCallFile
    per_lease: PerLeaseFile
    total: TotalFile
    depth: Reasoned[Annotated[int, Field(ge=0, le=MAX_BLOCKS)]]
    checks: Reasoned[Checks]
    approve: Reasoned[Approvals]

    @model_validator(mode="after")
    def _objects_are_well_formed(self) -> Self:
        try:
            self.grant()
        except Failure as error:
            raise ValueError(f"{error.fault.rule}: {error.fault.message}") from None
        return self

    def grant(self) -> Grant:
        """The components without their reasons, in normal form. Raises Failure(token_malformed)
        for objects that no parser accepts; a validated file has none."""
        scope, system, call = self.scope, self.system, self.per_call
        lease, total = self.per_lease, self.total
        return normal(
            Grant(
                scope=Scope(
                    read=scope.read.value,
                    write=scope.write.value,
                    execute=scope.execute.value,
                    connect=scope.connect.value,
                ),
                deny=self.deny.value,
                tools=self.tools.value,
                system=System(
                    profile=system.profile.value,
                    images=system.images.value,
                    tier_min=system.tier_min.value,
                ),
                per_call=PerCall(wall_ms=call.wall_ms.value, output_bytes=call.output_bytes.value),
                per_lease=PerLease(
                    memory_bytes=lease.memory_bytes.value,
                    cpu_millis=lease.cpu_millis.value,
                    pids=lease.pids.value,
                    disk_bytes=lease.disk_bytes.value,
                    inodes=lease.inodes.value,
                    sandboxes=lease.sandboxes.value,
                    parallel=lease.parallel.value,
                ),
                total=Total(
                    calls=total.calls.value,
                    cost_micro=total.cost_micro.value,
                    cpu_ms=total.cpu_ms.value,
                    egress_bytes=total.egress_bytes.value,
                ),
                depth=self.depth.value,
                checks=self.checks.value,
                approve=self.approve.value,
            )
        )


class PricesFile(Model):
    """Micro-units, whatever the operator's unit is: for a call of each tool (none for one that is
    not named), a second of processor time and a mebibyte sent out. Parts are rounded up."""

    call: Reasoned[dict[Name, Count]]
    cpu_second: Reasoned[Count]
    egress_mib: Reasoned[Count]


class CeilingFile(GrantFile):
    """What a tenant may at most be given, and what it costs; `max_ttl_s` bounds expiry, counted
    from minting, at most a hundred years."""

    prices: PricesFile
    max_ttl_s: Reasoned[Annotated[int, Field(ge=1, le=MAX_SECONDS)]]

    def price_table(self) -> Prices:
        prices = self.prices
        return Prices(prices.call.value, prices.cpu_second.value, prices.egress_mib.value)
