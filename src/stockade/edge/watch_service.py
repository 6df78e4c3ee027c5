"""Figures and readiness as the API asks for them."""

from __future__ import annotations

from collections.abc import Sequence

from stockade.edge.authority_service import operator
from stockade.edge.exchange import Peer
from stockade.edge.gauges import Gauge
from stockade.edge.tally import Tally
from stockade.flow.readiness import Readiness


class WatchService:
    """Implements `edge.service.WatchVerbs`. Thread-safe."""

    def __init__(self, tally: Tally, gauges: Sequence[Gauge], readiness: Readiness) -> None:
        self._tally = tally
        self._gauges = gauges
        self._readiness = readiness

    def metrics(self, peer: Peer) -> tuple[bytes, str]:
        operator(peer, "read the figures of the daemon")
        from stockade.edge.exposition import CONTENT_TYPE, text

        return text(self._tally, self._gauges), CONTENT_TYPE

    def not_ready(self) -> Sequence[str]:
        return self._readiness.reasons()
