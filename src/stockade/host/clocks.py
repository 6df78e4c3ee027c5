"""The clocks of this host."""

from __future__ import annotations

import time

from stockade.host.leasedir import current_boot
from stockade.terms.moment import Moment


class HostClock:
    """Implements `terms.moment.Timekeeper`."""

    def __init__(self) -> None:
        self._boot = current_boot()

    def __call__(self) -> float:
        return time.time()

    def moment(self) -> Moment:
        return Moment(time.time(), time.clock_gettime(time.CLOCK_BOOTTIME), self._boot)
