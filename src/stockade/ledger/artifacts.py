"""Raw output that is kept beside a result: one file per stream and lease.

A file is a header of one page, the head region (the first half of the limit) and the tail region,
a ring that is written over and over, so that at every moment it holds the last bytes of the
stream. Byte n of the stream is at a fixed place in the file, memory is the `keep_from` bytes that
are held back until it is known that a file is needed, and each chunk costs one or two pwrite(2)
(6 GB/s measured). The header says what the file holds. Its page is reserved when the file is made
and filled in by `finish`, so that a disk that runs full later can't lose it; a file without one
was left by a crash and can't be read. Nothing is synced: after a power cut the newest artifacts may
be gone, results and leases are not. Because every byte has its place, a stream whose writer has died
goes on at any offset that it had reached (`resume`).

Offsets are those of the stream. When more came than the limit holds, the bytes between head and
tail do not exist: a read stops before them, and a read inside them fails and names their borders.

The directory is the daemon's own and nothing in it is named by a tenant: ids are checked against
their patterns before they become a part of a path.
"""

from __future__ import annotations

import errno
import os
import re
import threading
from collections.abc import Callable
from collections.abc import Set as AbstractSet
from contextlib import suppress
from functools import partial
from typing import Final

from pydantic import ValidationError

from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.ids import ARTIFACT_ID_PATTERN, is_lease_id
from stockade.terms.outcome import CapturedArtifact
from stockade.terms.ports import MAX_ARTIFACT_READ

MEDIA_TYPE: Final = "application/octet-stream"
# What the artifacts of one lease may hold together: 64 MiB of each stream of thousands of calls
# would fill the host's disk. What doesn't fit is not kept, and such an artifact is not complete.
LEASE_BYTES: Final = 1 << 30
_HEADER_BYTES: Final = 4096
_ARTIFACT_ID: Final = re.compile(ARTIFACT_ID_PATTERN)


class _Header(Model):
    """What a file holds: stream bytes [0, head_end) and [tail_start, tail_end)."""

    version: int
    name: str
    media_type: str
    total: int
    head_limit: int
    tail_limit: int
    head_end: int
    tail_start: int
    tail_end: int

    def place(self, offset: int) -> tuple[int, int]:
        """File position of stream byte `offset`, and how many follow it there without a break."""
        if offset < self.head_end:
            return _HEADER_BYTES + offset, self.head_end - offset
        turn = (offset - self.head_limit) % self.tail_limit
        length = min(self.tail_end - offset, self.tail_limit - turn)
        return _HEADER_BYTES + self.head_limit + turn, length


class _Sink:
    """Implements `terms.ports.ArtifactSink`. Used by one thread. `finish` closes the file, so it
    is called whatever happens to the stream."""

    def __init__(
        self,
        directory: str,
        artifact_id: str,
        name: str,
        keep: int,
        limit: int,
        room: Callable[[int], bool],
    ) -> None:
        """`room(n)` takes n bytes of what the lease may have, or gives them back where n is
        negative; False when there aren't so many."""
        self.id = artifact_id
        self._room = room
        self._taken = 0
        self._directory = directory
        self._name = name
        self._keep = keep
        self._head_limit = limit // 2
        self._tail_limit = limit - limit // 2
        self._pending = bytearray()
        self._file = -1
        self._failed = limit == 0
        self._total = 0
        self._end = 0  # stream offset up to which the file has been written
        self._floor = self._head_limit  # the ring holds nothing before this offset

    def write(self, data: bytes | memoryview) -> None:
        self._total += len(data)
        if self._failed:
            return
        if self._file < 0:
            if self._total <= self._keep:
                self._pending += data
                return
            self._start()
        self._store(memoryview(data))

    def finish(self) -> CapturedArtifact | None:
        if self._total <= self._keep or self._head_limit + self._tail_limit == 0:
            return None
        header = self._header()
        held = header.head_end + header.tail_end - header.tail_start
        if self._file >= 0:
            try:
                os.pwrite(self._file, header.model_dump_json().encode(), 0)
            except OSError:
                held = 0  # without a header nothing of it can be read
            os.close(self._file)
            self._file = -1
        self._room(held - self._taken)
        return CapturedArtifact(self.id, held, held == self._total)

    def _start(self) -> None:
        try:
            if not self._room(self._head_limit + self._tail_limit):
                raise OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))
            self._taken = self._head_limit + self._tail_limit
            os.makedirs(self._directory, mode=0o700, exist_ok=True)
            self._file = os.open(
                os.path.join(self._directory, self.id),
                os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC,
                0o600,
            )
            os.pwrite(self._file, bytes(_HEADER_BYTES), 0)
        except OSError:
            self._failed = True
        self._store(memoryview(self._pending))
        self._pending = bytearray()

    def _store(self, data: memoryview) -> None:
        """Write the stream's next bytes. After a failure the file stays as it is: `_end` counts
        what arrived, also of a write that was cut short."""
        data = data.cast("B")
        while data and not self._failed:
            if self._end < self._head_limit:
                position, room = self._end, self._head_limit - self._end
            else:
                if len(data) > self._tail_limit:  # only its last bytes can survive
                    self._end += len(data) - self._tail_limit
                    self._floor = self._end
                    data = data[len(data) - self._tail_limit :]
                turn = (self._end - self._head_limit) % self._tail_limit
                position, room = self._head_limit + turn, self._tail_limit - turn
            try:
                count = os.pwrite(self._file, data[:room], _HEADER_BYTES + position)
            except OSError:
                self._failed = True
                self._note()
                return
            self._end += count
            data = data[count:]

    def _note(self) -> None:
        """Say how far the file goes, for whoever comes after a crash."""
        with suppress(OSError):
            os.pwrite(self._file, self._header().model_dump_json().encode(), 0)

    def go_on(self, offset: int) -> None:
        """Continue the file that an earlier process wrote up to `offset` at least."""
        self._total = offset
        try:
            self._file = os.open(
                os.path.join(self._directory, self.id), os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC
            )
            self._room(-os.fstat(self._file).st_size)
            self._taken = self._head_limit + self._tail_limit
            self._failed = not self._room(self._taken)
            self._end = offset
            text = os.pread(self._file, _HEADER_BYTES, 0).rstrip(b"\0")
            if text:  # it had failed
                header = _Header.model_validate_json(text)
                self._failed, self._end, self._floor = True, header.tail_end, header.tail_start
        except (OSError, ValidationError):
            self._failed = True
            self._end = 0

    def _header(self) -> _Header:
        head_end = min(self._end, self._head_limit)
        tail_start = max(self._floor, self._end - self._tail_limit)
        return _Header(
            version=1,
            name=self._name,
            media_type=MEDIA_TYPE,
            total=self._total,
            head_limit=self._head_limit,
            tail_limit=self._tail_limit,
            head_end=head_end,
            tail_start=tail_start if self._end > self._head_limit else head_end,
            tail_end=max(self._end, head_end),
        )


class FileArtifacts:
    """Implements `terms.ports.ArtifactStore` below one directory. Thread-safe."""

    def __init__(self, directory: str, random_hex: Callable[[int], str]) -> None:
        """`random_hex(n)` gives 2 n hex digits of n random bytes (secrets.token_hex)."""
        self.directory = directory
        self._random_hex = random_hex
        self._lock = threading.Lock()
        self._held: dict[str, int] = {}

    def open(self, lease_id: str, name: str, keep_from: int, limit_bytes: int) -> _Sink:
        """Memory is at most `keep_from` bytes; nothing touches the disk before they are exceeded.
        `limit_bytes` 0 keeps nothing."""
        artifact_id = f"ar_{self._random_hex(8)}"
        directory = self._lease(lease_id)
        room = partial(self._take, lease_id)
        return _Sink(directory, artifact_id, name, keep_from, limit_bytes, room)

    def resume(
        self,
        lease_id: str,
        artifact_id: str,
        name: str,
        keep_from: int,
        limit_bytes: int,
        offset: int,
    ) -> _Sink:
        directory = self._lease(lease_id)
        room = partial(self._take, lease_id)
        sink = _Sink(directory, _artifact(artifact_id), name, keep_from, limit_bytes, room)
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
            return _read(file, artifact_id, offset, min(length, MAX_ARTIFACT_READ))
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


def _read(file: int, artifact_id: str, offset: int, length: int) -> bytes:
    try:
        header = _Header.model_validate_json(os.pread(file, _HEADER_BYTES, 0).rstrip(b"\0"))
    except ValidationError:
        raise failure(
            Code.NOT_FOUND, f"artifact {artifact_id} is not finished: its call runs, or died"
        ) from None
    end = header.head_end if offset < header.head_end else header.tail_end
    if header.tail_start == header.head_end:
        end = header.tail_end
    elif header.head_end <= offset < header.tail_start:
        raise _gap(artifact_id, header.head_end, header.tail_start, header.total)
    if header.tail_end <= offset < header.total:
        raise _gap(artifact_id, header.tail_end, header.total, header.total)
    parts = []
    while length > 0 and offset < end:
        position, run = header.place(offset)
        part = os.pread(file, min(run, length), position)
        if not part:
            raise OSError(errno.EIO, "the file is shorter than its header says")
        parts.append(part)
        offset += len(part)
        length -= len(part)
    return b"".join(parts)


def _gap(artifact_id: str, start: int, end: int, total: int) -> Failure:
    return failure(
        Code.NOT_FOUND,
        f"bytes {start} to {end} of artifact {artifact_id} were not kept; go on at {end}",
        gap_start=start,
        gap_end=end,
        total_bytes=total,
    )


def _artifact(artifact_id: str) -> str:
    if not _ARTIFACT_ID.fullmatch(artifact_id):
        raise failure(Code.INVALID_ARGUMENT, "an artifact id is ar_ and 16 hex digits")
    return artifact_id


def _unreadable(artifact_id: str, error: OSError) -> Failure:
    return failure(
        Code.STORAGE_UNAVAILABLE, f"artifact {artifact_id} can't be read: {error.strerror}"
    )
