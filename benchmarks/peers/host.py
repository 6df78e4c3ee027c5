"""The floor: programs started on the host itself, without any wall."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Sequence
from typing import Final

BASH: Final = "/bin/bash"
_ENVIRONMENT: Final = {"PATH": "/usr/bin:/bin", "LANG": "C.UTF-8"}
_QUIET: Final = [(os.POSIX_SPAWN_OPEN, 1, "/dev/null", os.O_WRONLY, 0)]


def spawn(*argv: str) -> None:
    """Start and wait with posix_spawn(3), the cheapest way from Python; no pipes, no output."""
    pid = os.posix_spawn(argv[0], argv, _ENVIRONMENT, file_actions=_QUIET)
    _, status = os.waitpid(pid, 0)
    if os.waitstatus_to_exitcode(status):
        raise RuntimeError(f"{argv[0]} ended with status {os.waitstatus_to_exitcode(status)}")


def capture(argv: Sequence[str], cwd: str | None = None) -> bytes:
    """Start, read all that it prints, and wait."""
    done = subprocess.run(
        argv, cwd=cwd, env=_ENVIRONMENT, stdin=subprocess.DEVNULL, capture_output=True
    )
    if done.returncode:
        raise RuntimeError(f"{argv[0]} ended with status {done.returncode}: {done.stderr[:200]!r}")
    return done.stdout


def drain(argv: Sequence[str], chunk_bytes: int) -> int:
    """Start and read all that it prints into one buffer; gives how many bytes came."""
    buffer = bytearray(chunk_bytes)
    total = 0
    with subprocess.Popen(argv, env=_ENVIRONMENT, stdout=subprocess.PIPE, bufsize=0) as process:
        assert process.stdout is not None
        while count := os.readv(process.stdout.fileno(), [buffer]):
            total += count
    return total
