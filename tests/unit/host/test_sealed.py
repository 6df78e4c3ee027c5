from __future__ import annotations

import fcntl
import os
import subprocess
from pathlib import Path

import pytest

from stockade.host.sealed import sealed_copy

PROGRAM = "/usr/bin/true"


def test_the_copy_is_whole_runs_and_can_never_change() -> None:
    fd = sealed_copy(PROGRAM, 64)
    assert fd is not None
    try:
        assert fd >= 64
        assert not os.get_inheritable(fd)
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
        sealed_copy("/nonexistent/runtime", 64)


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
    fd = sealed_copy("/usr/bin/crun", 64)
    assert fd is not None
    try:
        assert linked(f"/proc/self/fd/{fd}", (fd,)) == 1
        assert linked("/usr/bin/crun") == 2
    finally:
        os.close(fd)


def test_what_is_run_by_its_path(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    script = tmp_path / "crun"
    script.write_text("#!/bin/sh\nexec /usr/bin/crun\n")
    assert sealed_copy(str(script), 64) is None

    def refused(name: str, flags: int) -> int:
        raise PermissionError

    monkeypatch.setattr(os, "memfd_create", refused)
    assert sealed_copy(PROGRAM, 64) is None
