"""Stages 5 and 9: one start for each call's name, and one result for each of its repeats.

Whoever carries a call out holds its name for as long as it takes (`hold`). This process is the only
one on the ledger, so that is decided in memory; the ledger says what went before. A repeat waits for
the holder and then finds its result. The claim is written before the effect and settled before the
reply, so at any moment a crash leaves one of: no claim, and nothing has happened; a claim in flight,
which `settlement` looks into; a settled one.

A result that can't be recorded is not given out, because a repeat could not be given it: the answer
is `unknown: in_doubt`, the name stays held, and `tick` tries again.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import Final

from stockade.flow.gate import NOTHING_RAN
from stockade.terms.audit import AuditEvent, Head
from stockade.terms.books import ClaimBook
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Code, Failure, Status, failure
from stockade.terms.outcome import EditOutcome
from stockade.terms.ports import Clock
from stockade.terms.result import ToolResult

# How long a caller may wait beyond its call's deadline (the SDK does for 60 s), and how far the
# times of both may be apart.
CALLER_S: Final = 60.0
SKEW_S: Final = 30.0
RETRY_AFTER_MS: Final = 1000
DAEMON: Final = "daemon"

_log: Final = logging.getLogger("stockade.claim")


@dataclass(slots=True)
class _Flight:
    key: str
    done: threading.Event = field(default_factory=threading.Event)


@dataclass(frozen=True, slots=True)
class _Unstored:
    state: ClaimState
    result: str | None
    outcome: AuditEvent | None


class Claims:
    """Thread-safe. `boot` names this boot of the host and `boottime` is its clock, in seconds."""

    def __init__(
        self, book: ClaimBook, *, clock: Clock, boot: str, boottime: Callable[[], float]
    ) -> None:
        self.book = book
        self.clock = clock
        self.boot = boot
        self.boottime = boottime
        self._lock = threading.Lock()
        self._flights: dict[str, _Flight] = {}
        self._unstored: dict[str, _Unstored] = {}

    @contextmanager
    def hold(self, name: str, key: str, wait_s: float, *, drawn: bool) -> Iterator[Slot]:
        """The call's name for as long as the block runs, after whoever has it now, for whom it
        waits at most `wait_s`. `drawn`: for this request, so the ledger can't know it. Raises
        Failure: in_flight, key_reused, in_doubt, storage_unavailable."""
        self._wait_for(name, key, wait_s)
        slot = Slot(self, name)
        try:
            slot.done = None if drawn else _judged(self.book.get(name), key)
            yield slot
        finally:
            if name not in self._unstored:
                self.leave(name)

    def take(self, record: ClaimRecord) -> bool:
        """The name of a claim that was left in flight, for its settlement, until `leave`; False
        when somebody has it."""
        with self._lock:
            if record.id in self._flights:
                return False
            self._flights[record.id] = _Flight(record.key)
            return True

    def leave(self, name: str) -> None:
        with self._lock:
            self._flights.pop(name).done.set()

    def lease_end(self, wall_limit_ms: int | None) -> float:
        """Until when a claim that begins now may be in flight, on `boottime`'s clock."""
        return self.boottime() + (wall_limit_ms or 0) / 1000 + CALLER_S + SKEW_S

    def over(self, record: ClaimRecord) -> bool:
        return record.boot != self.boot or record.until_boot_s <= self.boottime()

    def note(self, record: ClaimRecord, result: ToolResult, outcome: AuditEvent | None) -> None:
        """Keep the record of a read. A fault is logged: the read has been done."""
        try:
            done = _settled(record, ClaimState.COMPLETED, result.to_text(), self.clock())
            self.book.note(done, outcome)
        except Failure as error:
            _log.error("request_id=%s a read can't be recorded: %s", record.request_id, error)

    def tick(self) -> None:
        """Try again to record results that could not be."""
        for name, left in list(self._unstored.items()):
            try:
                self.book.settle(
                    name,
                    left.state,
                    at_s=self.clock(),
                    by=DAEMON,
                    result=left.result,
                    outcome=left.outcome,
                )
            except Failure as error:
                _log.error("claim=%s its result can't be recorded yet: %s", name, error)
                continue
            del self._unstored[name]
            self.leave(name)

    def store(
        self, name: str, state: ClaimState, result: str | None, outcome: AuditEvent | None
    ) -> Head | None:
        """Settle a claim of a call that has come to its end; gives the place of `outcome` in the
        audit. Raises Failure(in_doubt) when that can't be recorded now: it is tried again."""
        try:
            done = self.book.settle(
                name, state, at_s=self.clock(), by=DAEMON, result=result, outcome=outcome
            )
            return None if done is None else done.audit
        except Failure as error:
            _log.error("claim=%s its end can't be recorded: %s", name, error)
            self._unstored[name] = _Unstored(state, result, outcome)
            raise failure(
                Code.IN_DOUBT,
                "the call has come to its end and its result can't be recorded now; repeat it later "
                f"to get it: {error.fault.message}",
                claim=name,
            ) from error

    def _wait_for(self, name: str, key: str, wait_s: float) -> None:
        until = self.boottime() + wait_s
        while True:
            with self._lock:
                flight = self._flights.get(name)
                if flight is None:
                    self._flights[name] = _Flight(key)
                    return
            if flight.key != key:
                raise _reused(name)
            left = until - self.boottime()
            if left <= 0 or not flight.done.wait(left):
                raise _in_flight(name)


class Slot:
    """A held name. `done` is the claim of the call if it has been completed before: then there is
    nothing to do. `given` are the names under which its command was given to a sandbox. Else
    `record` is set to what its claim is to say and `intent` to what the audit is, and one thread at
    a time calls `start` or `foresee` before the effect and `settle` at the end."""

    def __init__(self, claims: Claims, name: str) -> None:
        self.name = name
        self.done: ClaimRecord | None = None
        self.record: ClaimRecord | None = None
        self.intent: AuditEvent | None = None
        self.given: tuple[str, str] | None = None
        self._claims = claims
        self._begun = False

    def start(self, sandbox: str, guest_call: str) -> None:
        """The command is about to be given to `sandbox`, under the name `guest_call`; again when
        what it was given to has died without reading it. Raises Failure(storage_unavailable): it
        may not be given then."""
        assert self.record is not None
        if self._begun:
            self._claims.book.started(self.name, sandbox, guest_call)
        else:
            # Its time begins here: the next process would end it early by what the call has waited.
            until = self._claims.lease_end(self.record.wall_limit_ms)
            self._begin(
                replace(self.record, sandbox=sandbox, guest_call=guest_call, until_boot_s=until)
            )
        self.given = sandbox, guest_call

    def foresee(self, edit: EditOutcome) -> None:
        """The edit is about to be made. Raises as `start`."""
        assert self.record is not None
        self._begin(replace(self.record, foreseen=edit))

    def _begin(self, record: ClaimRecord) -> None:
        self._claims.book.begin(record, self.intent)
        self.record, self._begun = record, True

    def unused(self, result: ToolResult) -> bool:
        """Whether `result` refuses a call that has not begun: nothing is to be settled."""
        return self.record is None or (not self._begun and result.status in NOTHING_RAN)

    def settle(self, result: ToolResult, outcome: AuditEvent | None) -> Head | None:
        """Record what became of the call; gives the place of `outcome` in the audit, None without
        one and where it is recorded later. Raises Failure(in_doubt) when that is not possible."""
        assert self.record is not None
        if not self._begun:  # it was refused for what it found, and repeats are told the same
            done = _settled(
                self.record, ClaimState.COMPLETED, result.to_text(), self._claims.clock()
            )
            return self._claims.book.put(done, outcome).audit
        if result.status in NOTHING_RAN:
            with suppress(Failure):  # the answer is true all the same, and the name stays held
                return self._claims.store(self.name, ClaimState.NOT_EXECUTED, None, outcome)
            return None
        if result.status is not Status.UNKNOWN:
            return self._claims.store(self.name, ClaimState.COMPLETED, result.to_text(), outcome)
        if self.record.foreseen is None:
            return self._claims.store(self.name, ClaimState.IN_DOUBT, result.to_text(), outcome)
        return None  # the file itself says what became of it, and `settlement` looks at it soon


def _judged(found: ClaimRecord | None, key: str) -> ClaimRecord | None:
    """What the ledger's claim means to a call with its name: None when it may start."""
    if found is None or found.state is ClaimState.NOT_EXECUTED:
        return None
    if found.key != key:
        raise _reused(found.id)
    if found.state is ClaimState.IN_FLIGHT:
        raise _in_flight(found.id)
    if found.state is ClaimState.IN_DOUBT:
        why = f": {found.reason}" if found.reason else ""
        raise failure(
            Code.IN_DOUBT,
            f"an earlier attempt may have run{why}; it has to be settled first",
            claim=found.id,
        )
    return found


def _settled(record: ClaimRecord, state: ClaimState, result: str, at_s: float) -> ClaimRecord:
    return replace(record, state=state, result=result, settled_at_s=at_s, settled_by=DAEMON)


def _reused(name: str) -> Failure:
    return failure(
        Code.KEY_REUSED,
        "this turn and call id were used for another tool or for other arguments",
        claim=name,
    )


def _in_flight(name: str) -> Failure:
    return failure(
        Code.IN_FLIGHT,
        "the same call is still running",
        retry_after_ms=RETRY_AFTER_MS,
        claim=name,
    )
