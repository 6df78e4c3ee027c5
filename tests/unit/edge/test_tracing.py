"""Spans: one for a call, one for each stage; a receiver that is dead is nobody's problem."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator, Sequence

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SpanExporter, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter

from stockade.edge.tracing import Tracer, _Told, open_tracer
from stockade.edge.watching import Watcher
from stockade.terms.codes import Code, Status
from stockade.terms.stage import Stage
from tests.edge.conftest import LEASE, make_result
from tests.receiver import Receiver

STAGES = (Stage.SCHEMA, Stage.AUTHORIZE, Stage.QUEUE, Stage.RUN, Stage.REPLY)


def watched(tracer: Tracer, status: Status = Status.SUCCEEDED, code: Code | None = None) -> None:
    watch = Watcher((tracer.add,)).begin()
    for stage in STAGES:
        watch.mark(stage)
    watch.end(make_result("rq_1", status, code))


def test_a_call_is_a_span_with_one_span_for_each_stage() -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "1")
    before = time.time_ns()
    watched(tracer)
    after = time.time_ns()
    tracer.close()
    spans = exporter.get_finished_spans()
    *stages, call = spans
    assert [span.name for span in stages] == ["receive", *(stage.value for stage in STAGES)]
    assert call.name == "call bash_execute"
    assert {span.parent.span_id for span in stages if span.parent} == {call.context.span_id}
    assert {span.context.trace_id for span in spans} == {call.context.trace_id}
    assert call.parent is None
    assert dict(call.attributes or {}) == {
        "stockade.request_id": "rq_1",
        "stockade.lease_id": LEASE,
        "stockade.trajectory_id": "t1",
        "stockade.tool": "bash_execute",
        "stockade.status": "succeeded",
    }
    # Each stage ends where the next begins, and all of it is the call.
    times = [(span.start_time or 0, span.end_time or 0) for span in stages]
    assert [end for _, end in times[:-1]] == [start for start, _ in times[1:]]
    assert (times[0][0], times[-1][1]) == (call.start_time, call.end_time)
    assert before <= (call.start_time or 0)
    assert (call.end_time or 0) <= after + 10_000_000


@pytest.mark.parametrize(
    ("status", "code", "failed"),
    [
        (Status.UNKNOWN, Code.IN_DOUBT, True),
        (Status.UNAVAILABLE, Code.SANDBOX_UNAVAILABLE, True),
        (Status.FAILED, Code.NONZERO_EXIT, False),
        (Status.DENIED, Code.TOKEN_EXPIRED, False),
    ],
)
def test_only_what_is_our_fault_is_an_error(status: Status, code: Code, failed: bool) -> None:
    exporter = InMemorySpanExporter()
    tracer = Tracer(exporter, "1")
    watched(tracer, status, code)
    tracer.close()
    assert (not exporter.get_finished_spans()[-1].status.is_ok) == failed


@pytest.fixture
def receiver() -> Iterator[Receiver]:
    made = Receiver()
    yield made
    made.close()


def test_a_real_receiver_gets_the_spans(receiver: Receiver) -> None:
    tracer = open_tracer(receiver.endpoint, "1")
    watched(tracer)
    tracer.close()
    assert receiver.came.wait(20)
    assert receiver.names() == {
        "call bash_execute", "receive", *(stage.value for stage in STAGES),
    }  # fmt: skip


class Stuck(SpanExporter):
    def __init__(self) -> None:
        self.go = threading.Event()

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        self.go.wait(20)
        return SpanExportResult.FAILURE


def test_a_receiver_that_hangs_delays_no_call_and_what_is_too_much_is_dropped() -> None:
    stuck = Stuck()
    tracer = Tracer(stuck, "1", queued=4)
    longest = 0.0
    for _ in range(3000):
        began = time.perf_counter()
        watched(tracer)
        longest = max(longest, time.perf_counter() - began)
    assert longest < 5  # the hang is 20 s
    assert tracer.dropped
    stuck.go.set()
    tracer.close()


def test_a_receiver_that_is_not_there_fails_no_call(caplog: pytest.LogCaptureFixture) -> None:
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        tracer = open_tracer(f"http://127.0.0.1:{closed.getsockname()[1]}/v1/traces", "1")
        watched(tracer)
        began = time.monotonic()
        tracer.close()
        assert time.monotonic() - began < 15
    assert "Traceback" not in caplog.text
    told = [record.getMessage() for record in caplog.records if record.name == "stockade.trace"]
    assert told[0].startswith("spans don't reach their receiver and are lost until they do: ")
    assert told[1:] == [f"{len(STAGES) + 2} spans were lost"]


class Moody(SpanExporter):
    """Fails, raises and works, as it is told."""

    def __init__(self, *moods: SpanExportResult | Exception) -> None:
        self.moods = list(moods)

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        mood = self.moods.pop(0)
        if isinstance(mood, Exception):
            raise mood
        return mood


def test_lost_spans_are_told_when_it_begins_and_when_it_is_over(
    caplog: pytest.LogCaptureFixture,
) -> None:
    fails, works = SpanExportResult.FAILURE, SpanExportResult.SUCCESS
    moody = Moody(works, fails, OSError("secret"), works, works, fails)
    told = _Told(moody)
    two: list[ReadableSpan] = [ReadableSpan("a"), ReadableSpan("b")]
    while moody.moods:
        told.export(two)
    told.shutdown()
    begin = "spans don't reach their receiver and are lost until they do: it does not take them"
    assert [record.getMessage() for record in caplog.records] == [
        begin,
        "spans reach their receiver again; 4 were lost",
        begin,
        "2 spans were lost",
    ]
