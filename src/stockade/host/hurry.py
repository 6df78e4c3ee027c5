"""Gives processes that are being killed what they need to die soon.

SIGKILL is carried out by the process itself, so one that gets no processor lives on. A command may
have made processes of its lease SCHED_IDLE, nice 19 or bound to one processor, itself or those that
wait for later commands, while others of the lease use up what the lease has: 200 such processes took
up to 7 s (and 11 s through the daemon). Or the lease's quota of processor time is used up: 50
processes under a tenth of a processor took 0.8 s.

So those that are left get the default policy, the highest weight among their lease's own (its groups
bound it against others) and every processor, once each. And the quota is written again as it is,
which begins a new period for its group, and never while a call runs whose budget is reckoned by the
quota (`kept`). With both, the former take 36 to 68 ms and the latter 24 to 40 (measured, Linux 6.18).

What lives on beside those that die has the new period too. So a quota has `REFILLS` of them at once
and one more every `REFILL_S` seconds: with a period of 100 ms a lease that ends calls all the time
gets a twentieth more than its quota. A kill that has none left takes as long as it takes.

A process that another one traces stops once more when it is killed, and SIGKILL does not end that
stop: if its tracer asked for it (PTRACE_O_TRACEEXIT) and is of another call of the sandbox, it lives
for as long as that one, which is therefore killed too.

Only what has SIGKILL pending may be hurried: `waiting` comes before the kill, `along` after it. So
nothing of a command ever runs with this.
"""

from __future__ import annotations

import os
import signal
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stockade.host.interpreter import ALLOWED
from stockade.host.processes import tracer_of, unified_group

REFILLS: Final = 40
REFILL_S: Final = 2.0
# So that a round takes no more than 30 ms.
AT_ONCE: Final = 512
# Rounds of 5 ms, because it means to look at each process that is left.
TRACERS_EACH: Final = 4
_NICEST: Final = -20
_lock: Final = threading.Lock()
_kept: Final = Counter[Path]()
# By monotonic time: when a quota will have all its refills again.
_full_at: Final = dict[Path, float]()


@contextmanager
def kept(quotas: Sequence[Path]) -> Iterator[None]:
    """Meanwhile no kill begins a new period of these: a budget of processor time is looked at as
    seldom as they allow."""
    with _lock:
        _kept.update(quotas)
    try:
        yield
    finally:
        with _lock:
            _kept.subtract(quotas)
            for quota in quotas:
                if not _kept[quota]:
                    del _kept[quota]


def _takes_refill(quota: Path) -> bool:
    """One of its refills, if it has any. Under the lock."""
    now = time.monotonic()
    for other in [path for path, at in _full_at.items() if at <= now]:
        del _full_at[other]
    at = _full_at.get(quota, now)
    if _kept[quota] or at - now > (REFILLS - 1) * REFILL_S:
        return False
    _full_at[quota] = at + REFILL_S
    return True


class Hurry:
    """For one kill of `group`; `quotas` are the files with the quotas that hold for it."""

    def __init__(self, group: Path, quotas: Sequence[Path]) -> None:
        self._group = group
        self._quotas = quotas
        self._rounds = 0
        self._seen: set[int] = set()

    def waiting(self) -> list[tuple[int, str]]:
        """Threads in the group and below, each with its directory; those first that were not hurried
        yet."""
        found: list[tuple[int, str]] = []
        for directory, _, _ in os.walk(self._group):
            # A group that was empty may be removed meanwhile.
            with suppress(OSError), open(f"{directory}/cgroup.threads") as threads:
                found += [(int(line), directory) for line in threads]
        return sorted(found, key=lambda each: each[0] in self._seen)[:AT_ONCE]

    def along(self, waiting: Sequence[tuple[int, str]]) -> None:
        """Hurry what was `waiting` before the kill was written. What is gone or can't be changed
        is left as it is, because the kill goes on without."""
        self._rounds += 1
        for thread, directory in waiting:
            if thread in self._seen:
                if self._rounds % TRACERS_EACH == 0:
                    self._end_tracers(thread, directory)
                continue
            self._seen.add(thread)
            # A number names a stranger some time after its owner was reaped, but not before all
            # others were given out. Looked at right before, that is microseconds.
            group = unified_group(thread)
            if group and directory.endswith(group):
                with suppress(OSError):
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                    os.setpriority(os.PRIO_PROCESS, thread, _NICEST)
                    os.sched_setaffinity(thread, ALLOWED)
        with _lock:
            free = [quota for quota in self._quotas if _takes_refill(quota)]
        for quota in free:
            with suppress(OSError):
                quota.write_text(quota.read_text())

    def _end_tracers(self, thread: int, directory: str) -> None:
        """End who traces it, and who traces that one. All are of the same sandbox."""
        calls = os.path.dirname(directory)
        seen = {0, thread}
        tracer, process = tracer_of(thread)
        while tracer not in seen:
            seen.add(tracer)
            with suppress(OSError):
                pidfd = os.pidfd_open(process)
                try:
                    group = os.path.dirname(unified_group(process))
                    if len(group) > 1 and calls.endswith(group):
                        signal.pidfd_send_signal(pidfd, signal.SIGKILL)
                finally:
                    os.close(pidfd)
            tracer, process = tracer_of(tracer)
