"""Which sandbox a call runs in: the one of its lease whose digest equals the call's plan.

A call under a narrower capability has another plan, hence another digest, hence a sandbox of its
own over the same workspace. A sandbox that died is replaced; two calls that need the same new one
wait for a single creation.
"""

from __future__ import annotations

import threading

from stockade.terms.fault import Code, failure
from stockade.terms.plan import SandboxPlan
from stockade.terms.ports import Engine, LeaseTree, Sandbox


class Sandboxes:
    """Thread-safe. One creation at a time per lease; leases don't wait for each other."""

    def __init__(self, engine: Engine) -> None:
        self._engine = engine
        self._lock = threading.Lock()
        self._locks: dict[str, threading.Lock] = {}
        self._of_lease: dict[str, dict[str, Sandbox]] = {}

    def get(self, tree: LeaseTree, plan: SandboxPlan, digest: str, at_most: int) -> Sandbox:
        """Raises Failure(sandbox_unavailable, unenforceable, engine_unavailable, busy)."""
        with self._lock:
            found = self._of_lease.get(tree.lease_id, {}).get(digest)
            lock = self._locks.setdefault(tree.lease_id, threading.Lock())
        if found is not None and found.alive():
            return found
        with lock:
            with self._lock:
                mine = self._of_lease.setdefault(tree.lease_id, {})
                found = mine.get(digest)
            if found is not None:
                if found.alive():
                    return found
                found.close()
                with self._lock:
                    mine.pop(digest, None)
            if len(mine) >= at_most:
                raise failure(
                    Code.BUSY,
                    f"the lease has {len(mine)} sandboxes; its limit is {at_most}",
                    rule="per_lease.sandboxes",
                    retry_after_ms=1000,
                )
            self._engine.check(plan)
            made = self._engine.create(tree, plan, digest)
            with self._lock:
                mine[digest] = made
            return made

    def close_lease(self, lease_id: str) -> None:
        """End all sandboxes of a lease and remove what they shared. No call is running in it."""
        with self._lock:
            lock = self._locks.setdefault(lease_id, threading.Lock())
        with lock:
            with self._lock:
                mine = self._of_lease.pop(lease_id, {})
            for sandbox in mine.values():
                sandbox.close()
            self._engine.release(lease_id)
        with self._lock:
            self._locks.pop(lease_id, None)

    def close(self) -> None:
        with self._lock:
            leases = list(self._of_lease)
        for lease_id in leases:
            self.close_lease(lease_id)
