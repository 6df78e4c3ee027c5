"""What becomes of calls that were cut off, and of those that a person knows more about.

Claims in flight that nobody holds were left by an earlier process, or by a fault in this one. Each
is looked at once when the daemon starts, before the first call is let in, and again by the sweeper
until it is settled:

    an edit        the file has the version that the edit was to make: completed, with the result
                   that the claim foresaw; it has the old one: not executed; else in doubt
    a command      the engine says what is left of it: its end, its unused process, itself still
                   running, or nothing: in doubt

A command that still runs holds its name and its place in `Running` like any call, and its budgets
bound it as they did. A claim that can't be looked at (its workspace can't be mounted, say) stays in
flight until its own lease is over, and is in doubt then. So none stays for ever.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from stockade.flow.auditing import Auditor
from stockade.flow.claims import CALLER_S, DAEMON, SKEW_S, Claims
from stockade.flow.leases import Leases
from stockade.flow.running import Running
from stockade.flow.spending import Bill, Spending
from stockade.flow.told import Teller
from stockade.terms.call import ViewOperation
from stockade.terms.claim import (
    ClaimRecord,
    ClaimState,
    Completed,
    NotExecuted,
    StillRunning,
)
from stockade.terms.fault import Code, Failure, Status, failure
from stockade.terms.lease import LeaseState
from stockade.terms.outcome import EditOutcome, ExecOutcome
from stockade.terms.pathname import TMP, WORKSPACE
from stockade.terms.ports import ArtifactStore, Engine, ExecContext, Files, PathScope
from stockade.terms.result import ToolResult
from stockade.tools import catalog
from stockade.tools.settle import Found, Probe, settle_edit

MOST_AT_ONCE: Final = 10_000
MOST_LISTED: Final = 1000
_EVERYWHERE: Final = PathScope(read=(WORKSPACE, TMP), write=(WORKSPACE, TMP), deny=())

_log: Final = logging.getLogger("stockade.claim")


class Settlement:
    """Thread-safe. `recover` once, before calls are let in; `tick` by the sweeper."""

    def __init__(
        self,
        claims: Claims,
        teller: Teller,
        *,
        leases: Leases,
        engine: Engine,
        running: Running,
        artifacts: ArtifactStore,
        audit: Auditor,
        spending: Spending,
    ) -> None:
        self._claims = claims
        self._book = claims.book
        self._teller = teller
        self._leases = leases
        self._engine = engine
        self._running = running
        self._artifacts = artifacts
        self._audit = audit
        self._spending = spending

    def recover(self) -> None:
        """Raises Failure(storage_unavailable)."""
        self._look()

    def tick(self) -> None:
        """Raises Failure(storage_unavailable)."""
        self._claims.tick()
        self._look()

    def list(
        self, tenant: str | None, lease_id: str | None, *, in_doubt: bool
    ) -> Sequence[ClaimRecord]:
        """The newest, oldest first, without arguments and results."""
        states = (ClaimState.IN_DOUBT,) if in_doubt else tuple(ClaimState)
        return self._book.list(tenant, lease_id, states, MOST_LISTED)

    def show(self, tenant: str | None, claim_id: str) -> ClaimRecord:
        """Raises Failure(not_found), also for another tenant's."""
        found = self._book.get(claim_id)
        if found is None or tenant not in (None, found.tenant):
            raise failure(Code.NOT_FOUND, "there is no such call")
        return found

    def chain_of_artifact(self, lease_id: str, artifact_id: str) -> tuple[str, ...] | None:
        """That of the call that kept it. Raises Failure(storage_unavailable)."""
        return self._book.chain_of_artifact(lease_id, artifact_id)

    def settle(
        self, tenant: str | None, claim_id: str, *, completed: bool, by: str, reason: str
    ) -> ClaimRecord:
        """What a person has found out about a call in doubt. Raises Failure: not_found, in_flight,
        key_reused for one that is settled."""
        found = self.show(tenant, claim_id)
        if found.state is ClaimState.IN_FLIGHT:
            raise failure(Code.IN_FLIGHT, "the call is still running; cancel it, or wait")
        reason = self._teller.hidden(found, reason)
        state = ClaimState.COMPLETED if completed else ClaimState.NOT_EXECUTED
        told = self._teller.by_hand(found, by, reason) if completed else None
        done = self._book.settle(
            claim_id,
            state,
            at_s=self._claims.clock(),
            by=by,
            result=None if told is None else told.to_text(),
            reason=reason,
            outcome=self._audit.settled(found, state, by, reason, told),
        )
        if not done:
            raise failure(Code.KEY_REUSED, f"the call is settled already: {found.state}")
        return self.show(tenant, claim_id)

    def _look(self) -> None:
        edits = _Edits()
        # The newest first: an edit that began with what an earlier one made says that it happened.
        for seen in reversed(self._book.list(None, None, (ClaimState.IN_FLIGHT,), MOST_AT_ONCE)):
            if not self._claims.take(seen):
                continue
            handed_on = False
            try:
                record = self._book.get(seen.id)
                if record is not None and record.state is ClaimState.IN_FLIGHT:
                    handed_on = self._try_settle(record, edits)
            finally:
                if not handed_on:
                    self._claims.leave(seen.id)

    def _try_settle(self, record: ClaimRecord, edits: _Edits) -> bool:
        """Whether it still runs, so that its name is left by whoever waits for it."""
        try:
            return self._settle(record, edits)
        except Failure as error:
            if self._claims.over(record):
                self._in_doubt(record, f"it can't be looked at: {error.fault.message}")
            else:
                _log.warning("claim=%s can't be settled yet: %s", record.id, error)
        return False

    def _settle(self, record: ClaimRecord, edits: _Edits) -> bool:
        if catalog.get(record.tool).probe is Probe.VERSION:
            self._settle_edit(record, edits)
        elif record.sandbox is None or record.guest_call is None:
            self._in_doubt(record, "its claim names no sandbox")
        else:
            return self._settle_command(record, record.sandbox, record.guest_call)
        return False

    def _settle_edit(self, record: ClaimRecord, edits: _Edits) -> None:
        edit = record.foreseen
        lease = self._leases.show(None, record.lease_id)
        if edit is None or lease.state is not LeaseState.READY:
            self._in_doubt(record, "its workspace is gone")
            return
        if lease.workspace_version != record.workspace_version:
            self._in_doubt(record, "its workspace was reset after it")
            return
        files = self._leases.workspace(lease).files
        found = settle_edit(edit, _version(files, edit), edits.of(record))
        _tidy(record, files, edit)
        if found is Found.EXECUTED:
            edits.add(record, edit)
            self._completed(record, edit)
        elif found is Found.NOT_EXECUTED:
            self._not_executed(record, "the file has the version from before it")
        else:
            self._in_doubt(record, "the file has neither the version from before nor the one after")

    def _settle_command(self, record: ClaimRecord, sandbox: str, guest_call: str) -> bool:
        evidence = self._engine.evidence(sandbox, guest_call)
        if isinstance(evidence, StillRunning):
            return self._go_on(record, evidence)
        if isinstance(evidence, Completed):
            self._ended(record, evidence.outcome, self._spending.resume(record))
        elif isinstance(evidence, NotExecuted):
            self._not_executed(record, "the process that was to become it ended unused")
        else:
            self._in_doubt(record, "its sandbox ended with the daemon that had started it")
        return False

    def _go_on(self, record: ClaimRecord, evidence: StillRunning) -> bool:
        """Wait for it in a thread of its own, in which it can be cancelled like any call."""
        entered = threading.Event()

        def work() -> None:
            try:
                self._finish(record, evidence, entered)
            except Exception:
                _log.exception("claim=%s can't be waited for", record.id)
            finally:
                self._claims.leave(record.id)
                entered.set()

        threading.Thread(target=work, name=f"adopted-{record.id}", daemon=True).start()
        # So that no reset or release of its lease comes in between.
        entered.wait()
        return True

    def _finish(
        self, record: ClaimRecord, evidence: StillRunning, entered: threading.Event
    ) -> None:
        with self._running.enter(
            record.lease_id,
            record.request_id,
            record.call_id,
            MOST_AT_ONCE,
            record.turn,
            record.chain,
        ) as cancel:
            entered.set()
            bill = self._spending.resume(record)
            meter = None if bill is None else bill.meter
            context = ExecContext(record.lease_id, cancel, self._artifacts, cpu=meter)
            left_s = record.until_boot_s - self._claims.boottime() - CALLER_S - SKEW_S
            outcome = evidence.finish(context, max(1, int(left_s * 1000)))
            self._ended(record, outcome, bill)

    def _ended(self, record: ClaimRecord, outcome: ExecOutcome, bill: Bill | None) -> None:
        if bill is None:
            self._completed(record, outcome)
            return
        bill.end(outcome.cpu_ms)
        if bill.shortage is not None:
            outcome = replace(outcome, shortage=bill.shortage)
        self._completed(record, outcome, bill.cost_micro)

    def _completed(
        self,
        record: ClaimRecord,
        outcome: ExecOutcome | EditOutcome,
        cost_micro: int | None = None,
    ) -> None:
        result = self._teller.result(record, outcome, cost_micro)
        unknown = result.status is Status.UNKNOWN
        self._end(
            record,
            ClaimState.IN_DOUBT if unknown else ClaimState.COMPLETED,
            "found after the daemon was cut off",
            result,
        )

    def _not_executed(self, record: ClaimRecord, why: str) -> None:
        self._end(record, ClaimState.NOT_EXECUTED, why, None)

    def _in_doubt(self, record: ClaimRecord, why: str) -> None:
        self._end(record, ClaimState.IN_DOUBT, why, self._teller.in_doubt(record, why))

    def _end(
        self, record: ClaimRecord, state: ClaimState, why: str, result: ToolResult | None
    ) -> None:
        _log.warning("claim=%s lease=%s %s: %s", record.id, record.lease_id, state, why)
        self._book.settle(
            record.id,
            state,
            at_s=self._claims.clock(),
            by=DAEMON,
            result=None if result is None else result.to_text(),
            reason=why,
            outcome=self._audit.settled(record, state, DAEMON, why, result),
        )
        if record.sandbox is not None and record.guest_call is not None:
            self._engine.forget(record.sandbox, record.guest_call)


def _version(files: Files, edit: EditOutcome) -> str | None:
    look = ViewOperation(edit.path, offset=1, limit=1, max_bytes=1, max_line_chars=1)
    try:
        return files.view(look, _EVERYWHERE).version
    except Failure as error:
        if error.fault.code is Code.WORKSPACE_UNAVAILABLE:
            raise
        return None  # no text file is there any more


def _tidy(record: ClaimRecord, files: Files, edit: EditOutcome) -> None:
    try:
        files.tidy(edit, _EVERYWHERE)
    except Failure as error:  # its directory is gone, say
        _log.warning("claim=%s may have left a temporary name: %s", record.id, error)


class _Edits:
    """Versions that edits which happened have begun with, by the file."""

    def __init__(self) -> None:
        self._began: dict[tuple[str, str], set[str]] = {}

    def add(self, record: ClaimRecord, edit: EditOutcome) -> None:
        self._began.setdefault((record.lease_id, edit.path), set()).add(edit.old_version)

    def of(self, record: ClaimRecord) -> frozenset[str]:
        path = "" if record.foreseen is None else record.foreseen.path
        return frozenset(self._began.get((record.lease_id, path), ()))
