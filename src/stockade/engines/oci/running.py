"""A running call between its start and its outcome."""

from __future__ import annotations

import time
from dataclasses import dataclass
from typing import Final

from stockade.engines.oci.journal import Entry
from stockade.engines.oci.making import Placed
from stockade.host.pump import Collector, Pump
from stockade.host.spare import ExecFailed, Exited
from stockade.host.spool import Spool
from stockade.terms.call import ExecOperation
from stockade.terms.outcome import End
from stockade.terms.ports import ArtifactSink, ExecContext

NAMES: Final = ("stdout", "stderr")


@dataclass(frozen=True, slots=True)
class Begun:
    """A call from its start to its outcome. `deadline` and `started` are monotonic; the counters
    are those before it."""

    placed: Placed
    collectors: tuple[Collector, Collector]
    pump: Pump
    deadline: float
    started: float
    oom_kills: int
    pids_refused: int


def id_of(sink: ArtifactSink | None) -> str:
    return "" if sink is None else sink.id


def sink_of(name: str, operation: ExecOperation, context: ExecContext) -> ArtifactSink | None:
    capture = operation.capture
    if not capture.artifact_bytes:
        return None
    kept = capture.head_bytes + capture.tail_bytes
    return context.artifacts.open(context.lease_id, name, kept, capture.artifact_bytes)


def pump_of(
    reads: tuple[int, int],
    collectors: tuple[Collector, Collector],
    placed: Placed,
    context: ExecContext,
) -> Pump:
    spools = dict(zip(reads, placed.streams.spools, strict=False))
    streams = dict(zip(reads, collectors, strict=True))
    return Pump(streams, placed.spare.fileno(), context.cancel, spools)


def resumed(entry: Entry, placed: Placed, context: ExecContext, timeout_ms: int) -> Begun:
    """A call of an earlier process, with what came until now: it goes on until its own deadline and
    for at most `timeout_ms`. Raises OSError."""
    spools = placed.streams.spools
    collectors = []
    for number, spool in enumerate(spools):
        sink = _sink_again(entry, number, spool, context)
        collectors.append(Collector(number + 1, entry.capture, sink, None))
    for collector, spool in zip(collectors, spools, strict=True):
        collector.replay(spool)
    out, err = collectors
    return Begun(
        placed=placed,
        collectors=(out, err),
        pump=pump_of(placed.streams.take(), (out, err), placed, context),
        deadline=min(_monotonic(entry.deadline_ns), time.monotonic() + timeout_ms / 1000),
        started=_monotonic(entry.started_ns),
        oom_kills=entry.oom_kills,
        pids_refused=entry.pids_refused,
    )


def _monotonic(boottime_ns: int) -> float:
    away_ns = boottime_ns - time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    return time.monotonic() + away_ns / 1e9


def _sink_again(
    entry: Entry, number: int, spool: Spool, context: ExecContext
) -> ArtifactSink | None:
    capture, artifact_id = entry.capture, entry.artifacts[number]
    if not artifact_id:
        return None
    offset, _ = spool.rest()
    kept = capture.head_bytes + capture.tail_bytes
    return context.artifacts.resume(
        entry.lease_id, artifact_id, NAMES[number], kept, capture.artifact_bytes, offset
    )


def verdict(
    how: str, report: Exited | ExecFailed | None, context: ExecContext
) -> tuple[End, int | None, int | None]:
    """(end, exit code or signal, errno)."""
    if how == "deadline":
        return End.DEADLINE, None, None
    if how == "budget":
        return End.BUDGET, None, None
    if how == "cancelled":
        return context.cancel.reason() or End.CANCELLED, None, None
    if isinstance(report, ExecFailed):
        return End.NOT_FOUND, None, report.errno
    if how == "lost" or report is None:
        return End.LOST, None, None
    if report.signal is not None:
        return End.SIGNALED, report.signal, None
    return End.EXITED, report.code, None
