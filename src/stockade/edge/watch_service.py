"""Figures and readiness as the API asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from stockade.edge.gauges import Gauge
from stockade.edge.service import Context
from stockade.edge.tally import Tally
from stockade.flow.readiness import Readiness


class WatchService:
    """Implements `edge.service.WatchVerbs`. Thread-safe."""

    def __init__(self, tally: Tally, gauges: Sequence[Gauge], readiness: Readiness) -> None:
        self._tally = tally
        self._gauges = gauges
        self._readiness = readiness

    def metrics(self, context: Context) -> tuple[bytes, str]:
        context.operators_only("read the figures of the daemon")
        from stockade.edge.exposition import CONTENT_TYPE, text

        return text(self._tally, self._gauges), CONTENT_TYPE

    def not_ready(self) -> Sequence[str]:
        return self._readiness.reasons()
