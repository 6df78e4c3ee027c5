"""Who ends a call that its pump can't."""

from __future__ import annotations

import time
from contextlib import closing
from typing import cast

from stockade.engines.oci.watchdog import Watchdog
from stockade.host.call_group import CallGroup
from stockade.host.cancel import EventfdCancel
from stockade.terms.outcome import End

MONTH_S = 30 * 24 * 3600.0


class Group:
    killed = False

    def kill(self, timeout_s: float) -> None:
        self.killed = True


def test_a_limit_that_poll_can_not_count_is_watched_all_the_same() -> None:
    group = Group()
    with closing(EventfdCancel()) as cancel:
        until = time.monotonic() + MONTH_S
        watchdog = Watchdog(cast("CallGroup", group), cancel, until, 1.0, None)
        with watchdog:
            cancel.set(End.CANCELLED)
            watchdog._thread.join(20.0)
        assert watchdog.fired == "cancelled"
        assert group.killed
