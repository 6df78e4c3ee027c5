"""A stream that survives its reader: every byte once, wherever the reader was killed."""

from __future__ import annotations

import os
import random
import signal
import sys
from collections.abc import Iterator

import pytest

from stockade.host import spool as spools
from stockade.host.pump import Collector
from stockade.host.spool import HEAD, RING, Spool
from stockade.terms.call import Capture

CAPTURE = Capture(head_bytes=16 * 1024, tail_bytes=16 * 1024, artifact_bytes=0)


@pytest.fixture
def pipe() -> Iterator[tuple[int, int]]:
    read, write = os.pipe()
    os.set_blocking(read, False)
    yield read, write
    os.close(read)
    os.close(write)


def stream(size: int) -> bytes:
    return random.Random(size).randbytes(size)


def fed(pipe: tuple[int, int], data: bytes, step: int = 65_536) -> tuple[Spool, bytes]:
    """A spool that took `data`, and what its reader was given."""
    spool, buffer, given = Spool.make(), bytearray(256 * 1024), bytearray()
    for start in range(0, len(data), step):
        part = data[start : start + step]
        os.write(pipe[1], part)
        left = len(part)
        while left:  # the border of the ring cuts
            count = spool.take(pipe[0], buffer)
            given += buffer[:count]
            left -= count
    return spool, bytes(given)


@pytest.mark.parametrize(
    "size",
    [0, 1, HEAD, HEAD + RING - 1, HEAD + RING, HEAD + RING + 1, HEAD + 2 * RING, 1_750_003],
)
def test_what_was_taken_is_found_again(pipe: tuple[int, int], size: int) -> None:
    data = stream(size)
    spool, given = fed(pipe, data)
    assert given == data
    found = Spool.found(os.dup(spool.fd))
    assert found.total == size
    assert found.head(16 * 1024) == data[: 16 * 1024]
    offset, parts = found.rest()
    assert b"".join(parts) == data[offset:]
    assert size - offset == (size if offset == 0 else RING)
    found.close()
    spool.close()


def test_text_is_the_same_as_without_the_death(pipe: tuple[int, int]) -> None:
    for size in (100, 40_000, 1_000_000):
        data = stream(size)
        spool, _ = fed(pipe, data)
        whole, replayed = Collector(1, CAPTURE, None, None), Collector(1, CAPTURE, None, None)
        whole.add(memoryview(data))
        replayed.replay(spool)
        assert replayed.finish() == whole.finish()
        spool.close()


@pytest.mark.parametrize("moved", [False, True])
def test_death_while_the_ring_begins_anew(pipe: tuple[int, int], moved: bool) -> None:
    data = stream(HEAD + RING)
    spool, _ = fed(pipe, data)
    laps = spools._LAPS.pack(0, 1)
    os.pwrite(spool.fd, laps, 0)
    if moved:
        os.lseek(spool.fd, spools._AGAIN, os.SEEK_SET)
    found = Spool.found(spool.fd)
    assert found.total == len(data)
    offset, parts = found.rest()
    assert b"".join(parts) == data[offset:]
    found.close()


@pytest.mark.parametrize("step", [(os, "lseek"), (Spool, "_count")])
def test_a_reader_that_dies_while_it_begins_the_ring_anew(
    pipe: tuple[int, int], monkeypatch: pytest.MonkeyPatch, step: tuple[object, str]
) -> None:
    data = stream(HEAD + RING)
    spool, _ = fed(pipe, data)
    os.write(pipe[1], b"more")

    def die(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as dying:
        dying.setattr(*step, die)
        with pytest.raises(KeyboardInterrupt):
            spool.take(pipe[0], bytearray(100))
    found = Spool.found(spool.fd)
    assert found.total == len(data)
    assert found.take(pipe[0], bytearray(100)) == 4
    assert b"".join(found.rest()[1])[-6:] == data[-2:] + b"more"
    found.close()


def test_readers_that_are_killed_at_any_moment_lose_nothing() -> None:
    """The writer is one process, the readers one after the other, each killed while it reads."""
    size = 20_000_000
    data = stream(size)
    read, write = os.pipe()
    spool = Spool.make()
    writer = os.fork()
    if writer == 0:
        os.close(read)
        view = memoryview(data)
        while view:
            view = view[os.write(write, view) :]
        os._exit(0)
    os.close(write)
    kills = 0
    shared = os.memfd_create("consumed")
    moments = random.Random(7)
    while True:
        reader = os.fork()
        if reader == 0:
            _consume(Spool.found(spool.fd), read, shared)
            os._exit(0)
        pidfd = os.pidfd_open(reader)
        for _ in range(moments.randrange(2_000, 60_000)):  # no time, only work
            pass
        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
        _, status = os.waitpid(reader, 0)
        os.close(pidfd)
        if status == 0:
            break
        kills += 1
    os.waitpid(writer, 0)
    assert os.pread(shared, size + 1, 0) == data
    assert kills > 3
    for fd in (read, shared):
        os.close(fd)
    spool.close()


def _consume(spool: Spool, pipe: int, into: int) -> None:
    """Put every byte at its offset, first what a dead one had taken and may not have put."""
    offset, parts = spool.rest()
    for part in parts:
        os.pwrite(into, part, offset)
        offset += len(part)
    buffer = bytearray(64 * 1024)
    while True:
        offset = spool.total
        try:
            count = spool.take(pipe, buffer)
        except BlockingIOError:
            continue
        if not count:
            return
        os.pwrite(into, buffer[:count], offset)


@pytest.mark.timeout(20)
def test_a_spool_that_is_shorter_than_it_says_is_no_stream() -> None:
    spool = Spool.make()
    os.lseek(spool.fd, 1000, os.SEEK_CUR)
    found = Spool.found(spool.fd)
    with pytest.raises(OSError, match="shorter than its position"):
        list(found.rest()[1])
    spool.close()


def test_of_a_long_stream_so_much_is_there_as_head_and_ring_hold(pipe: tuple[int, int]) -> None:
    for size, long in ((HEAD + RING, False), (HEAD + RING + 1, True)):
        spool, _ = fed(pipe, stream(size))
        assert spool.suffices(HEAD, RING)
        assert spool.suffices(HEAD + 1, RING) is not long
        assert spool.suffices(HEAD, RING + 1) is not long
        spool.close()


def test_what_is_no_spool_is_refused() -> None:
    beyond = (1 << 36).to_bytes(8, sys.byteorder) * 2  # no stream has 2**53 bytes
    for content, position in (
        (b"", 0),
        (b"\0" * 8 + b"\xff" * 8, 4096),
        (b"", 1 << 30),
        (beyond, 4096),
    ):
        fd = os.memfd_create("x")
        os.pwrite(fd, content, 0)
        os.lseek(fd, position, os.SEEK_SET)
        with pytest.raises(ValueError, match="no spool"):
            Spool.found(fd)
        os.close(fd)
