"""Gives processes that are being killed what they need to die soon.

SIGKILL is carried out by the process itself, so one that gets no processor lives on. A command may
have made processes of its lease SCHED_IDLE, nice 19 or bound to one processor, itself or those that
wait for later commands, while others of the lease use up what the lease has: 200 such processes took
up to 7 s (and 11 s through the daemon). Or the lease's quota of processor time is used up: 50
processes under a tenth of a processor took 0.8 s.

So those that are left get the default policy, the highest weight among their lease's own (its groups
bound it against others) and every processor, once each. And the quota is written again as it is,
which begins a new period for its group: no more than it is, at most `REFILLS` times for a kill, and
never while a call runs whose budget is reckoned by the quota (`kept`). With both, the former take 36
to 68 ms and the latter 24 to 40 (measured, Linux 6.18).

Only what has SIGKILL pending may be hurried: `waiting` comes before the kill, `along` after it. So
nothing of a command ever runs with this.
"""

from __future__ import annotations

import os
import threading
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Final

from stockade.host.interpreter import ALLOWED
from stockade.host.processes import unified_group

REFILLS: Final = 40
# So that a round takes no more than 30 ms.
AT_ONCE: Final = 512
_NICEST: Final = -20
_lock: Final = threading.Lock()
_kept: Final = Counter[Path]()


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


class Hurry:
    """For one kill of `group`; `quotas` are the files with the quotas that hold for it."""

    def __init__(self, group: Path, quotas: Sequence[Path]) -> None:
        self._group = group
        self._quotas = quotas
        self._refills = 0
        self._seen: set[int] = set()

    def waiting(self) -> list[tuple[int, str]]:
        """Threads in the group and below that were not hurried yet, each with its directory."""
        found: list[tuple[int, str]] = []
        for directory, _, _ in os.walk(self._group):
            with suppress(FileNotFoundError), open(f"{directory}/cgroup.threads") as threads:
                found += [(int(line), directory) for line in threads]
        return [each for each in found if each[0] not in self._seen][:AT_ONCE]

    def along(self, waiting: Sequence[tuple[int, str]]) -> None:
        """Hurry what was `waiting` before the kill was written. What is gone or can't be changed
        is left as it is, because the kill goes on without."""
        for thread, directory in waiting:
            self._seen.add(thread)
            # A number names a stranger some time after its owner was reaped, but not before all
            # others were given out. Looked at right before, that is microseconds.
            group = unified_group(thread)
            if group and directory.endswith(group):
                with suppress(OSError):
                    os.sched_setscheduler(thread, os.SCHED_OTHER, os.sched_param(0))
                    os.setpriority(os.PRIO_PROCESS, thread, _NICEST)
                    os.sched_setaffinity(thread, ALLOWED)
        if self._refills < REFILLS:
            self._refills += 1
            with _lock:
                free = [quota for quota in self._quotas if not _kept[quota]]
            for quota in free:
                with suppress(OSError):
                    quota.write_text(quota.read_text())
