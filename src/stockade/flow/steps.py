"""The steps that make, reset and remove a lease, in an order that survives a crash anywhere.

The ledger is written before anything is made or removed, and again when it is done: `creating`,
workspace, `ready`; `resetting`, workspace, `ready`; `dirty`, everything of the lease, `released`.
What a crash leaves is therefore always named by a record whose state says what to do: remove or
repeat. Each step may be repeated, because each port's operation is idempotent.

Leases that work in the lease's workspace (`families`) are ended, or their sandboxes are, after that
first write and before the workspace is touched; none of them lets a call in while the lease above
it is anything but `ready`. So a crash in between leaves no sandbox on a workspace that changes under
it, and the repetition goes on where it was.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import Final, TypeVar

from stockade.decide.compile import lease_limits, lease_tmp_bytes
from stockade.flow.authority import Authority
from stockade.flow.families import Families, SharedWorkspace
from stockade.flow.locks import OperationLocks
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.moment import Moment
from stockade.terms.outcome import End
from stockade.terms.ports import (
    ArtifactStore,
    Engine,
    Ledger,
    SourceReport,
    Workspace,
    Workspaces,
    WorkspaceSpec,
)

# How long an operation waits for cancelled calls; their kill takes milliseconds.
DRAIN_S: Final = 30.0

S = TypeVar("S")

_log: Final = logging.getLogger(__name__)


class LiveLeases(AbstractSet[str]):
    """The ids of all leases that are not released, as the ledger knows them when it is asked."""

    def __init__(self, ledger: Ledger) -> None:
        self._ledger = ledger

    @classmethod
    def _from_iterable(cls, it: Iterable[S]) -> AbstractSet[S]:
        # What is left of `found - live` is a plain set.
        return frozenset(it)

    def __contains__(self, lease_id: object) -> bool:
        record = self._ledger.lease(lease_id) if isinstance(lease_id, str) else None
        return record is not None and record.state is not LeaseState.RELEASED

    def __iter__(self) -> Iterator[str]:
        return iter([record.id for record in self._ledger.leases()])

    def __len__(self) -> int:
        return len(self._ledger.leases())


class LeaseSteps:
    """What lease operations and the sweeper share. The caller holds the operation locks of the
    lease and of all that share its workspace (`Families.hold`); to make one, those of the line
    above it."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        workspaces: Workspaces,
        engine: Engine,
        artifacts: ArtifactStore,
        running: Running,
        sandboxes: Sandboxes,
        authority: Authority,
        ended: Callable[[str], None],
    ) -> None:
        """`ended` is told the id of each lease that has been released."""
        self.ledger = ledger
        self.workspaces = workspaces
        self.engine = engine
        self.artifacts = artifacts
        self.authority = authority
        self.locks = OperationLocks()
        self.families = Families(ledger, self.locks)
        self.live = LiveLeases(ledger)
        self._running = running
        self._sandboxes = sandboxes
        self._ended = ended

    def over(self, record: LeaseRecord, now: Moment) -> bool:
        """Whether the lease's time has come, or its capability was revoked, or the lease whose
        workspace it works in has ended."""
        if record.left_s(now) <= 0 or self.authority.revoked(record.chain):
            return True
        if record.shares is None:
            return False
        above = self.ledger.lease(record.shares)
        held = (LeaseState.READY, LeaseState.RESETTING)
        return above is None or above.state not in held or self.over(above, now)

    def make(
        self,
        record: LeaseRecord,
        begin: Callable[[LeaseRecord], LeaseRecord],
        origin: LeaseRecord | None = None,
    ) -> tuple[LeaseRecord, SourceReport]:
        """Record the lease and make its workspace, unless it shares that of `origin`; a copy of
        it if that is what `forked_from` says. `begin` gives the lease its end and is asked last:
        copying a large source does not use the lease's time up."""
        with ExitStack() as quiet:
            if origin is not None and record.forked_from is not None:
                owner = self.families.owner(origin)
                users = [each.id for each in (owner, *self.families.below(owner))]
                quiet.enter_context(self._running.idle(users))
            return self._make(record, begin, origin)

    def _make(
        self,
        record: LeaseRecord,
        begin: Callable[[LeaseRecord], LeaseRecord],
        origin: LeaseRecord | None,
    ) -> tuple[LeaseRecord, SourceReport]:
        # Twice: what the engine begins may have passed again when a large source is there.
        self.engine.expect()
        self.ledger.add_lease(record)
        try:
            report = self._fill(record, origin)
            self.engine.expect()
            self.attach(record)
            record = begin(replace(record, state=LeaseState.READY))
            self.ledger.put_lease(record)
        except BaseException as error:
            self.try_remove(record, End.CANCELLED)
            if isinstance(error, Failure) or not isinstance(error, Exception):
                raise
            # No descriptor or thread left, say. What could not be removed is never handed out, so
            # a create that failed has had no effect.
            _log.exception("lease=%s could not be made", record.id)
            raise failure(
                Code.INTERNAL, "a fault of Stockade; there is no lease of this create"
            ) from error
        return record, report

    def reset(self, record: LeaseRecord) -> LeaseRecord:
        """Drop everything written since create. Running calls are cancelled and all sandboxes
        closed first. After a failure the lease stays `resetting`, to be repeated."""
        below = self.families.below(record)
        with self._closed((record, *below), End.CANCELLED):
            record = self._state(record, LeaseState.RESETTING)
            version = record.workspace_version + 1
            for each in reversed(below):
                if each.state is LeaseState.READY:
                    self._sandboxes.end(each.id)
                    self.ledger.put_lease(replace(each, workspace_version=version))
                else:
                    self._clear(each)
            self._sandboxes.end(record.id)
            self.workspaces.reset(self.spec(record))
            return self._state(replace(record, workspace_version=version), LeaseState.READY)

    def hand_over(self, record: LeaseRecord) -> LeaseRecord:
        """Write `record`, which carries a new generation, and end all that runs under the old:
        the leases below it too, before there is a new owner."""
        below = self.families.below(record)
        with self._closed((record, *below), End.CANCELLED):
            for each in reversed(below):
                self._clear(each)
            self.ledger.put_lease(record)
            self._sandboxes.end(record.id)
        return record

    def remove(self, record: LeaseRecord, reason: End) -> LeaseRecord:
        """Remove everything of the lease and of those below it, running calls first, which end
        with `reason`. After a failure the lease stays `dirty`. The released record keeps no
        token."""
        if record.state is LeaseState.RELEASED:
            return record
        below = self.families.below(record)
        with self._closed((record, *below), reason):
            record = self._state(record, LeaseState.DIRTY)
            for each in reversed(below):
                self._clear(replace(each, given_up=record.given_up))
            return self._clear(record)

    def _clear(self, record: LeaseRecord) -> LeaseRecord:
        """Remove everything of one lease. Nothing runs in it, and nothing is below it."""
        if record.state is not LeaseState.DIRTY:
            record = self._state(record, LeaseState.DIRTY)
        self._sandboxes.close_lease(record.id)
        if record.shares is None:
            self.workspaces.remove(record.id)
        self.artifacts.remove(record.id)
        released = self._state(replace(record, token=""), LeaseState.RELEASED)
        self._ended(record.id)
        return released

    def _fill(self, record: LeaseRecord, origin: LeaseRecord | None) -> SourceReport:
        if record.shares is not None:
            return SourceReport(files=0, bytes=0, skipped=0)
        if record.forked_from is None or origin is None:
            return self.workspaces.create(self.spec(record))
        owner = self.families.owner(origin)
        read = record.grant.scope.read
        return self.workspaces.fork(self.spec(record), self.spec(owner), read)

    @contextmanager
    def _closed(self, records: Sequence[LeaseRecord], reason: End) -> Iterator[None]:
        with ExitStack() as stack:
            for record in records:
                stack.enter_context(self._running.closed(record.id, reason, DRAIN_S))
            yield

    def try_remove(self, record: LeaseRecord, reason: End) -> None:
        """`remove` for those who can't answer for its failure: it is logged, and the record says
        that it is to be repeated. Every exception, because one lease must not stop the others."""
        try:
            self.remove(record, reason)
        except Exception as error:
            _log.warning("lease=%s cleanup failed, to be repeated: %s", record.id, error)

    def try_reset(self, record: LeaseRecord) -> None:
        """`reset` like `try_remove`."""
        try:
            self.reset(record)
        except Exception as error:
            _log.warning("lease=%s reset failed, to be repeated: %s", record.id, error)

    def attach(self, record: LeaseRecord) -> Workspace:
        spec = self.spec(record)
        if record.shares is None:
            return self.workspaces.attach(spec)
        shared = self.workspaces.attach(self.spec(self.families.owner(record)))
        return SharedWorkspace(shared, record.id, spec.limits)

    def spec(self, record: LeaseRecord) -> WorkspaceSpec:
        per_lease = record.grant.per_lease
        return WorkspaceSpec(
            lease_id=record.id,
            uid_base=record.uid_base,
            source=record.source,
            excludes=record.excludes,
            limits=lease_limits(per_lease),
            tmp_bytes=lease_tmp_bytes(per_lease),
        )

    def _state(self, record: LeaseRecord, state: LeaseState) -> LeaseRecord:
        changed = replace(record, state=state)
        self.ledger.put_lease(changed)
        return changed
