"""Orphans of sandboxes: `crun run -d` leaves the guest to the nearest subreaper or to init."""

from __future__ import annotations

import ctypes
import os
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process, so that `reap` can collect them
    where the host's init does not. See PR_SET_CHILD_SUBREAPER(2const). Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def reap(pidfd: int) -> bool:
    """Collect a dead child without waiting; False when it is alive or another's child."""
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return False
