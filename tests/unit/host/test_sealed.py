from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from stockade.host.sealed import sealed_copy

PROGRAM = "/usr/bin/true"


def test_the_copy_is_whole_runs_and_can_never_change() -> None:
    fd = sealed_copy(PROGRAM)
    try:
        assert os.pread(fd, 1 << 26, 0) == Path(PROGRAM).read_bytes()
        # What the runtime looks for, no more and no less: else it copies itself again.
        assert fcntl.fcntl(fd, fcntl.F_GET_SEALS) == 0xF
        for change in (lambda: os.pwrite(fd, b"x", 0), lambda: os.ftruncate(fd, 0)):
            with pytest.raises(PermissionError):
                change()
        again = f"/proc/self/fd/{fd}"
        assert subprocess.run([again], pass_fds=(fd,), check=False).returncode == 0
    finally:
        os.close(fd)


def test_what_is_not_there_is_said() -> None:
    with pytest.raises(FileNotFoundError):
        sealed_copy("/nonexistent/runtime")


def linked(program: str, fds: tuple[int, ...] = ()) -> int:
    """How many times the dynamic linker hands over to the runtime."""
    done = subprocess.run(
        [program, "--version"],
        env={"LD_DEBUG": "files"},
        pass_fds=fds,
        capture_output=True,
        check=True,
    )
    return done.stderr.count(b"initialize program")


def test_the_runtime_does_not_copy_itself_again() -> None:
    fd = sealed_copy("/usr/bin/crun")
    try:
        assert linked(f"/proc/self/fd/{fd}", (fd,)) == 1
        assert linked("/usr/bin/crun") == 2
    finally:
        os.close(fd)


def test_where_memory_must_not_be_executed_it_is_the_file(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(name: str, flags: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refused)
    fd = sealed_copy(PROGRAM)
    try:
        assert os.path.samestat(os.fstat(fd), os.stat(PROGRAM))
    finally:
        os.close(fd)
