"""Several tries for one command, and what is believed of one that is said to have run nothing.

A plain spare is our own program, which nobody inside can read or trace. Of it "ended unread" is
evidence, and another one is tried. A held shell is a program of the image: root of the sandbox may
have put another in its place, and a command may have traced it while it was executed. Such a shell
can run its command and say that it ran nothing, or leave the message in its socket. Then the call
would cost nothing, its approval could be used again, and it would be carried out once for each try.

So that word only ends the try. What is left of it is killed, its time is the call's, and the next
try is a plain spare. Where none takes the command, the call is in doubt; also for the next process, if
this one dies before another try is recorded: until then the journal has that one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final

from stockade.engines.oci.making import Placed
from stockade.engines.oci.spares import BUSY_SPARES
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import ExecOutcome
from stockade.terms.ports import CpuMeter, ExecContext

# A command may have killed all that wait (`kill -9 -1`), of both sorts.
TRIES: Final = 2 * BUSY_SPARES + 2
_KILL_TIMEOUT_S: Final = 10.0


@dataclass(frozen=True, slots=True)
class _Further:
    """A meter of what is used after `before_ms` were."""

    meter: CpuMeter
    before_ms: int

    def more(self, used_ms: int) -> int | None:
        return self.meter.more(self.before_ms + used_ms)


@dataclass(frozen=True, slots=True)
class _Next:
    """`ExecContext.starting` of who takes the place of another, which is forgotten then."""

    starting: Callable[[str, str], None]
    forget: Callable[[], None]

    def __call__(self, sandbox: str, call: str) -> None:
        self.starting(sandbox, call)
        self.forget()


class Attempts:
    """Those for one call. `context` is that of the next one; with `doubtful` it is a plain spare."""

    def __init__(self, context: ExecContext) -> None:
        self.context = context
        self.doubtful = False
        self._used_ms = 0

    def ended(self, placed: Placed, forget: Callable[[], None]) -> None:
        """It is said to have run nothing. `forget` takes it out of the journal. Raises
        Failure(sandbox_lost) when what is left of it could not be ended."""
        if not (placed.held and placed.spare.given):
            forget()
            return
        self.doubtful = True
        starting = self.context.starting
        if starting is None:
            forget()
        else:
            self.context = replace(self.context, starting=_Next(starting, forget))
        if not placed.group.kill(_KILL_TIMEOUT_S):
            raise failure(Code.SANDBOX_LOST, "what a shell left could not be confirmed dead")
        self._used_ms = placed.group.cpu_ms()
        if self.context.cpu is not None:
            self.context = replace(self.context, cpu=_Further(self.context.cpu, self._used_ms))

    def billed(self, outcome: ExecOutcome) -> ExecOutcome:
        if outcome.cpu_ms is None:
            return outcome
        return replace(outcome, cpu_ms=self._used_ms + outcome.cpu_ms) if self.doubtful else outcome

    def none_left(self) -> Failure:
        return failure(
            Code.SANDBOX_UNAVAILABLE,
            f"{TRIES} prepared processes in turn died before they read the command; nothing ran",
        )

    def told(self, error: Failure) -> Failure:
        """What the call ends with where no try has come to a verdict. In doubt also where the next
        try was cancelled, or could not be recorded, before it began."""
        if not self.doubtful:
            return error
        return failure(
            Code.SANDBOX_LOST,
            "a shell that was given the command is said to have run nothing, which nothing "
            f"proves, and no other process took it ({error.fault.code})",
        )
