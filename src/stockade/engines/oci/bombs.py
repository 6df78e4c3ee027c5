"""Ends fork bombs that a command left behind.

What a finished command leaves running stays until a reset. A bomb that stays keeps its lease at the
limit of processes, where the next calls wait, and takes processor time from every other lease. It
is told from a server that was started in the background by two things together: many processes are
left, and new ones are being refused. Looked at when the command has ended and once more a moment
later, because `bomb | bomb &` returns before it has reached the limit; and so on for as long as what
is left grows: on a busy host one takes seconds to get there.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final

from stockade.host import cgroup

MANY: Final = 64
LATER_S: Final = 0.5
_KILL_TIMEOUT_S: Final = 10.0

_log: Final = logging.getLogger(__name__)


def ended(group: Path, refused: Callable[[], int], quotas: Sequence[Path]) -> int:
    """How many processes of a bomb were ended in `group`; 0 where there is none. `refused` gives
    how many processes were refused since the command began; `quotas` as of `cgroup.kill`."""
    left = _members(group)
    if left < MANY or refused() == 0:
        return 0
    cgroup.kill(group, _KILL_TIMEOUT_S, quotas)
    return left


def look_later(group: Path, refused: Callable[[], int], quotas: Sequence[Path], left: int) -> None:
    """`ended`, in half a second, of what `left` were left of. The sandbox may be gone by then."""
    timer = threading.Timer(LATER_S, _look, (group, refused, quotas, left))
    timer.daemon = True
    timer.start()


def _look(group: Path, refused: Callable[[], int], quotas: Sequence[Path], before: int) -> None:
    try:
        count = ended(group, refused, quotas)
        left = _members(group)
    except OSError as error:
        _log.debug("a group that a command left is gone: %s", error)
        return
    if count:
        _log.warning("ended %d processes that a command left and that went on forking", count)
    elif left > before:
        look_later(group, refused, quotas, left)


def _members(group: Path) -> int:
    return len((group / "cgroup.procs").read_text().split())
