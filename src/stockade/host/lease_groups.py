"""The control groups of a lease: limits for its calls, groups to kill, the guest outside.

One layout serves hybrid hosts (v1 controllers beside an empty cgroup2 hierarchy) and cgroup2
hosts. In the unified hierarchy a lease has

    stockade-INSTANCE/LEASE/guests/SANDBOX          pid 1, never limited, so that a call that uses
                                                    up a limit can't take the guest with it
    stockade-INSTANCE/LEASE/limits/SANDBOX/call-N   one group per call: what cgroup.kill ends and
                                                    whose cpu.stat is the call's own

Limits nest: the lease's are on `limits`, those of a narrower plan on `limits/SANDBOX`. On a hybrid
host they are on `stockade-INSTANCE/LEASE` and `.../LEASE/SANDBOX` of each v1 controller, and calls
enter the latter. A group is made, entered and removed by its exact name; nothing that this instance
did not create is touched.

Moving a process waits for an RCU grace period, 6 to 25 ms, unless the last move is under 10 ms old
(measured): callers place processes ahead of time, off the path of a call.
"""

from __future__ import annotations

import errno
import os
import signal
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

from stockade.host.call_group import CallGroup
from stockade.host.cgroup import PREFIX, Hierarchies, counter, kill, remove_tree, write
from stockade.host.interpreter import ALLOWED
from stockade.host.reasons import reason
from stockade.terms.fault import Code, failure
from stockade.terms.plan import Limits

_CPU_PERIOD_US: Final = 100_000
_TCP_SHARE: Final = 16
# PID_MAX_LIMIT: no kernel has more processes, and pids.max takes no larger number (EINVAL).
_MOST_PIDS: Final = 4_194_304
_UNIFIED_CONTROLLERS: Final = "+memory +pids +cpu"


class LeaseGroups:
    """Creation is idempotent; `remove` gives what could not be removed."""

    def __init__(self, hierarchies: Hierarchies, instance: str, lease_id: str) -> None:
        name = f"{PREFIX}{instance}"
        self._host = hierarchies
        self.unified = hierarchies.unified / name / lease_id
        self._v1 = {c: path / name / lease_id for c, path in hierarchies.v1.items()}
        # Controllers mounted together (cpu,cpuacct) are one directory.
        self._v1_dirs = sorted(set(self._v1.values()))

    def create(self, limits: Limits) -> None:
        """Raises Failure(engine_unavailable)."""
        try:
            for directory in (self.unified / "guests", self.unified / "limits", *self._v1_dirs):
                directory.mkdir(parents=True, exist_ok=True)
            if not self._host.hybrid:
                # Limits are handed down to the level of sandboxes. "No internal processes" holds
                # at each: only guests/SANDBOX and call-N ever have any.
                for parent in (
                    self._host.unified,
                    self.unified.parent,
                    self.unified,
                    self.unified / "limits",
                ):
                    write(parent / "cgroup.subtree_control", _UNIFIED_CONTROLLERS)
            _limit(self._v1, self.unified / "limits", limits)
        except OSError as error:
            raise failure(
                Code.ENGINE_UNAVAILABLE, f"the lease's cgroups could not be made: {reason(error)}"
            ) from error

    def sandbox(self, name: str) -> SandboxGroups:
        return SandboxGroups(
            guest=self.unified / "guests" / name,
            calls=self.unified / "limits" / name,
            v1={controller: path / name for controller, path in self._v1.items()},
            outside=[path.parent for path in self._v1_dirs],
            quotas=self.quotas(name),
        )

    def quotas(self, sandbox: str) -> tuple[Path, ...]:
        """The files with the quotas of processor time of a sandbox's calls, the lease's first."""
        of_lease, file = self.unified / "limits", "cpu.max"
        if self._v1:
            of_lease, file = self._v1["cpu"], "cpu.cfs_quota_us"
        return of_lease / file, of_lease / sandbox / file

    def sandboxes(self) -> list[str]:
        """Names of the sandboxes that there are groups of."""
        found = (
            *_subdirectories(self.unified / "guests"),
            *_subdirectories(self.unified / "limits"),
        )
        return sorted({path.name for path in found})

    def remove(self) -> list[str]:
        """Remove all groups of the lease; names those that are still in use."""
        left = remove_tree(self.unified)
        for directory in self._v1_dirs:
            for group in (directory, *(p for p in _subdirectories(directory))):
                _forget_pages(group)
            left += remove_tree(directory)
        return left

    def remove_instance(self) -> None:
        """Remove the instance's own directories when no lease is left in them."""
        for directory in (self.unified.parent, *(path.parent for path in self._v1_dirs)):
            with suppress(OSError):
                directory.rmdir()


class SandboxGroups:
    """The groups of one sandbox of a lease."""

    def __init__(
        self,
        *,
        guest: Path,
        calls: Path,
        v1: dict[str, Path],
        outside: Sequence[Path],
        quotas: Sequence[Path],
    ) -> None:
        self._guest = guest
        self._calls = calls
        self._v1 = v1
        self._v1_dirs = sorted(set(v1.values()))
        self._outside = outside
        self._quotas = quotas
        self._counters: Counters | None = None

    def create(self, limits: Limits) -> tuple[Path, ...]:
        """Make the groups and set the plan's limits; gives those that the launcher enters, so that
        the inside's cgroup namespace has its root there and shows no name of the host's.
        Raises Failure(sandbox_unavailable)."""
        try:
            for directory in (self._guest, self._calls, *self._v1_dirs):
                directory.mkdir()
            _limit(self._v1, self._calls, limits)
            self._counters = Counters(self._v1, self._calls)
        except OSError as error:
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                f"the sandbox's cgroups could not be made: {reason(error)}",
            ) from error
        return (self._guest, *self._v1_dirs)

    def reopen(self) -> dict[str, CallGroup]:
        """Take back the groups of an earlier process; gives those of calls by name. Raises
        OSError."""
        self._counters = Counters(self._v1, self._calls)
        return {
            path.name: CallGroup(path, exists=True, quotas=self._quotas)
            for path in sorted(_subdirectories(self._calls))
        }

    def exempt(self, pid: int) -> None:
        """Take the guest out of the limited v1 groups that its launcher entered."""
        for directory in self._outside:
            write(directory / "cgroup.procs", str(pid))

    def place(self, pid: int, process: int, call: str, *, limited: bool = False) -> CallGroup:
        """Make a call's group and move `pid`, of which `process` is a pidfd, into it and under the
        limits, which a process that was forked by one of a call is already (`limited`). Blocks for a
        grace period. Raises OSError (ESRCH when the process is gone).

        Groups are entered by number, which another process of the host has some time after its
        owner was reaped, but not before all others were given out (32,768 at least). So whether it
        was is looked at before each move: the last moment is microseconds, not the whole period."""
        group = CallGroup(self._calls / call, quotas=self._quotas)
        try:
            signal.pidfd_send_signal(process, 0)
            group.add(pid)
            for directory in () if limited else self._v1_dirs:
                signal.pidfd_send_signal(process, 0)
                write(directory / "cgroup.procs", str(pid))
        except OSError:
            group.close()
            raise
        return group

    @property
    def counters(self) -> Counters:
        assert self._counters is not None
        return self._counters

    def kill(self, timeout_s: float) -> bool:
        """End all processes; True when both groups are confirmed empty. The guest is killed first,
        so that nothing more is forked. As pid 1 it is gone only when everything in its pid namespace
        is: so the calls are ended before it is waited for, because only what is in a group is
        hurried when that is, and once more, for a spare that was moved meanwhile."""
        with suppress(OSError):
            write(self._guest / "cgroup.kill", "1")
        kill(self._calls, timeout_s, self._quotas)
        guest = kill(self._guest, timeout_s)
        return kill(self._calls, timeout_s, self._quotas) and guest

    def remove(self) -> list[str]:
        left: list[str] = []
        if self._counters is not None:
            self._counters.close()
            self._counters = None
        for directory in self._v1_dirs:
            _forget_pages(directory)
        for root in (self._calls, self._guest, *self._v1_dirs):
            left += remove_tree(root)
        return left


class Counters:
    """What the kernel counts of a sandbox's calls together; its files stay open."""

    def __init__(self, v1: dict[str, Path], calls: Path) -> None:
        """Raises OSError."""
        memory, pids = v1.get("memory", calls), v1.get("pids", calls)
        self._memory = _open(memory / ("memory.oom_control" if v1 else "memory.events"))
        self._refused = [_open(pids / "pids.events")]
        # Since Linux 6.11 cgroup2 counts a refused fork where the limit is, and not where the
        # process is: those of the lease's limit, of whichever sandbox, are in its own group.
        shared = calls.parent / "pids.events.local"
        if not v1 and shared.exists():
            self._refused.append(_open(shared))
        self._peak: int | None = _open(
            memory / ("memory.max_usage_in_bytes" if v1 else "memory.peak"), os.O_RDWR
        )
        try:
            self.start_peak()
        except OSError as error:
            os.close(self._peak)
            self._peak = None
            # Before Linux 6.12 memory.peak can't be restarted: no peak is given.
            if error.errno != errno.EINVAL:
                raise

    def oom_kills(self) -> int:
        return counter(os.pread(self._memory, 4096, 0).decode(), "oom_kill")

    def pids_refused(self) -> int:
        """Forks that a pids limit refused, this sandbox's or the lease's."""
        return sum(counter(os.pread(fd, 4096, 0).decode(), "max") for fd in self._refused)

    def start_peak(self) -> None:
        """Restart the high-water mark of memory; only meaningful when no other call runs. On
        cgroup2 it is this open file's own."""
        if self._peak is not None:
            os.pwrite(self._peak, b"0", 0)

    def peak_bytes(self) -> int | None:
        return None if self._peak is None else int(os.pread(self._peak, 64, 0))

    def close(self) -> None:
        """Once."""
        for fd in (self._memory, *self._refused, *(() if self._peak is None else (self._peak,))):
            os.close(fd)


def _open(path: Path, flags: int = os.O_RDONLY) -> int:
    return os.open(path, flags | os.O_CLOEXEC)


def _limit(v1: dict[str, Path], unified: Path, limits: Limits) -> None:
    for path, value in _settings(v1, unified, limits):
        write(path, value)


def _most_millis() -> int:
    """What one lease may have of this host's processors: all but half of one.

    A fork bomb that has them all holds locks of the kernel (of mapped files, of cgroups) while it
    waits for its turn: on two processors the median call of another lease took 470 instead of 8 ms,
    and a tenth of them their whole time limit; with a tenth of one processor left free, 13 ms."""
    return max(500, 1000 * len(ALLOWED) - 500)


def _settings(v1: dict[str, Path], unified: Path, limits: Limits) -> Iterator[tuple[Path, str]]:
    quota = str(min(limits.cpu_millis, _most_millis()) * _CPU_PERIOD_US // 1000)
    if v1:
        yield v1["memory"] / "memory.limit_in_bytes", str(limits.memory_bytes)
        swap = v1["memory"] / "memory.memsw.limit_in_bytes"
        if swap.exists():
            yield swap, str(limits.memory_bytes)
        # cgroup v1 charges buffers of TCP sockets only where this limit is set, and then apart from
        # memory.limit_in_bytes. Without it a lease fills tcp_mem, which the whole host shares.
        yield (
            v1["memory"] / "memory.kmem.tcp.limit_in_bytes",
            str(limits.memory_bytes // _TCP_SHARE),
        )
        yield v1["pids"] / "pids.max", str(min(limits.pids, _MOST_PIDS))
        yield v1["cpu"] / "cpu.cfs_period_us", str(_CPU_PERIOD_US)
        yield v1["cpu"] / "cpu.cfs_quota_us", quota
    else:
        yield unified / "memory.max", str(limits.memory_bytes)
        swap = unified / "memory.swap.max"
        if swap.exists():
            yield swap, "0"
        yield unified / "pids.max", str(min(limits.pids, _MOST_PIDS))
        yield unified / "cpu.max", f"{quota} {_CPU_PERIOD_US}"


def _subdirectories(directory: Path) -> list[Path]:
    try:
        with os.scandir(directory) as entries:
            # A group has dozens of files; what they are comes with their names.
            return [directory / entry.name for entry in entries if entry.is_dir()]
    except FileNotFoundError:
        return []


def _forget_pages(group: Path) -> None:
    """Let go of the pages charged to a v1 memory group. Without this it stays as a zombie for as
    long as one is: 1,000 sandboxes left 1,000 of them. Refused (EBUSY) while it has processes."""
    with suppress(OSError):
        write(group / "memory.force_empty", "0")
