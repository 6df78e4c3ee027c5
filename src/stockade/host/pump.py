"""Reads a running command's output, bounded, until the command has ended.

One thread per call waits with poll(2) on both pipes, the call's own socket (exit report) and the
cancellation. A `Collector` keeps the first and the last bytes of a stream and hands every chunk to
the artifact and, for `run`, to the caller; memory is O(limit) whatever the command prints.

A command has ended when its main process has: a background child may hold the pipes for ever
(CASES B01), so after the exit what is still in the pipes is read until they are empty and at most
for `DRAIN_S`. Never by end of file alone.

A stream with a spool (stockade.host.spool) survives this process: `replay` takes it up again.
"""

from __future__ import annotations

import fcntl
import os
import select
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import MappingProxyType
from typing import Final

from stockade.host.spool import Spool
from stockade.terms.call import Capture
from stockade.terms.outcome import Captured, CapturedArtifact
from stockade.terms.patience import CancelSignal
from stockade.terms.ports import ArtifactSink, Tee

DRAIN_S: Final = 0.1
_CHUNK: Final = 256 * 1024
MAX_POLL_MS: Final = 2**31 - 1  # 24.8 days; poll(2) counts in an int
_LARGE_PIPE: Final = 1024 * 1024
_local = threading.local()


def _buffer() -> bytearray:
    """One read buffer per thread: allocating 256 KiB per call costs more than a small read."""
    buffer: bytearray | None = getattr(_local, "buffer", None)
    if buffer is None:
        buffer = _local.buffer = bytearray(_CHUNK)
    return buffer


class Collector:
    """One output stream: counts every byte, keeps the first and the last ones."""

    def __init__(
        self, number: int, capture: Capture, sink: ArtifactSink | None, tee: Tee | None
    ) -> None:
        self._number = number
        self._capture = capture
        self._head_limit = capture.head_bytes + capture.context_bytes
        self._tail_limit = capture.tail_bytes + capture.context_bytes
        self._head = bytearray()
        self._tail = bytearray()
        self._sink = sink
        self._tee = tee
        self.total = 0

    def add(self, chunk: memoryview) -> None:
        self.total += len(chunk)
        if self._sink is not None:
            self._sink.write(chunk)
        if self._tee is not None:
            self._tee(self._number, chunk)
        room = self._head_limit - len(self._head)
        if room > 0:
            self._head += chunk[:room]
            chunk = chunk[room:]
        if len(chunk) >= self._tail_limit:
            self._tail[:] = chunk[len(chunk) - self._tail_limit :]
        elif len(chunk):
            self._tail += chunk
            excess = len(self._tail) - self._tail_limit
            if excess > 0:
                del self._tail[:excess]

    def replay(self, spool: Spool) -> None:
        """Begin with what an earlier process had read. The sink, if any, is that of the stream's
        offset `spool.rest` begins at."""
        offset, parts = spool.rest()
        self.total = offset
        self._head += spool.head(min(offset, self._head_limit))
        for part in parts:
            self.add(memoryview(part))

    def finish(self) -> Captured:
        artifact = self._sink.finish() if self._sink is not None else None
        head, tail = bytes(self._head), bytes(self._tail)
        return split(head, tail, self.total, self._capture, artifact)


def split(
    first: bytes,
    last: bytes,
    total: int,
    capture: Capture,
    artifact: CapturedArtifact | None = None,
) -> Captured:
    """The first and the last bytes of a stream of `total` as head, tail and what lies behind the
    cuts. Where nothing is missing between them, a context may reach into the other end."""
    context = capture.context_bytes
    if not context:
        return Captured(first, last, total, artifact)
    if total > len(first) + len(last):
        before, after = last, first
    else:
        before = after = first + last
    head = after[: capture.head_bytes]
    left = min(capture.tail_bytes, total - len(head))
    tail = before[len(before) - left :]
    cut = len(head) + left < total
    return Captured(
        head,
        tail,
        total,
        artifact,
        after_head=after[len(head) :][:context] if cut else b"",
        before_tail=before[: len(before) - left][-context:] if cut else b"",
    )


class Pump:
    """The poll loop of one call. Owns the read ends of its pipes and closes them."""

    def __init__(
        self,
        streams: dict[int, Collector],
        control: int,
        cancel: CancelSignal,
        spools: Mapping[int, Spool] = MappingProxyType({}),
    ) -> None:
        """`streams` maps the read end of a pipe to its collector, `spools` to its spool, which
        stays the caller's; `control` is readable when the call's socket has something to say."""
        self._streams = dict(streams)
        self._spools = spools
        self._control = control
        self._cancel = cancel
        self._poll = select.poll()
        for fd in self._streams:
            if fd not in spools:  # a spool never waits
                os.set_blocking(fd, False)
            self._poll.register(fd, select.POLLIN)
        self._poll.register(control, select.POLLIN)
        self._poll.register(cancel.fileno(), select.POLLIN)
        self._grown: set[int] = set()

    def run(self, deadline: float, on_control: Callable[[], bool]) -> str:
        """Pump until `on_control` says that the command ended ("ended"), the deadline passed
        ("deadline", a monotonic time) or the cancellation was set ("cancelled")."""
        while True:
            left = deadline - time.monotonic()
            if left <= 0:
                return "deadline"
            for fd, _ in self._poll.poll(min(left * 1000 + 1, MAX_POLL_MS)):
                if fd == self._control:
                    if on_control():
                        return "ended"
                elif fd == self._cancel.fileno():
                    return "cancelled"
                else:
                    self._read(fd)

    def drain(self, seconds: float = DRAIN_S, *, wait: bool = True) -> None:
        """Read what the pipes hold until end of file, or for `seconds` when somebody still has
        them open. Where all are dead that the call began nobody has to be waited for (`wait`)."""
        self._poll.unregister(self._control)
        self._poll.unregister(self._cancel.fileno())
        deadline = time.monotonic() + seconds
        while self._streams:
            left = deadline - time.monotonic()
            ready = self._poll.poll(left * 1000 if wait else 0) if left > 0 else []
            if not ready:
                break
            for fd, _ in ready:
                self._read(fd)
        self.close()

    def close(self) -> None:
        for fd in list(self._streams):
            del self._streams[fd]
            os.close(fd)

    def _read(self, fd: int) -> None:
        buffer = _buffer()
        spool = self._spools.get(fd)
        try:
            count = os.readv(fd, [buffer]) if spool is None else spool.take(fd, buffer)
        except BlockingIOError:
            return
        if count == 0:
            self._poll.unregister(fd)
            del self._streams[fd]
            os.close(fd)
            return
        self._streams[fd].add(memoryview(buffer)[:count])
        if count >= 65536 and fd not in self._grown:
            # A full default pipe: 1 MiB moves 1.6 times as much (0.92 and 1.47 GB/s measured).
            # Refused (EPERM) once the user's pipe pages are used up: then it stays as it is.
            self._grown.add(fd)
            with suppress(PermissionError):
                fcntl.fcntl(fd, fcntl.F_SETPIPE_SZ, _LARGE_PIPE)
