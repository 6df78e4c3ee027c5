"""The flow's side of the audit: which decisions and effects become a record, and when it is signed.

A call that may change something has an intent before it starts and an outcome after it ended; a
call that only reads has its outcome. If the intent can't be written nothing runs. A refused call
has one record, as far as `refusals` lets it. Changes of leases are recorded by the ledger itself.

`tick` signs what was written, after so many seconds or records, writes down what was only counted,
and drops what is exported and old. It is called by the sweeper's thread.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Final, TypedDict, Unpack, cast

from stockade.decide.chain import CLOSED, genuine
from stockade.decide.chain_verifier import closes
from stockade.flow.call_events import (
    CallFacts,
    Redact,
    intent,
    nothing_secret,
    outcome,
    outcome_of,
    settlement,
)
from stockade.flow.claims import DAEMON
from stockade.flow.refusals import Counted, Refusals
from stockade.terms.audit import Acting, AuditEvent, AuditKind, AuditLog, Checkpoint, Detail, Head
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Failure, Fault
from stockade.terms.lease import LeaseRecord
from stockade.terms.ports import Clock
from stockade.terms.result import AuditRef, ToolResult

_log: Final = logging.getLogger("stockade.audit")


@dataclass(frozen=True, slots=True)
class AuditSettings:
    """A checkpoint follows the first unsigned record after `checkpoint_s` seconds, or when there
    are `checkpoint_records`. Exported records are dropped when they are older than `keep_s`."""

    checkpoint_s: int = 60
    checkpoint_records: int = 1000
    keep_s: int = 7 * 24 * 3600


class NotedOfLease(TypedDict, total=False):
    """What an event that is no call says beside its lease, as in `AuditEvent`."""

    turn: int | None
    call_id: str | None
    chain: tuple[str, ...]
    detail: Detail


class Noted(NotedOfLease, total=False):
    tenant: str | None
    trajectory: str
    lease_id: str
    generation: int
    tool: str
    status: str
    code: str
    rule: str | None


class Auditor:
    """Thread-safe. Methods that write raise Failure(storage_unavailable) unless they say else."""

    def __init__(
        self,
        log: AuditLog,
        clock: Clock,
        settings: AuditSettings | None = None,
        redact: Redact = nothing_secret,
    ) -> None:
        self.log = log
        self._clock = clock
        self._settings = settings or AuditSettings()
        self._redact = redact
        self._refusals = Refusals()
        self._sealed_at_s = clock()

    def intent(self, facts: CallFacts) -> AuditEvent:
        """A call that may change something is about to start. To be written with its claim."""
        return intent(facts, self._now_ms(), self._redact)

    def outcome(self, facts: CallFacts, result: ToolResult) -> AuditEvent:
        """A call has ended. To be written with its settlement; see `referring`."""
        return outcome(facts, result, self._now_ms(), self._redact)

    def outcome_of(self, intent: AuditEvent, result: ToolResult) -> AuditEvent:
        """As `outcome`, of a call that had an intent."""
        return outcome_of(intent, result, self._now_ms())

    def settled(
        self,
        record: ClaimRecord,
        state: ClaimState,
        by: str,
        reason: str,
        result: ToolResult | None,
    ) -> AuditEvent:
        """What became of a call that was cut off, once somebody knows: `by` is the daemon or a
        person as `uid N`."""
        made = settlement(record, self._now_ms(), self._redact, result)
        detail = {"claim": record.id, "state": state.value, "reason": reason}
        return self._hidden(replace(made, actor=None if by == DAEMON else by, detail=detail))

    def refusal(self, facts: CallFacts, result: ToolResult) -> AuditEvent | None:
        """A call of which nothing was carried out; None where there are too many of them."""
        now = self._clock()
        code = "-" if result.error is None else result.error.code.value
        if not self._refusals.admit(facts.tenant, code, now):
            return None
        return outcome(facts, result, int(now * 1000), self._redact, refused=True)

    def refused(self, facts: CallFacts, result: ToolResult) -> ToolResult:
        """The result of a call of which nothing was carried out, with the place of its record.
        Without a record where there are too many of them or it can't be written. Never raises Failure:
        refusing is all that is left to do."""
        event = self.refusal(facts, result)
        if event is None:
            return result
        try:
            return referring(result, self.log.write(event))
        except Failure as failed:
            _log.error("a refusal could not be recorded: %s", failed)
            return result

    def request_refused(self, who: Acting, tenant: str | None, what: str, fault: Fault) -> None:
        """As `refused` for a request that is no call, or never became one."""
        now = self._clock()
        if not self._refusals.admit(tenant, fault.code.value, now):
            return
        try:
            self.note(
                AuditKind.REQUEST_REFUSED,
                who,
                tenant=tenant,
                status=fault.status.value,
                code=fault.code.value,
                rule=fault.rule,
                detail={"request": what},
            )
        except Failure as failed:
            _log.error("a refusal could not be recorded: %s", failed)

    def note(self, kind: AuditKind, who: Acting, **said: Unpack[Noted]) -> Head:
        """Any other event."""
        return self.log.write(self._hidden(self._event(kind, who, **said)))

    def note_of_lease(
        self, kind: AuditKind, who: Acting, record: LeaseRecord, **said: Unpack[NotedOfLease]
    ) -> Head:
        """`note` with the lease's names. Before the effect, wherever what can't be recorded must
        not be done."""
        return self.note(
            kind,
            who,
            tenant=record.tenant,
            trajectory=record.trajectory,
            lease_id=record.id,
            generation=record.generation,
            **said,
        )

    @contextmanager
    def acting(self, who: Acting) -> Iterator[None]:
        """What this thread does to leases meanwhile is recorded as done by `who`."""
        with self.log.acting(who):
            yield

    def exported(self, through: int, who: Acting) -> None:
        """Raises Failure(invalid_argument)."""
        event = self._event(AuditKind.AUDIT_EXPORTED, who, detail={"through": through})
        self.log.exported(through, event)

    def start(self, version: str, instance: str, kept: Checkpoint | None) -> None:
        """The first record of a process, signed at once: what stands between the end of a process
        that stopped in order and this was written by somebody else. `kept` is the checkpoint that
        was put elsewhere: where the ledger does not hold what it signs, or more than there was at
        such an end, the record says so for ever, and so does the log."""
        detail: dict[str, int | str] = {"version": version, "instance": instance}
        if kept is not None and not self._holds(kept):
            detail["missing_through"] = kept.seq
            _log.error(
                "the audit lacks records up to %d, which a checkpoint signs: see docs/audit.md",
                kept.seq,
            )
        state = self.log.state()
        end = _newest(kept, state.sealed)
        if end is not None and state.head.seq > end.seq + 1 and self._closed_at(end.seq):
            detail["added_from"] = end.seq + 2
            _log.error(
                "the audit has records from %d on that were added after the daemon had stopped: see "
                "docs/audit.md",
                end.seq + 2,
            )
        self._write_signed(AuditKind.DAEMON_STARTED, detail)

    def stop(self) -> None:
        """The last record of a process, signed. Never raises Failure: it is the end anyway."""
        try:
            self._write_counts(all_=True)
            self._write_signed(AuditKind.DAEMON_STOPPED, {CLOSED: True}, last=True)
        except Failure as failed:
            _log.error("the audit could not be closed: %s", failed)

    def seal(self) -> None:
        """Sign what there is now."""
        now = self._clock()
        self._signed(now, self.log.seal(int(now * 1000)))

    def _write_signed(self, kind: AuditKind, detail: Detail, *, last: bool = False) -> None:
        now = self._clock()
        at_ms = int(now * 1000)
        event = AuditEvent(kind, at_ms, detail=detail)
        self._signed(now, self.log.write_signed(event, at_ms, last=last))

    def _signed(self, now: float, made: Checkpoint | None) -> None:
        self._sealed_at_s = now
        if made is not None:
            # So that whoever collects logs has what the audit can be held against.
            _log.info("checkpoint %s", made.model_dump_json())

    def tick(self) -> None:
        """Never raises an Exception."""
        try:
            self._write_counts(all_=False)
            now, waiting = self._clock(), self.log.unsealed()
            passed = now - self._sealed_at_s
            # A clock that was set back must not put the next checkpoint off.
            due = passed >= self._settings.checkpoint_s or passed < 0
            if waiting and (due or waiting >= self._settings.checkpoint_records):
                self.seal()
            elif not waiting:
                self._sealed_at_s = now
            if self.log.drop(int((now - self._settings.keep_s) * 1000), int(now * 1000)):
                self._signed(now, self.log.state().sealed)
        except Exception as error:
            _log.error("upkeep of the audit failed, to be repeated: %s", error)

    def _event(self, kind: AuditKind, who: Acting, **said: Unpack[Noted]) -> AuditEvent:
        event = AuditEvent(
            kind=kind,
            at_ms=self._now_ms(),
            actor=who.actor,
            request_id=who.request_id,
            client=who.client,
            model=who.model,
        )
        return replace(event, **said)

    def _hidden(self, event: AuditEvent) -> AuditEvent:
        """What a person or a path says may hold a secret, as arguments may."""
        if event.detail is None:
            return event
        detail, hidden = self._redact(event.lease_id, event.detail)
        if not hidden:
            return event
        # As it was, with other texts in it.
        return replace(
            event, detail=cast(Detail, detail), redactions=(event.redactions or 0) + hidden
        )

    def _write_counts(self, *, all_: bool) -> None:
        for counted in self._refusals.take(self._clock(), all_=all_):
            self.log.write(_counts(counted, self._now_ms()))

    def _holds(self, kept: Checkpoint) -> bool:
        found = next(iter(self.log.read(kept.seq)), None)
        first = self.log.state().first
        return found is not None and (
            (found.seq == kept.seq and found.hash.hex() == kept.hash)
            # The checkpoint itself is the oldest record: what it signs was dropped.
            or (first == kept.seq + 1 == found.seq and found.prev.hex() == kept.hash)
        )

    def _closed_at(self, seq: int) -> bool:
        found = next(iter(self.log.read(seq)), None)
        return found is not None and found.seq == seq and closes(found.body)

    def _now_ms(self) -> int:
        return int(self._clock() * 1000)


def referring(result: ToolResult, place: Head) -> ToolResult:
    """The result with the place of the record that covers it."""
    return result.model_copy(update={"audit": AuditRef(seq=place.seq, hash=place.hash.hex())})


def _newest(kept: Checkpoint | None, sealed: Checkpoint | None) -> Checkpoint | None:
    """The one beside the ledger is written after the ledger's, so a kill or a full disk in between
    leaves it behind. A newer one in the ledger that the same key has signed is as good."""
    if kept is None or sealed is None:
        return kept or sealed
    newer = sealed.seq > kept.seq and sealed.key == kept.key and genuine(sealed)
    return sealed if newer else kept


def _counts(counted: Counted, at_ms: int) -> AuditEvent:
    return AuditEvent(
        AuditKind.REFUSALS,
        at_ms,
        tenant=counted.tenant,
        detail={
            "count": sum(number for _, number in counted.codes),
            "codes": [f"{code}={number}" for code, number in counted.codes],
            "first_ms": int(counted.first_s * 1000),
            "last_ms": int(counted.last_s * 1000),
        },
    )
