"""The clocks of this host, and which boot they run in."""

from __future__ import annotations

import time
from pathlib import Path

from stockade.terms.moment import Moment


def current_boot() -> str:
    """The kernel's name for this boot."""
    return Path("/proc/sys/kernel/random/boot_id").read_text().strip()


class HostClock:
    """Implements `terms.moment.Timekeeper`."""

    def __init__(self) -> None:
        self._boot = current_boot()

    def __call__(self) -> float:
        return time.time()

    def moment(self) -> Moment:
        return Moment(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self._boot)
