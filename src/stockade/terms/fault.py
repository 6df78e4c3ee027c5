"""What can go wrong, and the value that says so.

A `Code` is what a caller branches on; the registry gives each one its status, fault, retry advice
and hint. Inside the process a fault travels as the exception `Failure`, raised where the fault is
known and turned into a result once, by the pipeline; a foreign exception is translated into a
`Failure` by the module that owns the foreign package.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from stockade.terms.codes import Blame as Blame
from stockade.terms.codes import Code as Code
from stockade.terms.codes import Retry as Retry
from stockade.terms.codes import Status as Status
from stockade.terms.registry import REGISTRY as REGISTRY

# Details are small scalars and lists of strings: numbers a program can use, never free objects.
DetailValue = int | str | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong. `rule` names what decided (a capability component, a check)."""

    code: Code
    message: str
    rule: str | None = None
    retry_after_ms: int | None = None
    details: dict[str, DetailValue] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return REGISTRY[self.code].status


class Failure(Exception):
    """Carries a `Fault` from where it is known to the pipeline, which answers with it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.code}: {fault.message}")
        self.fault = fault


def failure(
    code: Code,
    message: str,
    *,
    rule: str | None = None,
    retry_after_ms: int | None = None,
    **details: DetailValue,
) -> Failure:
    """Build a `Failure`; `details` become `error.details`."""
    return Failure(Fault(code, message, rule, retry_after_ms, details))
