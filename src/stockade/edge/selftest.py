"""What `stockade selftest` says: one row for each attempt to get out of a sandbox."""

from __future__ import annotations

from enum import StrEnum

from stockade.terms.base import Model


class Verdict(StrEnum):
    """`no_control`: the attack failed, but it failed as well where its one defence was taken away,
    so its failure proves nothing."""

    HELD = "held"
    BROKEN = "broken"
    NO_CONTROL = "no_control"
    COULD_NOT_TRY = "could_not_try"


class Row(Model):
    """`control` names what was taken away for the control; `evidence` is what both runs saw."""

    name: str
    group: str
    attack: str
    defence: str
    control: str
    result: Verdict
    evidence: str


class SelftestReport(Model):
    attempts: tuple[Row, ...]

    def count(self, result: Verdict) -> int:
        return sum(row.result is result for row in self.attempts)

    @property
    def ok(self) -> bool:
        """Everything was tried, has a working control, and was held."""
        return bool(self.attempts) and self.count(Verdict.HELD) == len(self.attempts)
