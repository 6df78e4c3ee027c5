"""The steps that make, reset and remove a lease, in an order that survives a crash anywhere.

The ledger is written before anything is made or removed, and again when it is done: `creating`,
workspace, `ready`; `resetting`, workspace, `ready`; `dirty`, everything of the lease, `released`.
What a crash leaves is therefore always named by a record whose state says what to do: remove or
repeat. Each step may be repeated, because each port's operation is idempotent.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Iterator
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final, TypeVar

from stockade.decide.compile import lease_tmp_bytes
from stockade.flow.locks import OperationLocks
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.outcome import End
from stockade.terms.plan import Limits
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
    """What lease operations and the sweeper share. The caller holds the lease's operation lock."""

    def __init__(
        self,
        *,
        ledger: Ledger,
        workspaces: Workspaces,
        engine: Engine,
        artifacts: ArtifactStore,
        running: Running,
        sandboxes: Sandboxes,
    ) -> None:
        self.ledger = ledger
        self.workspaces = workspaces
        self.engine = engine
        self.artifacts = artifacts
        self.locks = OperationLocks()
        self.live = LiveLeases(ledger)
        self._running = running
        self._sandboxes = sandboxes

    def make(
        self, record: LeaseRecord, expires_at_s: Callable[[], float]
    ) -> tuple[LeaseRecord, SourceReport]:
        """Record the lease and make its workspace. `expires_at_s` is asked at the end: copying a
        large source does not use the lease's time up."""
        self.ledger.add_lease(record)
        try:
            spec = self.spec(record)
            report = self.workspaces.create(spec)
            self.workspaces.attach(spec)
            record = replace(record, state=LeaseState.READY, expires_at_s=expires_at_s())
            self.ledger.put_lease(record)
        except BaseException:
            self.try_remove(record, End.CANCELLED)
            raise
        return record, report

    def reset(self, record: LeaseRecord) -> LeaseRecord:
        """Drop everything written since create. Running calls are cancelled and all sandboxes
        closed first. After a failure the lease stays `resetting`, to be repeated."""
        with self._running.closed(record.id, End.CANCELLED, DRAIN_S):
            record = self._state(record, LeaseState.RESETTING)
            self._sandboxes.end(record.id)
            self.workspaces.reset(self.spec(record))
            record = replace(record, workspace_version=record.workspace_version + 1)
            return self._state(record, LeaseState.READY)

    def hand_over(self, record: LeaseRecord) -> LeaseRecord:
        """Write `record`, which carries a new generation, and end all that runs under the old."""
        with self._running.closed(record.id, End.CANCELLED, DRAIN_S):
            self.ledger.put_lease(record)
            self._sandboxes.end(record.id)
        return record

    def remove(self, record: LeaseRecord, reason: End) -> LeaseRecord:
        """Remove everything of the lease, running calls first, which end with `reason`. After a
        failure the lease stays `dirty`. The released record keeps no token."""
        if record.state is LeaseState.RELEASED:
            return record
        with self._running.closed(record.id, reason, DRAIN_S):
            record = self._state(record, LeaseState.DIRTY)
            self._sandboxes.close_lease(record.id)
            self.workspaces.remove(record.id)
            self.artifacts.remove(record.id)
            return self._state(replace(record, token=""), LeaseState.RELEASED)

    def try_remove(self, record: LeaseRecord, reason: End) -> bool:
        """`remove` for those who can't answer for its failure: it is logged, and the record says
        that it is to be repeated. Every exception, because one lease must not stop the others."""
        try:
            self.remove(record, reason)
        except Exception as error:
            _log.warning("lease=%s cleanup failed, to be repeated: %s", record.id, error)
            return False
        return True

    def try_reset(self, record: LeaseRecord) -> bool:
        """`reset` like `try_remove`."""
        try:
            self.reset(record)
        except Exception as error:
            _log.warning("lease=%s reset failed, to be repeated: %s", record.id, error)
            return False
        return True

    def attach(self, record: LeaseRecord) -> Workspace:
        return self.workspaces.attach(self.spec(record))

    def spec(self, record: LeaseRecord) -> WorkspaceSpec:
        per_lease = record.grant.per_lease
        return WorkspaceSpec(
            lease_id=record.id,
            uid_base=record.uid_base,
            source=record.source,
            excludes=record.excludes,
            limits=Limits(
                memory_bytes=per_lease.memory_bytes,
                cpu_millis=per_lease.cpu_millis,
                pids=per_lease.pids,
                disk_bytes=per_lease.disk_bytes,
                inodes=per_lease.inodes,
            ),
            tmp_bytes=lease_tmp_bytes(per_lease),
        )

    def _state(self, record: LeaseRecord, state: LeaseState) -> LeaseRecord:
        changed = replace(record, state=state)
        self.ledger.put_lease(changed)
        return changed
