"""Operations on one lease exclude one another; operations on different leases don't.

The lock is by (tenant, trajectory, name) and not by lease id, because `create` must exclude a
second one before there is an id. A lock lives only while somebody holds it or waits for it.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

from stockade.terms.lease import LeaseRecord

Key = tuple[str, str, str]


def key_of(record: LeaseRecord) -> Key:
    return record.tenant, record.trajectory, record.name


class OperationLocks:
    """Thread-safe."""

    def __init__(self) -> None:
        self._guard = threading.Lock()
        self._locks: dict[Key, tuple[threading.Lock, int]] = {}

    @contextmanager
    def hold(self, key: Key, wait: bool = True) -> Iterator[bool]:
        """Gives whether the lock is held, which is always so with `wait`."""
        with self._guard:
            lock, users = self._locks.get(key, (threading.Lock(), 0))
            self._locks[key] = (lock, users + 1)
        held = False
        try:
            held = lock.acquire(blocking=wait)
            yield held
        finally:
            if held:
                lock.release()
            with self._guard:
                lock, users = self._locks.pop(key)
                if users > 1:
                    self._locks[key] = (lock, users - 1)
