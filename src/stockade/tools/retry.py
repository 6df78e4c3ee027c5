"""`retry_safe`: whether the same arguments under a new call id can't add an effect.

| status                                        | A0   | A1 A2 A3                       |
| --------------------------------------------- | ---- | ------------------------------ |
| rejected, invalid, denied, approval_required  | safe | safe: nothing changed          |
| unavailable                                   | safe | safe: no effect happened       |
| unavailable: in_flight                        | safe | not: the first is still at it  |
| all others                                    | safe | not: something may have changed |
"""

from __future__ import annotations

from typing import Final

from stockade.terms.fault import Code, Status
from stockade.tools.definition import Level

_NOTHING_CHANGED: Final = frozenset(
    {
        Status.REJECTED,
        Status.INVALID,
        Status.DENIED,
        Status.APPROVAL_REQUIRED,
        Status.UNAVAILABLE,
    }
)


def retry_safe(status: Status, level: Level, code: Code | None = None) -> bool:
    """`code` is the result's `error.code`, if it has one."""
    if level == "A0":
        return True
    return status in _NOTHING_CHANGED and code is not Code.IN_FLIGHT
