"""Raw output that is kept beside a result: one file (`artifact_file`) per stream and lease.

Nothing is synced: after a power cut the newest artifacts may be gone, results and leases are not.

The directory is the daemon's own and nothing in it is named by a tenant: ids are checked against
their patterns before they become a part of a path.
"""

from __future__ import annotations

import os
import re
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

from stockade.ledger import artifact_file
from stockade.ledger.artifact_file import Sink
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.ids import ARTIFACT_ID_PATTERN, is_lease_id
from stockade.terms.ports import MAX_ARTIFACT_READ

# What the artifacts of one lease may hold together: 64 MiB of each stream of thousands of calls
# would fill the host's disk. What doesn't fit is not kept, and such an artifact is not complete.
LEASE_BYTES: Final = 1 << 30
_ARTIFACT_ID: Final = re.compile(ARTIFACT_ID_PATTERN)


class FileArtifacts:
    """Implements `terms.ports.ArtifactStore` below one directory. Thread-safe."""

    def __init__(self, directory: str, random_hex: Callable[[int], str]) -> None:
        """`random_hex(n)` gives 2 n hex digits of n random bytes (secrets.token_hex)."""
        self.directory = directory
        self._random_hex = random_hex
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def open(self, lease_id: str, name: str, keep_from: int, limit_bytes: int) -> Sink:
        """Memory is at most `keep_from` bytes; nothing touches the disk before they are exceeded.
        `limit_bytes` 0 keeps nothing."""
        artifact_id = f"ar_{self._random_hex(8)}"
        directory = self._lease(lease_id)
        room = partial(self._take, lease_id)
        return Sink(directory, artifact_id, name, keep_from, limit_bytes, room)

    def resume(
        self,
        lease_id: str,
        artifact_id: str,
        name: str,
        keep_from: int,
        limit_bytes: int,
        offset: int,
    ) -> Sink:
        directory = self._lease(lease_id)
        room = partial(self._take, lease_id)
        sink = Sink(directory, _artifact(artifact_id), name, keep_from, limit_bytes, room)
        if offset:
            sink.go_on(offset)
            return sink
        path = os.path.join(directory, artifact_id)
        with suppress(FileNotFoundError):
            size = os.stat(path, follow_symlinks=False).st_size
            self._take(lease_id, 0)  # so that what the lease has is counted with it
            os.unlink(path)
            self._take(lease_id, -size)
        return sink

    def _take(self, lease_id: str, size: int) -> bool:
        with self._lock:
            held = self._held.get(lease_id)
            if held is None:  # the first since the daemon started
                held = _size(self._lease(lease_id))
            if size > 0 and held + size > LEASE_BYTES:
                return False
            self._held[lease_id] = held + size
            return True

    def read(self, lease_id: str, artifact_id: str, offset: int, length: int) -> bytes:
        """At most `MAX_ARTIFACT_READ` bytes at once: a short answer is not the end, an empty one
        is. Inside the gap: Failure(not_found), details `gap_start`, `gap_end` and `total_bytes`."""
        if offset < 0 or length < 0:
            raise failure(Code.INVALID_ARGUMENT, "offset and length can't be negative")
        path = os.path.join(self._lease(lease_id), _artifact(artifact_id))
        try:
            file = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        except FileNotFoundError:
            raise failure(Code.NOT_FOUND, f"there is no artifact {artifact_id}") from None
        except OSError as error:
            raise _unreadable(artifact_id, error) from error
        try:
            return artifact_file.read(file, artifact_id, offset, min(length, MAX_ARTIFACT_READ))
        except OSError as error:
            raise _unreadable(artifact_id, error) from error
        finally:
            os.close(file)

    def remove(self, lease_id: str) -> None:
        """Delete what a lease kept. Idempotent. Raises Failure(storage_unavailable)."""
        directory = self._lease(lease_id)
        try:
            # What is gone already is what was asked for: removals may run twice and side by side.
            with suppress(FileNotFoundError):
                for name in os.listdir(directory):
                    with suppress(FileNotFoundError):
                        os.unlink(os.path.join(directory, name))
                os.rmdir(directory)
            with self._lock:
                self._held.pop(lease_id, None)
        except OSError as error:
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                f"the artifacts of {lease_id} can't be removed: {error.strerror}",
            ) from error

    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]:
        left = []
        for lease_id in self._leases():
            if lease_id not in live:
                try:
                    self.remove(lease_id)
                except Failure:
                    left.append(lease_id)
        return tuple(left)

    def _leases(self) -> list[str]:
        try:
            names = os.listdir(self.directory)
        except FileNotFoundError:
            return []
        return [name for name in names if is_lease_id(name)]

    def _lease(self, lease_id: str) -> str:
        if not is_lease_id(lease_id):
            raise failure(Code.INVALID_ARGUMENT, "a lease id is ls_ and 16 hex digits")
        return os.path.join(self.directory, lease_id)


def _size(directory: str) -> int:
    try:
        with os.scandir(directory) as entries:
            return sum(entry.stat(follow_symlinks=False).st_size for entry in entries)
    except FileNotFoundError:
        return 0


def _artifact(artifact_id: str) -> str:
    if not _ARTIFACT_ID.fullmatch(artifact_id):
        raise failure(Code.INVALID_ARGUMENT, "an artifact id is ar_ and 16 hex digits")
    return artifact_id


def _unreadable(artifact_id: str, error: OSError) -> Failure:
    return failure(
        Code.STORAGE_UNAVAILABLE, f"artifact {artifact_id} can't be read: {error.strerror}"
    )
