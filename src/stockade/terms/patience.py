"""How long a call waits for its sandbox, and what ends that wait."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End
from stockade.terms.ports import CancelSignal

# Beyond the call's own time limit: a sandbox takes 20 to 40 ms, and on a busy host a second.
GRACE_S: Final = 2.0
# How soon a cancellation is seen by who waits for a lock or a condition.
LOOK_S: Final = 0.02


@dataclass(frozen=True, slots=True)
class Patience:
    """`timeout_s` seconds from when it is given, or until `cancel`."""

    cancel: CancelSignal
    timeout_s: float

    def over(self, what: str) -> Failure:
        """Why it has come to its end before `what` was there. Nothing ran: cancelled,
        lease_expired, sandbox_unavailable."""
        reason = self.cancel.reason()
        if reason is End.LEASE_EXPIRED:
            return failure(Code.LEASE_EXPIRED, f"the lease ended before {what}; nothing ran")
        if reason is not None:
            return failure(Code.CANCELLED, f"cancelled before {what}; nothing ran")
        return failure(
            Code.SANDBOX_UNAVAILABLE, f"{self.timeout_s:.3g} s passed before {what}; nothing ran"
        )
