"""A claim: the durable record under a call's name, and what is known of a call after a crash."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from enum import StrEnum
from typing import TYPE_CHECKING

from stockade.terms.audit import Head
from stockade.terms.outcome import EditOutcome, ExecOutcome
from stockade.terms.spend import Metered

if TYPE_CHECKING:
    from stockade.terms.ports import ExecContext


class ClaimState(StrEnum):
    """A name without a claim is unseen, and so is one whose call is known not to have run.

    `in_flight`: the call may be running. `completed`: `result` is its result, for every repeat.
    `in_doubt`: nobody knows whether it had an effect. `not_executed`: it had none, and the same
    call may start."""

    IN_FLIGHT = "in_flight"
    COMPLETED = "completed"
    IN_DOUBT = "in_doubt"
    NOT_EXECUTED = "not_executed"


@dataclass(frozen=True, slots=True)
class Settled:
    """A claim has come to its end. `audit` is the record that says so, if one does."""

    audit: Head | None


@dataclass(frozen=True, slots=True)
class ClaimRecord:
    """`id` is the call's name and `key` its idempotency key (decide.idempotency). `arguments` are
    the caller's own, in canonical JSON. `call_id` is the caller's or drawn for it.

    `foreseen` is what an edit is about to do, written before it does it. `sandbox` and `guest_call`
    say where a command runs; None as long as it was given to no sandbox. `wall_limit_ms` is the
    applied time limit of a command. `metered` is what bounds its processor time, None where nothing
    does, and `drawn_ms` how much of it is counted as spent for this call.

    `boot` is the kernel's name for the boot of the claim, and `until_boot_s` (seconds of that boot's
    clock, CLOCK_BOOTTIME) the end of the claim's own lease: later than the call's deadline, its
    caller's patience and any skew. Other times are seconds since the epoch. `result` is a
    ToolResult as JSON; of a claim in doubt it is what the caller was told. `settled_by` is the
    daemon, or a person as `uid N`."""

    id: str
    key: str
    state: ClaimState
    tenant: str
    trajectory: str
    turn: int | None
    call_id: str
    tool: str
    arguments: str
    lease_id: str
    generation: int
    workspace_version: int
    image: str
    plan_digest: str | None
    chain: tuple[str, ...]
    request_id: str
    boot: str
    until_boot_s: float
    created_at_s: float
    wall_limit_ms: int | None = None
    sandbox: str | None = None
    guest_call: str | None = None
    foreseen: EditOutcome | None = None
    settled_at_s: float | None = None
    settled_by: str | None = None
    reason: str | None = None
    result: str | None = None
    metered: Metered | None = None
    drawn_ms: int = 0


@dataclass(frozen=True, slots=True)
class Completed:
    """The command has ended, and this is all of it."""

    outcome: ExecOutcome


@dataclass(frozen=True, slots=True)
class NotExecuted:
    """The process that was to become the command ended without having read it."""


@dataclass(frozen=True, slots=True)
class StillRunning:
    """The command goes on. `finish(context, timeout_ms)` waits for it as `Sandbox.execute` does,
    with `timeout_ms` left to it."""

    finish: Callable[[ExecContext, int], ExecOutcome]


@dataclass(frozen=True, slots=True)
class Unknown:
    """What was left says nothing."""


Evidence = Completed | NotExecuted | StillRunning | Unknown
