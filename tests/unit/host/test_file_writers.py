from __future__ import annotations

import fcntl
import os
import signal
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from stockade.host.file_writers import Writers


@contextmanager
def reading(path: Path) -> Iterator[int]:
    fd = os.open(path, os.O_RDONLY)
    try:
        yield fd
    finally:
        os.close(fd)


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "f"
    path.write_bytes(b"old\n")
    return path


def test_a_file_that_nobody_writes_is_free(file: Path) -> None:
    with reading(file) as fd, file.open("rb"):
        writers = Writers(fd)
        assert writers.shut_out()
        assert not writers.waiting()


@pytest.mark.parametrize("flags", [os.O_WRONLY, os.O_RDWR, os.O_WRONLY | os.O_APPEND])
def test_a_file_that_is_open_for_writing_is_not_free(file: Path, flags: int) -> None:
    held = os.open(file, flags)
    with reading(file) as fd:
        assert not Writers(fd).shut_out()
    os.close(held)
    with reading(file) as fd:
        assert Writers(fd).shut_out()


def test_b47_a_writer_that_comes_waits_and_is_seen(file: Path) -> None:
    """The writer is a process of its own; the lease of this one must end it with no signal."""
    with reading(file) as fd:
        writers = Writers(fd)
        assert writers.shut_out()
        program = subprocess.Popen(["sh", "-c", f"echo late >> {file}"])
        while not writers.waiting():
            assert program.poll() is None
        assert file.read_bytes() == b"old\n"
    assert program.wait(30) == 0
    assert file.read_bytes() == b"old\nlate\n"


def test_a_broken_lease_sends_no_signal_that_ends_a_process(file: Path) -> None:
    assert signal.getsignal(signal.SIGURG) == signal.SIG_DFL
    with reading(file) as fd:
        assert Writers(fd).shut_out()
        assert fcntl.fcntl(fd, fcntl.F_GETSIG) == signal.SIGURG


def test_one_that_closes_in_time_is_waited_for(file: Path) -> None:
    held = os.open(file, os.O_WRONLY)
    begun = Event()

    def close_soon() -> None:
        begun.wait()
        os.close(held)

    closing = Thread(target=close_soon)
    closing.start()
    with reading(file) as fd:
        begun.set()
        tries = [Writers(fd).shut_out() for _ in range(50)]
    closing.join()
    assert tries[-1]


def test_where_there_are_no_leases_nothing_is_waited_for() -> None:
    """A device has none: fcntl(2) says EINVAL, as a file system without them does."""
    with reading(Path("/dev/null")) as fd:
        writers = Writers(fd)
        assert writers.shut_out()
        assert not writers.waiting()
