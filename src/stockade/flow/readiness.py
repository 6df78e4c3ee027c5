"""Whether this runtime can serve a call now, and what keeps it from it.

Each reason has a probe that tries what a call would need. Probes cost work (one writes and syncs),
so whoever asks again within `PROBE_S` seconds gets the answer of the last time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping
from typing import Final

from stockade.terms.moment import Timekeeper

PROBE_S: Final = 2.0
_log: Final = logging.getLogger(__name__)


class Readiness:
    """Thread-safe. Who asks while probes run waits for them."""

    def __init__(self, probes: Mapping[str, Callable[[], object]], clock: Timekeeper) -> None:
        """A probe raises an exception when what it is named after does not work."""
        self._probes = probes
        self._clock = clock
        self._lock = threading.Lock()
        self._looked_s: float | None = None
        self._reasons: tuple[str, ...] = ()

    def reasons(self) -> tuple[str, ...]:
        """The names of the probes that failed; none when all is well."""
        with self._lock:
            now_s = self._clock.moment().boot_s
            if self._looked_s is None or now_s - self._looked_s >= PROBE_S:
                self._look()
                self._looked_s = now_s
            return self._reasons

    def _look(self) -> None:
        why: dict[str, str] = {}
        for name, probe in self._probes.items():
            try:
                probe()
            except Exception as error:
                why[name] = str(error)
        if tuple(why) != self._reasons:
            told = "; ".join(f"{name}: {text}" for name, text in why.items())
            _log.warning("not ready: %s", told) if why else _log.info("ready again")
        self._reasons = tuple(why)
