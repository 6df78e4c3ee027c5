"""The tally and its text: closed labels, whole histograms, nothing of a caller."""

from __future__ import annotations

import threading

from prometheus_client.parser import text_string_to_metric_families

from stockade.edge.exposition import text
from stockade.edge.gauges import Gauge
from stockade.edge.tally import BOUNDS, Tally
from stockade.edge.watching import Watcher
from stockade.terms.codes import Blame, Code, Status
from stockade.terms.fault import failure
from stockade.terms.result import ToolResult
from stockade.terms.stage import Stage
from tests.edge.conftest import make_result


def samples(tally: Tally, *gauges: Gauge) -> dict[tuple[str, tuple[str, ...]], float]:
    """By name and the values of its labels, in the order of the labels' names."""
    families = text_string_to_metric_families(text(tally, gauges).decode())
    return {
        (sample.name, tuple(value for _, value in sorted(sample.labels.items()))): sample.value
        for family in families
        for sample in family.samples
    }


def watched(watcher: Watcher, result: ToolResult, *stages: Stage) -> None:
    watch = watcher.begin()
    for stage in stages:
        watch.mark(stage)
    watch.end(result)


def test_calls_are_counted_by_tool_status_and_fault() -> None:
    watcher = Watcher()
    for _ in range(3):
        watched(watcher, make_result("rq"))
    watched(watcher, make_result("rq", Status.DENIED, Code.TOKEN_EXPIRED, tool="file_view"))
    found = samples(watcher.tally)
    assert found["stockade_calls_total", ("none", "succeeded", "bash_execute")] == 3
    assert found["stockade_calls_total", ("caller", "denied", "file_view")] == 1


def test_every_stage_of_a_call_is_measured_once() -> None:
    watcher = Watcher()
    watched(watcher, make_result("rq"), Stage.SCHEMA, Stage.AUTHORIZE, Stage.QUEUE, Stage.AUTHORIZE)
    found = samples(watcher.tally)
    counted = {
        labels[0]: count
        for (name, labels), count in found.items()
        if name == "stockade_stage_seconds_count"
    }
    assert counted == {"receive": 1, "schema": 1, "authorize": 1, "queue": 1}
    parts = sum(value for (name, _), value in found.items() if name == "stockade_stage_seconds_sum")
    whole = found["stockade_call_seconds_sum", ("bash_execute",)]
    assert abs(parts - whole) < 1e-6


def test_buckets_are_cumulative_and_the_last_one_holds_all() -> None:
    tally = Tally()
    for seconds in (0.00001, BOUNDS[0], 0.003, 10_000):
        tally.add("run", Status.SUCCEEDED, None, {Stage.RUN: seconds}, seconds)
    found = samples(tally)
    assert found["stockade_stage_seconds_bucket", (f"{BOUNDS[0]:g}", "run")] == 2
    assert found["stockade_stage_seconds_bucket", ("0.0025", "run")] == 2
    assert found["stockade_stage_seconds_bucket", ("0.005", "run")] == 3
    assert found["stockade_stage_seconds_bucket", ("600", "run")] == 3
    assert found["stockade_stage_seconds_bucket", ("+Inf", "run")] == 4


def test_what_a_caller_writes_is_no_label() -> None:
    watcher = Watcher()
    for number in range(100):
        watched(watcher, make_result("rq", Status.INVALID, Code.UNKNOWN_TOOL, tool=f"x{number}"))
    names = {labels for name, labels in samples(watcher.tally) if name == "stockade_calls_total"}
    assert names == {("caller", "invalid", "other")}


def test_malformed_and_denied_are_counted_by_code_whatever_was_asked() -> None:
    watcher = Watcher()
    watcher.refused(Status.INVALID, Code.MALFORMED_JSON)
    watcher.refused(Status.INVALID, Code.MALFORMED_JSON)
    watcher.refused(Status.DENIED, Code.PEER_NOT_ALLOWED)
    watcher.refused(Status.UNAVAILABLE, Code.BUSY)
    found = samples(watcher.tally)
    assert found["stockade_malformed_total", ("malformed_json",)] == 2
    assert found["stockade_denied_total", ("peer_not_allowed",)] == 1
    assert not [labels for _, labels in found if "busy" in labels]


def test_a_gauge_that_can_not_be_read_is_left_out_and_the_rest_is_there() -> None:
    def broken() -> dict[str, float]:
        raise failure(Code.STORAGE_UNAVAILABLE, "no ledger")

    found = samples(
        Tally(),
        Gauge("stockade_a", "…", lambda: {"": 2}),
        Gauge("stockade_b", "…", broken),
        Gauge("stockade_c", "…", lambda: {"ready": 1, "dirty": 0}, "state"),
    )
    assert found == {
        ("stockade_a", ()): 2,
        ("stockade_c", ("ready",)): 1,
        ("stockade_c", ("dirty",)): 0,
    }


def test_counting_from_many_threads_loses_nothing() -> None:
    tally = Tally()

    def work() -> None:
        for _ in range(500):
            tally.add("run", Status.FAILED, Blame.PROGRAM, {Stage.RUN: 0.01}, 0.01)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert samples(tally)["stockade_calls_total", ("program", "failed", "run")] == 4000
    assert samples(tally)["stockade_stage_seconds_count", ("run",)] == 4000
