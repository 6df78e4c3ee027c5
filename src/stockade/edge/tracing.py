"""Spans of calls for an OpenTelemetry receiver. The home of the opentelemetry packages.

Loaded only by a daemon whose configuration names a receiver. A call is handed over when it is over,
whole, by putting it into a bounded queue; a thread makes its spans, one for the call and one for
each stage, and the library sends them in batches. So nothing of a receiver that is slow or dead
reaches a call: what does not fit is dropped and counted. That spans are lost is logged when it
begins and when it is over.

Spans carry ids, tool, status and code; never arguments or output.
"""

from __future__ import annotations

import logging
import queue
import threading
from collections.abc import Iterator, Sequence
from typing import Final

from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExporter, SpanExportResult
from opentelemetry.trace import SpanKind, Status, StatusCode, set_span_in_context

from stockade.edge.tally import tool_name
from stockade.edge.watching import Passage
from stockade.terms.codes import Blame
from stockade.terms.result import ToolResult
from stockade.terms.stage import Stage

LOG: Final = logging.getLogger("stockade.trace")

_QUEUED: Final = 2048
# A receiver that does not answer is given up for this batch; nobody waits for it but our thread.
_EXPORT_S: Final = 5.0
_CLOSE_MS: Final = 2000
_OURS: Final = (Blame.HOST, Blame.SANDBOX)


class Tracer:
    """Thread-safe. `add` is a `watching.Sink`."""

    def __init__(self, exporter: SpanExporter, version: str, queued: int = _QUEUED) -> None:
        resource = Resource.create({"service.name": "stockade", "service.version": version})
        self._provider = TracerProvider(resource=resource, shutdown_on_exit=False)
        self._provider.add_span_processor(BatchSpanProcessor(_Told(exporter)))
        self._tracer = self._provider.get_tracer("stockade", version)
        self._queue: queue.Queue[Passage | None] = queue.Queue(queued)
        self._dropped = 0
        self._thread = threading.Thread(target=self._run, name="trace", daemon=True)
        self._thread.start()

    def add(self, passage: Passage) -> None:
        try:
            self._queue.put_nowait(passage)
        except queue.Full:
            self._dropped += 1

    @property
    def dropped(self) -> int:
        """Calls whose spans were not made because too many waited."""
        return self._dropped

    def close(self) -> None:
        """Send what there is, for a moment at most."""
        try:
            self._queue.put(None, timeout=1)
            self._thread.join(_CLOSE_MS / 1000)
        except queue.Full:
            LOG.warning("spans are left: the receiver is too slow")
        self._provider.force_flush(_CLOSE_MS)
        self._provider.shutdown()

    def _run(self) -> None:
        while (passage := self._queue.get()) is not None:
            try:
                self._spans(passage)
            except Exception as error:
                LOG.error("spans could not be made: %s", type(error).__name__)

    def _spans(self, passage: Passage) -> None:
        first = passage.marks[0][1]

        def at(ns: int) -> int:
            return passage.started_ns + ns - first

        result = passage.result
        call = self._tracer.start_span(
            f"call {tool_name(result.call.tool)}",
            kind=SpanKind.SERVER,
            start_time=passage.started_ns,
            attributes=dict(_attributes(result)),
        )
        if result.error is not None and result.error.fault in _OURS:
            call.set_status(Status(StatusCode.ERROR, result.error.code.value))
        context = set_span_in_context(call)
        ends = [*(began for _, began in passage.marks[1:]), passage.ended_ns]
        # One that a call comes to twice (claim, around the wait for a place) is around both.
        times: dict[Stage, tuple[int, int]] = {}
        for (stage, began), ended in zip(passage.marks, ends, strict=True):
            times[stage] = (times[stage][0] if stage in times else began, ended)
        for stage, (began, ended) in times.items():
            span = self._tracer.start_span(stage.value, context, start_time=at(began))
            span.end(at(ended))
        call.end(at(passage.ended_ns))


class _Told(SpanExporter):
    """Another exporter, used by one thread at a time, whose failures are told once until it works
    again."""

    def __init__(self, exporter: SpanExporter) -> None:
        self._exporter = exporter
        self._lost = 0

    def export(self, spans: Sequence[ReadableSpan]) -> SpanExportResult:
        why = "it does not take them"
        try:
            result = self._exporter.export(spans)
        except Exception as error:
            result, why = SpanExportResult.FAILURE, type(error).__name__
        if result is not SpanExportResult.SUCCESS:
            if not self._lost:
                LOG.warning("spans don't reach their receiver and are lost until they do: %s", why)
            self._lost += len(spans)
        elif self._lost:
            LOG.warning("spans reach their receiver again; %d were lost", self._lost)
            self._lost = 0
        return result

    def shutdown(self) -> None:
        if self._lost:
            LOG.warning("%d spans were lost", self._lost)
        self._exporter.shutdown()

    def force_flush(self, timeout_millis: int = 30_000) -> bool:
        return self._exporter.force_flush(timeout_millis)


def open_tracer(endpoint: str, version: str) -> Tracer:
    """Spans go to `endpoint`, an URL that takes OTLP over HTTP."""
    # The library reports every failed batch with a traceback.
    logging.getLogger("opentelemetry").setLevel(logging.CRITICAL)
    return Tracer(OTLPSpanExporter(endpoint=endpoint, timeout=_EXPORT_S), version)


def _attributes(result: ToolResult) -> Iterator[tuple[str, str]]:
    call, error = result.call, result.error
    ids = (
        ("request_id", result.request_id),
        ("lease_id", call.lease_id),
        ("trajectory_id", call.trajectory_id),
        ("call_id", call.call_id),
        ("tool", tool_name(result.call.tool)),
        ("status", result.status.value),
        ("code", None if error is None else error.code.value),
    )
    for name, value in ids:
        if value is not None:
            yield f"stockade.{name}", value
