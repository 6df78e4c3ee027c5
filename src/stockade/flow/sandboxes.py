"""Which sandbox a call runs in: the one of its lease whose digest equals the call's plan.

A call under a narrower capability has another plan, hence another digest, hence a sandbox of its
own over the same workspace. A sandbox that died is replaced; two calls that need the same new one
wait for a single creation. When a lease has as many as it may, the one that has been idle for
longest is ended for the new one, with whatever finished commands left running in it.

Sandboxes of an earlier process are adopted as they are. One that another version of the program made
has walls that are not this one's: it only finishes what runs in it, and ends for the next one.
"""

from __future__ import annotations

import itertools
import threading
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass

from stockade.terms.fault import Code, failure
from stockade.terms.patience import LOOK_S, Patience
from stockade.terms.plan import SandboxPlan
from stockade.terms.ports import Engine, LeaseTree, Sandbox, Survivor


@dataclass(slots=True)
class _Held:
    sandbox: Sandbox
    users: int
    used: int
    retired: bool = False
    broken: bool = False


class Sandboxes:
    """Thread-safe. One creation at a time per lease; leases don't wait for each other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._of_lease: dict[str, dict[str, _Held]] = {}
        self._uses = itertools.count()

    @contextmanager
    def use(
        self,
        tree: LeaseTree,
        plan: SandboxPlan,
        digest: str,
        at_most: int,
        patience: Patience,
    ) -> Iterator[Sandbox]:
        """The sandbox for as long as the block runs. Raises Failure(sandbox_unavailable,
        unenforceable, engine_unavailable, disk_full, busy, and what `patience` ends with),
        Failure(right_not_granted) when the lease may have none."""
        if at_most < 1:
            raise failure(
                Code.RIGHT_NOT_GRANTED,
                "the capability allows no sandbox: per_lease.sandboxes is 0",
                rule="per_lease.sandboxes",
            )
        held = self._living(tree.lease_id, digest)
        if held is None:
            held = self._make(tree, plan, digest, at_most, patience)
        try:
            yield held.sandbox
        finally:
            with self._lock:
                held.users -= 1

    def mark(self, lease_id: str, digest: str, *, broken: bool) -> None:
        """Whether a shell could be started in the sandbox, as a call has just found it."""
        with self._lock:
            held = self._of_lease.get(lease_id, {}).get(digest)
            if held is not None:
                held.broken = broken

    def broken(self, lease_id: str) -> bool:
        """Whether the lease has a sandbox in which the last call found no shell. One that takes its
        place is whole."""
        with self._lock:
            return any(held.broken for held in self._of_lease.get(lease_id, {}).values())

    def adopt(self, survivor: Survivor) -> None:
        """Take a sandbox of an earlier process; before the first call."""
        sandbox = survivor.sandbox
        held = _Held(sandbox, 0, next(self._uses), retired=not survivor.current)
        name = sandbox.digest if survivor.current else f"{sandbox.digest} {held.used}"
        with self._lock:
            self._of_lease.setdefault(survivor.lease_id, {})[name] = held

    def forget(self, sandbox: str, call: str) -> None:
        """See `Engine.forget`."""
        self._engine.forget(sandbox, call)

    def leave(self) -> frozenset[str]:
        """Let go of all sandboxes as they are, for the next process, and give the leases that have
        one. No call is running."""
        with self._lock:
            leases, self._of_lease = self._of_lease, {}
            known = leases.keys() | self._locks.keys()
        left = frozenset(lease_id for lease_id, mine in leases.items() if mine)
        with ExitStack() as leaving:
            for lease_id in known - left:
                leaving.callback(self._engine.release, lease_id)
            for held in (held for lease_id in left for held in leases[lease_id].values()):
                held.sandbox.leave()
        return left

    def end(self, lease_id: str) -> None:
        """End all sandboxes of a lease, which goes on. No call is running in it."""
        self._end(lease_id, last=False)

    def close_lease(self, lease_id: str) -> None:
        """End all sandboxes of a lease and remove what they shared. No call is running in it."""
        self._end(lease_id, last=True)

    def _end(self, lease_id: str, *, last: bool) -> None:
        with self._lock:
            lock = self._locks.setdefault(lease_id, threading.Lock())
        with lock:
            with self._lock:
                mine = self._of_lease.pop(lease_id, {})
            with ExitStack() as closing:  # each, whatever happens to the others
                if last:
                    closing.callback(self._engine.release, lease_id)
                for held in mine.values():
                    closing.callback(held.sandbox.close)
        if last:
            with self._lock:
                self._locks.pop(lease_id, None)

    def close(self) -> None:
        with self._lock:
            # Those whose sandboxes have been ended still have what these shared.
            leases = self._of_lease.keys() | self._locks.keys()
        with ExitStack() as closing:
            for lease_id in leases:
                closing.callback(self.close_lease, lease_id)

    def count(self) -> int:
        """How many there are, dead ones that nobody missed yet included."""
        with self._lock:
            return sum(map(len, self._of_lease.values()))

    def _living(self, lease_id: str, digest: str) -> _Held | None:
        with self._lock:
            held = self._of_lease.get(lease_id, {}).get(digest)
            if held is None or not held.sandbox.alive():
                return None
            held.users += 1
            held.used = next(self._uses)
            return held

    def _make(
        self,
        tree: LeaseTree,
        plan: SandboxPlan,
        digest: str,
        at_most: int,
        patience: Patience,
    ) -> _Held:
        with self._lock:
            lock = self._locks.setdefault(tree.lease_id, threading.Lock())
        with _in_turn(lock, patience):
            found = self._living(tree.lease_id, digest)
            if found is not None:
                return found
            self._engine.check(plan)
            self._make_room(tree.lease_id, digest, at_most)
            held = _Held(self._engine.create(tree, plan, digest, patience), 1, next(self._uses))
            with self._lock:
                self._of_lease.setdefault(tree.lease_id, {})[digest] = held
            return held

    def _make_room(self, lease_id: str, digest: str, at_most: int) -> None:
        """End the dead one of this digest, and idle ones while there are too many."""
        with self._lock:
            mine = self._of_lease.get(lease_id, {})
            ending = [held for held in (mine.pop(digest, None),) if held is not None]
            idle = sorted(
                (not h.retired, h.used, name)
                for name, h in mine.items()
                if h.users == 0 and not h.sandbox.busy()
            )
            over = sum(mine[name].retired for _, _, name in idle)
            for _, _, name in idle[: max(over, len(mine) + 1 - at_most)]:
                ending.append(mine.pop(name))
            active = len(mine)
        for held in ending:
            held.sandbox.close()
        if active >= at_most:
            raise failure(
                Code.BUSY,
                f"calls are running in {active} sandboxes of the lease; its limit is {at_most}",
                rule="per_lease.sandboxes",
                retry_after_ms=1000,
            )


@contextmanager
def _in_turn(lock: threading.Lock, patience: Patience) -> Iterator[None]:
    """The lock for as long as the block runs."""
    while not lock.acquire(timeout=LOOK_S):
        patience.check("another sandbox of the lease was made")
    try:
        yield
    finally:
        lock.release()
