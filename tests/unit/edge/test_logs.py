"""Log lines: ids of the call on each, one event a line, no message of an exception."""

from __future__ import annotations

import io
import json
import logging
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from stockade.edge.guard import log_result
from stockade.edge.log_context import within
from stockade.edge.server import logs
from stockade.edge.server.logs import JsonLine, TextLine
from stockade.terms.ids import CallRef
from tests.edge.conftest import LEASE, make_result

CALL = CallRef(lease_id=LEASE, trajectory_id=None, turn=1, call_id="c-1", tool="run")
LOG = logging.getLogger("stockade.test")


@pytest.fixture
def lines(request: pytest.FixtureRequest) -> Callable[[logging.Formatter], list[str]]:
    """What is logged from now on, as the formatter writes it."""

    def take(formatter: logging.Formatter) -> list[str]:
        found: list[str] = []

        class Keep(logging.Handler):
            def emit(self, record: logging.LogRecord) -> None:
                found.append(formatter.format(record))

        handler = Keep()
        logger = logging.getLogger("stockade")
        logger.addHandler(handler)
        before = logger.level
        logger.setLevel(logging.INFO)

        def restore() -> None:
            logger.removeHandler(handler)
            logger.setLevel(before)

        request.addfinalizer(restore)
        return found

    return take


def test_a_line_within_a_call_carries_its_ids(
    lines: Callable[[logging.Formatter], list[str]],
) -> None:
    text, objects = lines(TextLine()), lines(JsonLine())
    LOG.warning("before")
    with within("rq_1", CALL):
        LOG.warning("cleanup of %s failed", "x")
    LOG.warning("after")
    assert [f"request_id=rq_1 lease={LEASE} call_id=c-1 cleanup" in line for line in text] == [
        False, True, False,
    ]  # fmt: skip
    first, inside, last = map(json.loads, objects)
    assert inside | {"time": ""} == {
        "time": "",
        "level": "warning",
        "logger": "stockade.test",
        "request_id": "rq_1",
        "lease": LEASE,
        "call_id": "c-1",
        "message": "cleanup of x failed",
    }
    assert "request_id" not in first | last


def test_calls_on_other_threads_do_not_mix(
    lines: Callable[[logging.Formatter], list[str]],
) -> None:
    objects = lines(JsonLine())
    barrier = threading.Barrier(4)

    def work(number: int) -> None:
        with within(f"rq_{number}", CALL):
            barrier.wait(10)
            LOG.warning("%d", number)

    with ThreadPoolExecutor(4) as threads:
        list(threads.map(work, range(4)))
    found = [json.loads(line) for line in objects]
    assert {(line["request_id"], line["message"]) for line in found} == {
        (f"rq_{number}", str(number)) for number in range(4)
    }


def test_the_line_of_a_call_has_its_fields(
    lines: Callable[[logging.Formatter], list[str]],
) -> None:
    text, objects = lines(TextLine()), lines(JsonLine())
    with within("rq_1", CALL):
        log_result(make_result("rq_1", tool="x\ny"), 0.0)
    [line], [found] = text, map(json.loads, objects)
    assert f"request_id=rq_1 lease={LEASE} call_id=- tool=? status=succeeded code=- ms=" in line
    assert line.count("request_id=") == 1
    assert (found["tool"], found["status"], found["request_id"]) == ("?", "succeeded", "rq_1")
    assert isinstance(found["ms"], float)
    assert "message" not in found


def test_an_exception_is_its_type_and_place_and_never_its_message(
    lines: Callable[[logging.Formatter], list[str]],
) -> None:
    text, objects = lines(TextLine()), lines(JsonLine())
    try:
        raise RuntimeError("s3cret of a caller\nand a line")
    except RuntimeError:
        LOG.exception("a fault\nof ours")
    [line], [found] = text, objects
    assert "s3cret" not in line + found
    assert "\n" not in line + found
    assert "RuntimeError at " in line
    assert __file__ in json.loads(found)["place"]


@pytest.fixture
def handler() -> Iterator[tuple[logging.Handler, io.StringIO]]:
    out = io.StringIO()
    made = logging.StreamHandler(out)
    made.setFormatter(logging.Formatter("%(levelname)s %(message)s"))
    root = logging.getLogger()
    before = list(root.handlers)
    root.handlers = [made]
    yield made, out
    root.handlers = before


def test_every_line_passes_tracebacks_and_arguments_too(
    handler: tuple[logging.Handler, io.StringIO],
) -> None:
    _, out = handler
    logs.pass_through(lambda text: text.replace("s3cret-value", "[redacted:A]"))
    log = logging.getLogger("stockade.test")
    log.warning("lease=%s said %s", "ls", "s3cret-value")
    try:
        raise ValueError("s3cret-value")
    except ValueError:
        log.exception("a fault")
    said = out.getvalue()
    assert said.startswith("WARNING lease=ls said [redacted:A]\n")
    assert "ValueError: [redacted:A]" in said
    assert "s3cret-value" not in said
