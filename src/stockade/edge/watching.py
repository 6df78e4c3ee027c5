"""What is known of a call from outside: when it passed each stage, and how it ended.

A call notes its stages in a list of its own, some 0.1 µs each and no lock; whoever counts or traces
gets the whole of it once, at the end.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Final

from stockade.edge.tally import Tally
from stockade.terms.codes import Code, Status
from stockade.terms.result import ToolResult
from stockade.terms.stage import Stage


@dataclass(frozen=True, slots=True)
class Passage:
    """`marks` are the stages in the order in which they began, with nanoseconds of one clock;
    `ended_ns` is of the same. `started_ns` is since the epoch."""

    started_ns: int
    marks: Sequence[tuple[Stage, int]]
    ended_ns: int
    result: ToolResult


Sink = Callable[[Passage], None]  # never raises and never waits


class CallWatch:
    """Of one call, used by its thread."""

    __slots__ = ("_marks", "_sinks", "_started_ns")

    def __init__(self, sinks: Sequence[Sink]) -> None:
        self._sinks = sinks
        self._started_ns = time.time_ns()
        self._marks = [(Stage.RECEIVE, time.perf_counter_ns())]

    def mark(self, stage: Stage) -> None:
        self._marks.append((stage, time.perf_counter_ns()))

    def end(self, result: ToolResult) -> None:
        passage = Passage(self._started_ns, self._marks, time.perf_counter_ns(), result)
        for sink in self._sinks:
            sink(passage)


UNWATCHED: Final = CallWatch(())


class Watcher:
    """Thread-safe. `tally` counts; `sinks` get what is counted too."""

    def __init__(self, sinks: Sequence[Sink] = ()) -> None:
        self.tally: Final = Tally()
        self._sinks: Final[Sequence[Sink]] = (self._count, *sinks)

    def begin(self) -> CallWatch:
        """A request that asks for a call has come."""
        return CallWatch(self._sinks)

    def refused(self, status: Status, code: Code) -> None:
        """A request of any kind was refused, or its call was."""
        self.tally.refuse(status, code)

    def _count(self, passage: Passage) -> None:
        result = passage.result
        stage, began_ns = passage.marks[0]
        since_ns = began_ns
        took: dict[Stage, float] = {}
        # A stage that a call comes to twice, waiting in between, is measured once.
        for following, at_ns in passage.marks[1:]:
            took[stage] = took.get(stage, 0.0) + (at_ns - since_ns) / 1e9
            stage, since_ns = following, at_ns
        took[stage] = took.get(stage, 0.0) + (passage.ended_ns - since_ns) / 1e9
        self.tally.add(
            result.call.tool,
            result.status,
            None if result.error is None else result.error.fault,
            took,
            (passage.ended_ns - began_ns) / 1e9,
        )
