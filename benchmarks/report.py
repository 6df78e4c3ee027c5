"""What is measured, as data: the models behind build/bench.json.

A figure has our samples, those of each peer of the same run, and the limits that it is held to. The
ratio is ours over the peer's, median by median. A limit that could not be checked (no peer, no
sample) holds `null`, not true.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from pydantic import BaseModel, ConfigDict

from benchmarks.measure import Samples


class _Model(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class Series(_Model):
    """Percentiles are samples themselves (nearest rank); null where nothing was measured."""

    name: str
    n: int
    failures: int
    min: float | None
    p50: float | None
    p95: float | None
    p99: float | None
    max: float | None
    errors: list[str]
    samples: list[float]


class Peer(_Model):
    series: Series
    ratio: float | None


class Limit(_Model):
    """`holds` is null when it could not be checked."""

    text: str
    value: float | None
    bound: float | None
    holds: bool | None


class Figure(_Model):
    name: str
    unit: str
    note: str
    ours: Series
    peers: list[Peer]
    limits: list[Limit]


class Report(_Model):
    """`load` is the machine's load average before and after (1 minute)."""

    quick: bool
    started_at: str
    host: dict[str, str]
    load: tuple[float, float]
    figures: list[Figure]


def percentile(values: Sequence[float], percent: float) -> float | None:
    """The nearest-rank percentile of unsorted values; None when there are none."""
    if not values:
        return None
    rank = max(1, math.ceil(percent / 100 * len(values)))
    return sorted(values)[rank - 1]


def series(name: str, samples: Samples) -> Series:
    values = samples.values

    def at(percent: float) -> float | None:
        found = percentile(values, percent)
        return None if found is None else round(found, 4)

    return Series(
        name=name,
        n=len(values),
        failures=samples.failures,
        min=at(0),
        p50=at(50),
        p95=at(95),
        p99=at(99),
        max=at(100),
        errors=samples.errors,
        samples=[round(value, 4) for value in values],
    )


def figure(
    name: str,
    ours: str,
    found: Mapping[str, Samples],
    *,
    unit: str = "ms",
    note: str = "",
    limits: Sequence[Limit] = (),
) -> Figure:
    """`found` holds the samples of `ours` and of every peer by name."""
    mine = series(ours, found[ours])
    peers = []
    for peer in found:
        if peer != ours:
            theirs = series(peer, found[peer])
            peers.append(Peer(series=theirs, ratio=ratio(mine.p50, theirs.p50)))
    return Figure(name=name, unit=unit, note=note, ours=mine, peers=peers, limits=list(limits))


def ratio(ours: float | None, theirs: float | None) -> float | None:
    return None if ours is None or not theirs else round(ours / theirs, 4)


def at_most(text: str, value: float | None, bound: float | None) -> Limit:
    holds = None if value is None or bound is None else value <= bound
    return Limit(text=text, value=value, bound=bound, holds=holds)


def at_least(text: str, value: float | None, bound: float) -> Limit:
    return Limit(
        text=text, value=value, bound=bound, holds=None if value is None else value >= bound
    )


def no_failure(found: Samples) -> Limit:
    return at_most("no failure", found.failures, 0)
