"""A bounded memory without a lock, for pure results that cost more than looking them up.

There are two tables. What is put goes into the young one; when that is full it becomes the old
one, and what was the old one is gone. What is found in the old one is put again. So an entry
lasts while it is used, and no step costs more than a few look-ups.

Threads may share a memory. Every step is one operation on a dict or one assignment, which the
interpreter does whole: threads that race can lose an entry, never see half of one.
"""

from __future__ import annotations

from typing import Generic, TypeVar

K = TypeVar("K")
V = TypeVar("V")


class Memory(Generic[K, V]):
    """At most `2 * size` entries (and one more for each thread that races). Values are not None."""

    __slots__ = ("_old", "_size", "_young")

    def __init__(self, size: int) -> None:
        self._size = size
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def __len__(self) -> int:
        return len(self._young) + len(self._old)

    def get(self, key: K) -> V | None:
        found = self._young.get(key)
        if found is None:
            found = self._old.get(key)
            if found is not None:
                self.put(key, found)
        return found

    def put(self, key: K, value: V) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value
