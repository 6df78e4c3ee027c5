"""Leases that work in the workspace of another lease, and how they are kept in step with it.

`shares` of a record names the lease above it. The topmost one owns the workspace: its directory,
its disk, its range of user ids. Those below have their own token, limits, sandboxes and artifacts,
and end with any lease above them.

Operations take locks from the top downwards. Whoever makes a lease below another one holds the
locks of the whole line above it; whoever resets, hands over or removes a lease holds its lock and
those of all below it. So what is below a locked lease only ever becomes less. A lease is always of
a trajectory strictly below that of the lease it shares with, so no two operations can wait for each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from typing import BinaryIO, Final

from stockade.flow.holding import not_granted
from stockade.flow.locks import OperationLocks, key_of
from stockade.terms.lease import LeaseRecord
from stockade.terms.plan import Limits
from stockade.terms.ports import Change, Files, GivenBack, LeaseTree, Ledger, Workspace


class Families:
    """Thread-safe."""

    def __init__(self, ledger: Ledger, locks: OperationLocks) -> None:
        self._ledger = ledger
        self._locks = locks

    def line(self, record: LeaseRecord) -> Sequence[LeaseRecord]:
        """The owner of the lease's workspace first, the lease itself last. Raises
        Failure(lease_not_granted) if one of them is not in the ledger."""
        line = [record]
        while line[0].shares is not None:
            line.insert(0, self.above(line[0]))
        return line

    def above(self, record: LeaseRecord) -> LeaseRecord:
        """The lease that it shares with. Raises Failure(lease_not_granted) if there is none."""
        found = None if record.shares is None else self._ledger.lease(record.shares)
        if found is None:
            raise not_granted()
        return found

    def owner(self, record: LeaseRecord) -> LeaseRecord:
        """Whose workspace the lease works in."""
        return self.line(record)[0]

    def below(self, record: LeaseRecord) -> Sequence[LeaseRecord]:
        """Those that work in its workspace and are not released, each before those below it."""
        found = [record]
        for above in found:
            found += self._ledger.sharing(above.id)
        return found[1:]

    @contextmanager
    def hold_line(self, record: LeaseRecord) -> Iterator[None]:
        """The locks that making a lease below `record` takes."""
        with ExitStack() as stack:
            for each in self.line(record):
                stack.enter_context(self._locks.hold(key_of(each)))
            yield

    @contextmanager
    def hold(self, record: LeaseRecord, wait: bool = True) -> Iterator[bool]:
        """The locks of the lease and of all below it. Gives whether they are held, which is always
        so with `wait`."""
        with (
            self._locks.hold(key_of(record), wait) as held,
            self.hold_below(record, wait) as rest,
        ):
            yield held and rest

    @contextmanager
    def hold_below(self, record: LeaseRecord, wait: bool = True) -> Iterator[bool]:
        """The locks of all below a lease whose own lock is held."""
        with ExitStack() as stack:
            yield self._enter_below(stack, record, wait)

    def _enter_below(self, stack: ExitStack, record: LeaseRecord, wait: bool) -> bool:
        # One level after the other: only under its lock is it known what is below a lease.
        return all(
            stack.enter_context(self._locks.hold(key_of(each), wait))
            and self._enter_below(stack, each, wait)
            for each in self._ledger.sharing(record.id)
        )


class SharedWorkspace:
    """Another lease's workspace, with the tree as a lease below it has it: the same place, and its
    own id and limits. Implements `terms.ports.Workspace`."""

    def __init__(self, workspace: Workspace, lease_id: str, limits: Limits) -> None:
        self._workspace = workspace
        self.tree: Final[LeaseTree] = replace(workspace.tree, lease_id=lease_id, limits=limits)
        self.files: Final[Files] = workspace.files

    def changes(self) -> Iterator[Change]:
        return self._workspace.changes()

    def patch(self, out: BinaryIO) -> GivenBack:
        return self._workspace.patch(out)

    def export(self, target: str) -> GivenBack:
        return self._workspace.export(target)
