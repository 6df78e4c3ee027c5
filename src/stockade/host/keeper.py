"""The process that keeps the leases' mounts for the next daemon.

The mounts live in a mount namespace that a thread of the daemon is in (stockade.host.mounts). For
sandboxes to outlive the daemon the namespace must as well: two overlays over one upper directory
are undefined, so the next daemon may not mount a lease anew that a sandbox still uses. One tiny
process (sandbox/keep.c) stays in the namespace. It is in a control group of its own, by which it is
found again and ended, and which no service manager ends with the daemon.
"""

from __future__ import annotations

import os
import subprocess
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stockade.host import cgroup
from stockade.terms.fault import Code, failure

_END_S: Final = 5.0

Spawn = Callable[[Sequence[str]], "subprocess.Popen[bytes]"]


class Keeper:
    """`group` is its control group in the cgroup2 hierarchy; its name is that of the layout of the
    mounts, so that a daemon with another one finds nothing."""

    def __init__(self, program: Path, unified: Path, instance: str) -> None:
        self._program = program
        self._group: Final = unified / f"{cgroup.PREFIX}{instance}" / cgroup.KEEPER
        self._process: subprocess.Popen[bytes] | None = None

    def namespace(self) -> int | None:
        """A descriptor of the namespace that an earlier daemon's keeper is in, or None."""
        try:
            pids = (self._group / "cgroup.procs").read_text().split()
            return os.open(f"/proc/{pids[0]}/ns/mnt", os.O_RDONLY | os.O_CLOEXEC) if pids else None
        except (FileNotFoundError, ProcessLookupError):
            return None

    def start(self, spawn: Spawn) -> None:
        """`spawn` starts a program in the namespace, with a pipe as its standard output.
        Raises Failure(engine_unavailable)."""
        try:
            self._group.mkdir(parents=True, exist_ok=True)
            self._process = spawn([str(self._program), str(self._group / "cgroup.procs")])
            assert self._process.stdout is not None
            with self._process.stdout as ready:
                ready.read()
        except OSError as error:
            raise failure(
                Code.ENGINE_UNAVAILABLE, f"the keeper of mounts could not be started: {error}"
            ) from error
        if not cgroup.populated(self._group):
            raise failure(Code.ENGINE_UNAVAILABLE, "the keeper of mounts ended at once")

    def rejoin(self) -> None:
        """Write the process to the group that it is in. Nothing moves, but the kernel lets the
        grace period pass that it wants before a move: the next one of any process, within 12 ms or
        so, need not wait (0.15 instead of 12 ms, measured). Raises OSError."""
        procs = self._group / "cgroup.procs"
        for pid in procs.read_text().split():
            cgroup.write(procs, pid)

    def end(self) -> None:
        """Kill it; what is mounted goes with its namespace. Idempotent."""
        cgroup.kill(self._group, _END_S)
        if self._process is not None:
            self._process.wait()
            self._process = None
        with suppress(OSError):  # a directory that others are in, or that is gone
            self._group.rmdir()
            self._group.parent.rmdir()
