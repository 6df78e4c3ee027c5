"""Routes of calls: one tool call, one program with its streams, and cancelling either."""

from __future__ import annotations

import threading

from stockade.edge.bodies import read_body
from stockade.edge.exchange import FRAMES_TYPE, FrameType, Response, Write, frame
from stockade.edge.guard import answer, asked, guarded
from stockade.edge.routing import Inbound, Lane, Route, Shape, reply
from stockade.edge.wire import CallRequest, CancelReply, CancelRequest, RunRequest
from stockade.terms.stage import Stage

# How long a reader of a program's output may pause where the call states no limit of its own.
_DEFAULT_PATIENCE_S = 600.0


def call(inbound: Inbound) -> Response:
    request = read_body(CallRequest, inbound.request.body)
    result, log_line = guarded(
        inbound,
        asked(request.lease, request.turn, request.call_id, request.tool),
        lambda: inbound.service.call(inbound.context, request),
    )
    watch = inbound.context.watch
    watch.mark(Stage.REPLY)
    response = answer(result, log_line)
    watch.end(result)
    return response


def run(inbound: Inbound) -> Response:
    """Frames: output as it is read, then the result. The output is never held here: `tee` blocks
    while the client does not read, and so does the program, as in a pipeline of a shell."""
    request = read_body(RunRequest, inbound.request.body)
    stdin = inbound.request.stdin

    def produce(write: Write) -> None:
        # stdout and stderr may come from two threads; frames must not be interleaved.
        lock = threading.Lock()

        def tee(stream: int, data: memoryview) -> None:
            with lock:
                write(frame(stream, data))

        result, log_line = guarded(
            inbound,
            asked(request.lease, request.turn, request.call_id, "run"),
            lambda: inbound.service.run(inbound.context, request, tee, stdin),
        )
        watch = inbound.context.watch
        watch.mark(Stage.REPLY)
        try:
            with lock:
                write(frame(FrameType.RESULT, result.to_json()))
        finally:
            log_line()
        watch.end(result)

    limit_ms = request.timeout_ms
    patience = _DEFAULT_PATIENCE_S if limit_ms is None else max(1.0, limit_ms / 1000)
    return Response(200, produce, FRAMES_TYPE, patience_s=patience)


def cancel(inbound: Inbound) -> Response:
    request = read_body(CancelRequest, inbound.request.body)
    return reply(CancelReply(cancelled=inbound.service.cancel(inbound.context, request)))


ROUTES = (
    Route("POST", "calls", call, Shape.RESULT, Lane.CALL),
    Route("POST", "run", run, Shape.FRAMES, Lane.CALL, query=("stdin",)),
    Route("POST", "calls/cancel", cancel),
)
