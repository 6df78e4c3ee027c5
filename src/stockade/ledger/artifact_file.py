"""One artifact: a stream's bytes in a file, as far as its limit holds them.

A file is a header of one page, the head region (the first half of the limit) and the tail region,
a ring that is written over and over, so that at every moment it holds the last bytes of the
stream. Byte n of the stream is at a fixed place in the file, memory is the `keep` bytes that
are held back until it is known that a file is needed, and each chunk costs one or two pwrite(2)
(6 GB/s measured). The header says what the file holds. Its page is reserved when the file is made
and filled in by `finish`, so that a disk that runs full later can't lose it; a file without one
was left by a crash and can't be read. Because every byte has its place, a stream whose writer has
died goes on at any offset that it had reached (`go_on`).

Offsets are those of the stream. When more came than the limit holds, the bytes between head and
tail do not exist: a read stops before them, and a read inside them fails and names their borders.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable
from contextlib import suppress
from typing import Final

from pydantic import ValidationError

from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import CapturedArtifact

MEDIA_TYPE: Final = "application/octet-stream"
_HEADER_BYTES: Final = 4096


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


class Sink:
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


def read(file: int, artifact_id: str, offset: int, length: int) -> bytes:
    """See `terms.ports.ArtifactStore`. Raises Failure(not_found), OSError."""
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
