"""What calls use up: amounts, the budgets they are counted against, and their prices.

A budget is `Block.total`. What is spent under a block counts against each block of the call's
chain, so each block id has sums of its own. A component that says "no budget" is not counted.
Money is integer micro-units; a part of one is rounded up.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

from stockade.terms.base import MAX_INTEGER
from stockade.terms.grant import Total

COMPONENTS: Final = ("calls", "cost_micro", "cpu_ms", "egress_bytes")


@dataclass(frozen=True, slots=True)
class Amount:
    """Components of `terms.grant.Total`, spent or to be spent; none is negative."""

    calls: int = 0
    cost_micro: int = 0
    cpu_ms: int = 0
    egress_bytes: int = 0


@dataclass(frozen=True, slots=True)
class Budget:
    """The `total` of one block of a chain. `not_after_s` is the block's end."""

    block: str
    total: Total
    not_after_s: int

    def counted(self, amount: Amount) -> Amount:
        """`amount` without the components that have no budget here."""
        total = self.total
        return Amount(
            calls=amount.calls if total.calls < MAX_INTEGER else 0,
            cost_micro=amount.cost_micro if total.cost_micro < MAX_INTEGER else 0,
            cpu_ms=amount.cpu_ms if total.cpu_ms < MAX_INTEGER else 0,
            egress_bytes=amount.egress_bytes if total.egress_bytes < MAX_INTEGER else 0,
        )

    def shortage(self, spent: Amount, amount: Amount) -> Shortage | None:
        """The first component in which `amount` on top of `spent` is more than the total."""
        for name in COMPONENTS:
            total, have = int(getattr(self.total, name)), int(getattr(spent, name))
            if total < MAX_INTEGER and have + int(getattr(amount, name)) > total:
                return Shortage(self.block, name, total, have)
        return None


@dataclass(frozen=True, slots=True)
class Shortage:
    """The budget that did not suffice: `component` of `block`, of whose `total` so much is
    `spent`."""

    block: str
    component: str
    total: int
    spent: int

    @property
    def rule(self) -> str:
        return f"total.{self.component}"

    @property
    def left(self) -> int:
        return max(0, self.total - self.spent)


@dataclass(frozen=True, slots=True)
class Metered:
    """What bounds a command's processor time: `budgets` of its chain, and `cpu_millis` of its lease,
    which say how fast it can use them. With the prices of its call and of a second."""

    budgets: tuple[Budget, ...]
    cpu_millis: int
    call_price: int
    cpu_second: int


@dataclass(frozen=True, slots=True)
class Prices:
    """Micro-units for a call of each tool (one that is not named costs nothing), a second of
    processor time, and a mebibyte sent out (nothing is, yet)."""

    tools: Mapping[str, int]
    cpu_second: int
    egress_mib: int

    def call(self, tool: str) -> int:
        return self.tools.get(tool, 0)

    def cpu(self, cpu_ms: int) -> int:
        return -(-cpu_ms * self.cpu_second // 1000)


def has_budget(total: Total) -> bool:
    """Whether any component of it is one."""
    return not (
        total.calls == MAX_INTEGER
        and total.cost_micro == MAX_INTEGER
        and total.cpu_ms == MAX_INTEGER
        and total.egress_bytes == MAX_INTEGER
    )
