"""Counts of calls, in memory.

Every label has a closed set of values: the tools of the catalog, statuses, faults, codes, stages.
Nothing that a caller chooses becomes one: ids, tenants, and names of tools that are not there would
let a caller fill the memory of whoever keeps the figures.

A call is counted once, when it is over, under one lock (docs/decisions/0021).
"""

from __future__ import annotations

import threading
from bisect import bisect_left
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from stockade.terms.codes import Blame, Code, Status
from stockade.terms.stage import Stage
from stockade.tools import catalog

# Upper bounds in seconds: a stage takes microseconds, a call as long as its capability allows.
BOUNDS: Final = (
    0.00005, 0.0001, 0.00025, 0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5,
    1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 300.0, 600.0,
)  # fmt: skip
OTHER: Final = "other"  # a tool that is not there
NO_FAULT: Final = "none"


def tool_name(tool: str | None) -> str:
    """As figures and traces name it."""
    return tool if tool is not None and tool in catalog.TOOLS else OTHER


@dataclass(slots=True)
class Histogram:
    """`counts[i]` are the values up to `BOUNDS[i]` and above the bound before; the last one is
    for those above all bounds."""

    counts: list[int] = field(default_factory=lambda: [0] * (len(BOUNDS) + 1))
    sum_s: float = 0.0

    def add(self, seconds: float) -> None:
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum_s += seconds

    def copy(self) -> Histogram:
        return Histogram(list(self.counts), self.sum_s)


@dataclass(frozen=True, slots=True)
class Counts:
    """All figures of one moment. `calls` is by tool, status and fault; `malformed` and `denied`
    are requests of any kind, by code."""

    calls: Mapping[tuple[str, str, str], int]
    call_times: Mapping[str, Histogram]
    stage_times: Mapping[str, Histogram]
    malformed: Mapping[str, int]
    denied: Mapping[str, int]


class Tally:
    """Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._calls: Counter[tuple[str, str, str]] = Counter()
        self._call_times = {name: Histogram() for name in (*catalog.TOOLS, OTHER)}
        self._stage_times = {stage: Histogram() for stage in Stage}
        self._refused: dict[Status, Counter[str]] = {
            Status.INVALID: Counter(),
            Status.DENIED: Counter(),
        }

    def add(
        self,
        tool: str | None,
        status: Status,
        fault: Blame | None,
        stages: Mapping[Stage, float],
        seconds: float,
    ) -> None:
        """One call that is over, and how many seconds each of its stages took."""
        name = tool_name(tool)
        key = (name, status.value, NO_FAULT if fault is None else fault.value)
        with self._lock:
            self._calls[key] += 1
            self._call_times[name].add(seconds)
            for stage, took in stages.items():
                self._stage_times[stage].add(took)

    def refuse(self, status: Status, code: Code) -> None:
        found = self._refused.get(status)
        if found is not None:
            with self._lock:
                found[code.value] += 1

    def counts(self) -> Counts:
        with self._lock:
            return Counts(
                dict(self._calls),
                {name: times.copy() for name, times in self._call_times.items()},
                {stage.value: times.copy() for stage, times in self._stage_times.items()},
                dict(self._refused[Status.INVALID]),
                dict(self._refused[Status.DENIED]),
            )
