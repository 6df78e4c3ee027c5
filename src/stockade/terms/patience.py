"""How long a call waits for its sandbox, and what ends that wait."""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Protocol

from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End

# Beyond the call's own time limit: a sandbox takes 20 to 40 ms, and on a busy host a second.
GRACE_S: Final = 2.0
# How soon a cancellation is seen by who waits for a lock or a condition.
LOOK_S: Final = 0.02


class CancelSignal(Protocol):
    """Set once from any thread; `fileno` becomes readable then, for poll(2)."""

    def fileno(self) -> int: ...
    def reason(self) -> End | None:
        """CANCELLED or LEASE_EXPIRED once set, else None."""

    def set(self, reason: End) -> None: ...
    def close(self) -> None: ...


class Patience:
    """`limit_s` seconds of `clock`, which is never set, from when it is made until `until`, or
    until `cancel`."""

    __slots__ = ("_clock", "cancel", "limit_s", "until")

    def __init__(self, cancel: CancelSignal, limit_s: float, clock: Callable[[], float]) -> None:
        self.cancel = cancel
        self.limit_s = limit_s
        self.until = clock() + limit_s
        self._clock = clock

    def left_s(self) -> float:
        return max(0.0, self.until - self._clock())

    def check(self, what: str) -> None:
        """Raises `over` when it has come to its end."""
        if self._clock() >= self.until or self.cancel.reason() is not None:
            raise self.over(what)

    def over(self, what: str) -> Failure:
        """Why it has come to its end before `what` was there. Nothing ran: cancelled,
        lease_expired, sandbox_unavailable."""
        reason = self.cancel.reason()
        if reason is End.LEASE_EXPIRED:
            return failure(Code.LEASE_EXPIRED, f"the lease ended before {what}; nothing ran")
        if reason is not None:
            return failure(Code.CANCELLED, f"cancelled before {what}; nothing ran")
        return failure(
            Code.SANDBOX_UNAVAILABLE, f"{self.limit_s:.3g} s passed before {what}; nothing ran"
        )
