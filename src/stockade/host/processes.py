"""What this process is to the kernel, and the ends of other processes.

`crun run -d` leaves the guest to the nearest subreaper or to init, and a dead helper of its own
beside it, which would hold a pid for as long as nobody collects it.
"""

from __future__ import annotations

import ctypes
import os
import resource
import select
import subprocess
from collections.abc import Iterable
from pathlib import Path
from typing import Final

_PR_SET_CHILD_SUBREAPER: Final = 36
_LIBC: Final = ctypes.CDLL(None, use_errno=True)


def become_subreaper() -> None:
    """Let orphaned descendants become children of this process, so that `reap` can collect them
    where the host's init does not. See PR_SET_CHILD_SUBREAPER(2const). Raises OSError."""
    if _LIBC.prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0) != 0:
        raise OSError(ctypes.get_errno(), "prctl(PR_SET_CHILD_SUBREAPER)")


def allow_open_files() -> None:
    """Raise the limit of open files as far as this process may. Login shells and service managers
    give 1,024 (for select(2), which nothing here uses); a sandbox takes some 40."""
    _, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))


def wait_exit(
    process: subprocess.Popen[bytes], timeout_s: float, until: int | None = None
) -> int | None:
    """The exit status, or None when it has not ended in time or before the descriptor `until` was
    readable. By poll(2) on a pidfd: Popen.wait with a timeout sleeps in steps of up to 50 ms, which
    cost 10 ms per sandbox."""
    pidfd = os.pidfd_open(process.pid)
    try:
        poller = select.poll()
        poller.register(pidfd, select.POLLIN)
        if until is not None:
            poller.register(until, select.POLLIN)
        ready = {fd for fd, _ in poller.poll(timeout_s * 1000)}
        return process.wait() if pidfd in ready else None
    finally:
        os.close(pidfd)


def children() -> frozenset[int]:
    """Pids of the main thread's children, dead ones included. Orphans of a subreaper become
    those; what another thread started is not among them."""
    text = Path(f"/proc/self/task/{os.getpid()}/children").read_text()
    return frozenset(int(pid) for pid in text.split())


def unified_group(pid: int) -> str:
    """The cgroup2 path of a process, also of one that is dead and not yet collected; empty when
    there is no such process."""
    try:
        lines = Path(f"/proc/{pid}/cgroup").read_text().splitlines()
    except (FileNotFoundError, ProcessLookupError):
        return ""
    return next((line[3:] for line in lines if line.startswith("0::")), "")


def tracer_of(thread: int) -> tuple[int, int]:
    """The thread that traces it, and the process which that is one of; zeros when there is none."""
    tracer = _status(thread, b"TracerPid")
    return (tracer, _status(tracer, b"Tgid")) if tracer else (0, 0)


def _status(thread: int, name: bytes) -> int:
    """A number of proc_pid_status(5); 0 when the thread is gone. The name of the program is one of
    the lines, and whatever bytes the program likes but a newline."""
    try:
        lines = Path(f"/proc/{thread}/status").read_bytes().split(b"\n")
    except (FileNotFoundError, ProcessLookupError):
        return 0
    return next((int(line.split()[1]) for line in lines if line.startswith(name + b":")), 0)


def reap(pidfd: int, timeout_s: float) -> bool:
    """Collect a child that is dead within `timeout_s`: a group is empty a moment before its last
    process can be collected. False when it lives on or is another's child."""
    poller = select.poll()
    poller.register(pidfd, select.POLLIN)
    poller.poll(timeout_s * 1000)
    try:
        return os.waitid(os.P_PIDFD, pidfd, os.WEXITED | os.WNOHANG) is not None
    except ChildProcessError:
        return False


def collect(pids: Iterable[int], timeout_s: float) -> frozenset[int]:
    """`reap` for children by pid, which nobody else waits for; gives those that live on."""
    left = set()
    for pid in pids:
        try:
            pidfd = os.pidfd_open(pid)
        except ProcessLookupError:
            continue
        try:
            if not reap(pidfd, timeout_s):
                left.add(pid)
        finally:
            os.close(pidfd)
    return frozenset(left)
