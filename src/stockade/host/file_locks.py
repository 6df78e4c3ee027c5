"""One lock per file of a lease, for as long as somebody wants it.

The key is the resolved container path: it stays the same when an edit replaces the inode, and two
links to one file lead to one key. (Two hard links are two files: an edit separates them.) An entry
is counted and goes with its last user, so that the table is as large as the calls that run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from threading import Lock


@dataclass(slots=True)
class _Entry:
    lock: Lock = field(default_factory=Lock)
    users: int = 0


class FileLocks:
    """All `LeaseFiles` of one lease share one of these."""

    def __init__(self) -> None:
        self._guard = Lock()
        self._entries: dict[bytes, _Entry] = {}

    @contextmanager
    def hold(self, path: bytes) -> Iterator[None]:
        """Wait for the lock of `path` and hold it for the block."""
        with self._guard:
            entry = self._entries.setdefault(path, _Entry())
            entry.users += 1
        try:
            with entry.lock:
                yield
        finally:
            with self._guard:
                entry.users -= 1
                if not entry.users:
                    del self._entries[path]

    def __len__(self) -> int:
        """How many files are locked or waited for."""
        with self._guard:
            return len(self._entries)
