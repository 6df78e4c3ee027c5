"""Orphans of sandboxes: `crun run -d` leaves the guest to the nearest subreaper or to init."""

from __future__ import annotations

import ctypes
import os
import select
import subprocess
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process, so that `reap` can collect them
    where the host's init does not. See PR_SET_CHILD_SUBREAPER(2const). Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def wait_exit(process: subprocess.Popen[bytes], timeout_s: float) -> int | None:
    """The exit status, or None when it has not ended in time. By poll(2) on a pidfd: Popen.wait
    with a timeout sleeps in steps of up to 50 ms, which cost 10 ms per sandbox."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        return process.wait() if poller.poll(timeout_s * 1000) else None
    finally:
        os.close(pidfd)


def reap(pidfd: int) -> bool:
    """Collect a dead child without waiting; False when it is alive or another's child."""
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return False
