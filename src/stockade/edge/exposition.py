"""Figures in the text format of Prometheus. The home of prometheus-client.

A registry is made for each answer and holds one collector, which reads the runtime's own tally and
gauges. The library's global registry, with its figures of the whole process, is not used. Loaded by
the first who asks for figures, because importing the library takes 80 ms.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Mapping, Sequence
from typing import Final

from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.exposition import CONTENT_TYPE_LATEST, generate_latest
from prometheus_client.registry import Collector, CollectorRegistry

from stockade.edge.gauges import Gauge
from stockade.edge.tally import BOUNDS, Histogram, Tally
from stockade.terms.fault import Failure

CONTENT_TYPE: Final = CONTENT_TYPE_LATEST
LOG: Final = logging.getLogger("stockade.edge")


def text(tally: Tally, gauges: Sequence[Gauge]) -> bytes:
    """All figures of now."""
    registry = CollectorRegistry()
    registry.register(_Figures(tally, gauges))
    return generate_latest(registry)


class _Figures(Collector):
    def __init__(self, tally: Tally, gauges: Sequence[Gauge]) -> None:
        self._tally = tally
        self._gauges = gauges

    def describe(self) -> Iterable[Metric]:
        """Nothing: the registry would ask `collect` for it when it is made."""
        return ()

    def collect(self) -> Iterable[Metric]:
        counts = self._tally.counts()
        calls = CounterMetricFamily(
            "stockade_calls",
            "Calls that are over, by tool, status and whose fault it was.",
            labels=("tool", "status", "fault"),
        )
        for labels, count in sorted(counts.calls.items()):
            calls.add_metric(labels, count)
        yield calls
        yield _histogram(
            "stockade_call_seconds", "From the request to its reply.", "tool", counts.call_times
        )
        yield _histogram(
            "stockade_stage_seconds", "Time in each stage of a call.", "stage", counts.stage_times
        )
        yield _by_code("stockade_malformed", "Requests that were not valid.", counts.malformed)
        yield _by_code("stockade_denied", "Requests that were denied.", counts.denied)
        for gauge in self._gauges:
            yield from _read(gauge)


def _histogram(name: str, what: str, label: str, times: Mapping[str, Histogram]) -> Metric:
    family = HistogramMetricFamily(name, what, labels=(label,))
    for value, histogram in times.items():
        total = 0
        buckets: list[tuple[str, float]] = []
        bounds = (*(f"{bound:g}" for bound in BOUNDS), "+Inf")
        for bound, count in zip(bounds, histogram.counts, strict=True):
            total += count
            buckets.append((bound, total))
        if total:
            family.add_metric((value,), buckets, histogram.sum_s)
    return family


def _by_code(name: str, what: str, counts: Mapping[str, int]) -> Metric:
    family = CounterMetricFamily(name, what, labels=("code",))
    for code, count in sorted(counts.items()):
        family.add_metric((code,), count)
    return family


def _read(gauge: Gauge) -> Iterable[Metric]:
    try:
        values = gauge.read()
    except Failure as error:
        LOG.warning("%s can't be read: %s", gauge.name, error.fault.code)
        return
    family = GaugeMetricFamily(gauge.name, gauge.what, labels=(gauge.label,) if gauge.label else ())
    for value, figure in values.items():
        family.add_metric((value,) if gauge.label else (), figure)
    yield family
