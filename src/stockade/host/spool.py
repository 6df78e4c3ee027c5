"""What was read of a stream, kept so that it survives the reader.

A byte that a process has read from a pipe is gone with that process. So a stream that must outlive
the daemon is not read but spliced: splice(2) moves bytes from the pipe into a memory file and the
file's position on with them, and no signal comes between, so at every instant each byte of the
stream is in the pipe or in the file, once. The guest keeps the file as it keeps the pipe.

The file is a page with a counter, the first `HEAD` bytes of the stream, and a ring of `RING` bytes
that is written over and over; its position says how far. `take` may be called when all that was
taken before is where it belongs (the artifact's file): only then the ring's older bytes may go.

The counter says how often the ring began anew. It is written as "next" before the position is set
back and as "now" afterwards, so that whoever finds the two apart can tell from the position on which
side of it the last process ended.
"""

from __future__ import annotations

import os
import struct
from collections.abc import Iterator
from typing import Final, Self

HEAD: Final = 32 * 1024
RING: Final = 256 * 1024
_PAGE: Final = 4096
_AGAIN: Final = _PAGE + HEAD
_END: Final = _AGAIN + RING
_LAPS: Final = struct.Struct("=QQ")  # now, next
_LAPS_MAX: Final = (1 << 53) // RING - 1  # a total is below what a result can say


class Spool:
    """Owns `fd`. Used by one thread at a time."""

    def __init__(self, fd: int) -> None:
        self.fd: Final = fd
        self._position = _PAGE
        self._laps = 0

    @classmethod
    def make(cls) -> Self:
        """Empty. Raises OSError."""
        fd = os.memfd_create("stream", os.MFD_CLOEXEC)
        os.lseek(fd, _PAGE, os.SEEK_SET)
        return cls(fd)

    @classmethod
    def found(cls, fd: int) -> Self:
        """The spool of a process that has died; on an exception `fd` stays the caller's.
        Raises OSError, ValueError (it is none)."""
        spool = cls(fd)
        now, following = _LAPS.unpack(os.pread(fd, _LAPS.size, 0).ljust(_LAPS.size, b"\0"))
        position = os.lseek(fd, 0, os.SEEK_CUR)
        laps_are_right = now < _LAPS_MAX and following in (now, now + 1)
        if not laps_are_right or not _PAGE <= position <= _END:
            raise ValueError("this is no spool")
        spool._position, spool._laps = position, now
        if following != now and position == _END:
            spool._turn()
        elif following != now:
            spool._count(following)
        return spool

    @property
    def total(self) -> int:
        """Bytes of the stream so far."""
        return self._laps * RING + self._position - _PAGE

    def take(self, pipe: int, buffer: bytearray) -> int:
        """Move what `pipe` holds, at most a buffer's length, and copy it to the start of `buffer`.
        Gives how much; 0 at the end of the stream. Raises BlockingIOError when nothing is there."""
        if self._position == _END:
            self._turn()
        size = min(len(buffer), _END - self._position)
        count = os.splice(pipe, self.fd, size, flags=os.SPLICE_F_NONBLOCK)
        if count:
            _read(self.fd, memoryview(buffer)[:count], self._position)
            self._position += count
        return count

    def suffices(self, head_bytes: int, tail_bytes: int) -> bool:
        """Whether so much of both ends of the stream is there."""
        return not self._laps or (head_bytes <= HEAD and tail_bytes <= RING)

    def head(self, length: int) -> bytes:
        """The first bytes of the stream, at most `HEAD`."""
        return os.pread(self.fd, min(length, HEAD, self.total), _PAGE)

    def rest(self) -> tuple[int, Iterator[bytes]]:
        """A stream offset, and all bytes from there to `total`: the whole stream while it is
        short, else its last `RING` bytes. What came before that was taken and put where it
        belongs, for otherwise it would be in the ring."""
        if not self._laps:
            return 0, self._parts((_PAGE, self._position))
        return self.total - RING, self._parts((self._position, _END), (_AGAIN, self._position))

    def close(self) -> None:
        os.close(self.fd)

    def _parts(self, *ranges: tuple[int, int]) -> Iterator[bytes]:
        for start, end in ranges:
            if end > start:
                part = bytearray(end - start)
                _read(self.fd, memoryview(part), start)
                yield bytes(part)

    def _turn(self) -> None:
        os.pwrite(self.fd, _LAPS.pack(self._laps, self._laps + 1), 0)
        os.lseek(self.fd, _AGAIN, os.SEEK_SET)
        self._position = _AGAIN
        self._count(self._laps + 1)

    def _count(self, laps: int) -> None:
        os.pwrite(self.fd, _LAPS.pack(laps, laps), 0)
        self._laps = laps


def _read(fd: int, into: memoryview, position: int) -> None:
    while into:
        count = os.preadv(fd, [into], position)
        if not count:
            raise OSError("a spool is shorter than its position")
        into, position = into[count:], position + count
