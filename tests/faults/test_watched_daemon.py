"""A real daemon under load, out of disk, out of its runtime and asked to stop: what it says of
itself is true, and control never waits behind calls."""

from __future__ import annotations

import json
import signal
import sqlite3
import subprocess
import threading
import time
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest
from prometheus_client.parser import text_string_to_metric_families

from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.flow.readiness import PROBE_S
from stockade.terms.fault import Code, Status
from stockade.terms.stage import Stage
from tests.audited import of_lease, of_result, said
from tests.daemons import WAIT_S, Daemon, InCall, daemon, error, output, printed, text, until
from tests.receiver import Receiver

Figures = dict[tuple[str, tuple[tuple[str, str], ...]], float]


def figures(server: Daemon) -> Figures:
    status, raw = server.ask("GET", "/metrics")
    assert status == 200
    return {
        (sample.name, tuple(sorted(sample.labels.items()))): sample.value
        for family in text_string_to_metric_families(raw.decode())
        for sample in family.samples
    }


def figure(server: Daemon, name: str, **labels: str) -> float:
    return figures(server).get((name, tuple(sorted(labels.items()))), 0.0)


def ready(server: Daemon) -> tuple[int, Any]:
    status, reply = server.ask("GET", "/readyz")
    return status, reply["reasons"]


class Later:
    """A command sent on a thread of its own; it may have to wait."""

    def __init__(self, lease: Lease, command: str, call_id: str | None = None) -> None:
        self._results: list[Result] = []
        self._thread = threading.Thread(
            target=lambda: self._results.append(
                lease.call("bash_execute", {"command": command}, call_id=call_id)
            ),
            daemon=True,
        )
        self._thread.start()

    def result(self) -> Result:
        self._thread.join(WAIT_S)
        assert self._results
        return self._results[0]


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    config = '[limits]\ncalls = 3\nper_tenant = 2\nqueue = 6\n[log]\nformat = "json"\n'
    with daemon(config) as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


def test_figures_are_what_happened(server: Daemon, stockade: Stockade) -> None:
    with stockade.lease(None, trajectory="figures") as lease:
        before = figures(server)
        lease.bash("true").check()
        lease.bash("exit 3")
        lease.view("none")
        server.ask("POST", "/v1/calls", "{")
        after = figures(server)

        def more(name: str, **labels: str) -> float:
            key = (name, tuple(sorted(labels.items())))
            return after.get(key, 0) - before.get(key, 0)

        calls = "stockade_calls_total"
        assert more(calls, tool="bash_execute", status="succeeded", fault="none") == 1
        assert more(calls, tool="bash_execute", status="failed", fault="program") == 1
        assert more(calls, tool="file_view", status="rejected", fault="caller") == 1
        assert more("stockade_malformed_total", code="malformed_json") == 1
        for stage in ("schema", "queue", "compile", "claim", "sandbox", "run"):
            assert more("stockade_stage_seconds_count", stage=stage) == 3, stage
        assert after["stockade_sandboxes", ()] == 1
        assert after["stockade_leases", (("state", "ready"),)] == 1
        call = InCall(lease, "sleep 60")
        assert figure(server, "stockade_calls_running") == 1
        lease.cancel(call.call_id)
        call.result()
    assert figure(server, "stockade_sandboxes") == 0


def test_log_lines_are_objects_with_the_ids_of_their_call(
    server: Daemon, stockade: Stockade
) -> None:
    with stockade.lease(None, trajectory="logged") as lease:
        result = lease.call("bash_execute", {"command": "echo s3cret"}, call_id="call-7").check()
    assert server.log.wait('"call_id": "call-7"')
    lines = [json.loads(line) for line in server.log.lines]
    [line] = [line for line in lines if line.get("call_id") == "call-7"]
    assert (line["request_id"], line["lease"]) == (result.request_id, lease.id)
    assert (line["tool"], line["status"], line["code"]) == ("bash_execute", "succeeded", "-")
    assert "s3cret" not in "".join(server.log.lines)


def test_a_receiver_of_traces_gets_one_span_for_each_stage_of_a_call() -> None:
    receiver = Receiver()
    try:
        with daemon(f'[trace]\nendpoint = "{receiver.endpoint}"\n') as server:
            with server.connect() as stockade, stockade.lease(None, trajectory="t") as lease:
                result = lease.bash("echo s3cret").check()
            assert server.end() == 0  # what it has not sent yet is sent then
    finally:
        receiver.close()
    calls = {span.span_id: span for span in receiver.spans() if not span.parent_span_id}
    [call] = [span for span in calls.values() if span.name == "call bash_execute"]
    said = {pair.key: pair.value.string_value for pair in call.attributes}
    assert said["stockade.request_id"] == result.request_id
    assert (said["stockade.lease_id"], said["stockade.status"]) == (lease.id, "succeeded")
    stages = {span.name: span for span in receiver.spans() if span.parent_span_id == call.span_id}
    below = [span.name for span in receiver.spans() if span.parent_span_id == call.span_id]
    assert sorted(below) == sorted(stage.value for stage in Stage)
    assert {span.trace_id for span in stages.values()} == {call.trace_id}

    def lasted(name: str) -> tuple[int, int]:
        return stages[name].start_time_unix_nano, stages[name].end_time_unix_nano

    assert lasted("receive")[0] == call.start_time_unix_nano
    assert lasted("reply")[1] == call.end_time_unix_nano
    before = ["receive", "schema", "authorize", "compile", "claim"]
    after = ["claim", "sandbox", "run", "shape", "settle", "reply"]
    for one, following in [*pairwise(before), *pairwise(after)]:
        assert lasted(one)[1] == lasted(following)[0], (one, following)
    claimed, waited = lasted("claim"), lasted("queue")
    assert claimed[0] <= waited[0] <= waited[1] <= claimed[1]
    assert "s3cret" not in str(receiver.received)


def test_b85_control_answers_at_once_under_full_load(server: Daemon, stockade: Stockade) -> None:
    with stockade.lease(None, trajectory="full") as lease:
        running = [InCall(lease, "sleep 60") for _ in range(2)]
        waiting = [Later(lease, "echo late", f"w-{n}") for n in range(6)]
        until(lambda: figure(server, "stockade_calls_waiting") == 6, "the queue is full")
        refused = lease.bash("echo more")
        assert (refused.status, error(refused).code) == (Status.UNAVAILABLE, Code.BUSY)
        assert error(refused).retry_after_ms
        assert refused.retry_safe
        began = time.monotonic()
        assert stockade.health().status == "ok"
        assert ready(server) == (200, [])
        assert server.ask("GET", "/healthz")[0] == 200
        assert lease.show().state == "ready"
        # One that waits is cancelled: nothing ran, and its place in the queue is free.
        assert lease.cancel("w-3") == 1
        cancelled = waiting[3].result()
        assert (cancelled.status, error(cancelled).code) == (Status.CANCELLED, Code.CANCELLED)
        assert cancelled.exit is None
        assert figure(server, "stockade_calls_waiting") == 5
        assert lease.cancel(running[0].call_id) == 1
        assert running[0].result().status is Status.CANCELLED
        assert time.monotonic() - began < WAIT_S / 2
        # A release ends what runs and what waits.
        lease.release().check()
        assert running[1].result().status is Status.CANCELLED
        ends = [call.result().status for number, call in enumerate(waiting) if number != 3]
        assert set(ends) <= {Status.CANCELLED, Status.SUCCEEDED}
        assert figure(server, "stockade_calls_running") == 0


def test_b85_the_audit_says_which_calls_of_a_full_host_ran_and_which_never_began(
    server: Daemon, stockade: Stockade
) -> None:
    with stockade.lease(None, trajectory="audited") as lease:
        lease.bash("true").check()
        running = [InCall(lease, "sleep 60") for _ in range(2)]
        waiting = [Later(lease, "echo late", f"a-{n}") for n in range(6)]
        until(lambda: figure(server, "stockade_calls_waiting") == 6, "the queue is full")
        busy = lease.call("bash_execute", {"command": "echo more"}, call_id="busy")
        # The audit too is asked while every place is taken.
        refused = of_result(stockade, busy)
        assert said(refused) == ("call_refused", "unavailable", "busy")
        assert refused.rule == "per_lease.parallel"
        lease.cancel("a-3")
        waited = of_result(stockade, waiting[3].result())
        assert said(waited) == ("call_refused", "cancelled", "cancelled")
        lease.cancel(running[0].call_id)
        cut_off = of_result(stockade, running[0].result())
        assert said(cut_off) == ("call_outcome", "cancelled", "cancelled")
        lease.release().check()
        results = [running[1].result(), *(call.result() for call in waiting)]
        ends = [of_result(stockade, result) for result in results]
    records = of_lease(stockade, lease.id)
    begun = {record.call_id for record in records if record.kind == "call_intent"}
    assert {running[0].call_id, running[1].call_id} <= begun
    assert not {"busy", "a-3"} & begun
    # Whoever began has an outcome, and nobody else.
    assert begun == {record.call_id for record in records if record.kind == "call_outcome"}
    assert all(end in records for end in ends)
    assert [record.kind.value for record in records].count("lease_released") == 1


def test_one_tenants_flood_does_not_starve_another(server: Daemon, stockade: Stockade) -> None:
    with (
        stockade.lease(None, tenant="flood", trajectory="t") as flood,
        stockade.lease(None, tenant="quiet", trajectory="t") as quiet,
    ):
        output(quiet, "true")
        running = [InCall(flood, "sleep 60") for _ in range(2)]
        waiting = [Later(flood, "echo late", f"w-{n}") for n in range(6)]
        until(lambda: figure(server, "stockade_calls_waiting") == 6, "the queue is full")
        for number in range(5):
            assert output(quiet, f"echo {number}") == f"{number}\n"
        for call in running:
            flood.cancel(call.call_id)
        assert {text(call.result()) for call in waiting} == {"late\n"}


def test_a_full_disk_is_not_ready() -> None:
    """And the process answers all the same."""
    tiny = "mkdir -p $STATE && mount -t tmpfs -o size=64m,mode=711 none $STATE"
    with daemon(before=tiny) as server, server.connect() as stockade:
        assert ready(server) == (503, ["space"])
        assert stockade.health().status == "ok"
        assert server.ask("GET", "/healthz")[0] == 200


def test_a_held_ledger_refuses_and_is_not_ready(server: Daemon) -> None:
    with server.connect() as stockade, stockade.lease(None, trajectory="held") as lease:
        lease.bash("true").check()
        held = sqlite3.connect(str(server.state / "ledger.db"), isolation_level=None)
        held.execute("BEGIN IMMEDIATE")
        try:
            refused = lease.renew(7200)
            assert (refused.status, error(refused).code) == (
                Status.UNAVAILABLE,
                Code.STORAGE_UNAVAILABLE,
            )
            assert ready(server) == (503, ["ledger"])
        finally:
            held.close()
        until(lambda: ready(server) == (200, []), "it is let go")
        lease.renew(7200).check()


def test_a_runtime_that_is_gone_is_not_ready() -> None:
    with daemon(before="true") as server:  # in a mount namespace of its own
        assert ready(server) == (200, [])
        cover = ["nsenter", "-t", str(server.pid), "-m", "mount", "--bind", "/dev/null"]
        subprocess.run([*cover, "/usr/bin/crun"], check=True)
        until(lambda: ready(server) == (503, ["engine"]), "it is missed", WAIT_S + PROBE_S)
        assert server.ask("GET", "/healthz")[0] == 200


def test_ending_says_draining_and_sends_away_who_waits() -> None:
    with daemon("[limits]\ncalls = 1\nshutdown_grace_s = 60\n") as server:
        with server.connect() as stockade:
            lease = stockade.lease(None, trajectory="t")
            lease.bash("true").check()
            call = InCall(lease, "while [ ! -e go ]; do sleep 0.02; done; echo done")
            waiting = [Later(lease, "echo late") for _ in range(3)]
            until(lambda: figure(server, "stockade_calls_waiting") == 3, "they wait")
            assert server.process is not None
            server.process.terminate()
            for one in waiting:
                result = one.result()
                assert (result.status, error(result).code) == (
                    Status.UNAVAILABLE,
                    Code.SHUTTING_DOWN,
                )
                assert result.retry_safe
            assert ready(server) == (503, ["draining"])
            assert server.ask("GET", "/healthz")[0] == 200
            assert stockade.health().status == "stopping"
            refused = lease.bash("echo more")
            assert error(refused).code is Code.SHUTTING_DOWN
            assert call.running
            Path(f"/proc/{_of(server, 'sleep')}/cwd/go").touch()
            assert text(call.result()) == "started\ndone\n"
            assert server.process.wait(WAIT_S) == 0


def _of(server: Daemon, name: str) -> int:
    """A process of this name inside."""
    found: list[int] = []

    def look() -> bool:
        for pid in server.inside():
            try:
                if Path(f"/proc/{pid}/comm").read_text().strip() == name:
                    found.append(pid)
            except (FileNotFoundError, ProcessLookupError):
                continue
        return bool(found)

    until(look, f"{name} runs")
    return found[0]


@pytest.mark.parametrize("second", [signal.SIGTERM, signal.SIGINT])
def test_a_second_signal_ends_what_runs_and_every_call_has_its_result(second: int) -> None:
    with daemon("[limits]\nshutdown_grace_s = 600\n") as server:
        with server.connect() as stockade:
            lease = stockade.lease(None, trajectory="t")
            lease.bash("true").check()
            calls = [InCall(lease, "sleep 600") for _ in range(3)]
            assert server.process is not None
            server.process.terminate()
            assert server.log.wait("stopping")
            assert ready(server) == (503, ["draining"])
            assert all(call.running for call in calls)
            server.process.send_signal(second)
            for call in calls:
                result = call.result()
                assert (result.status, error(result).code) == (Status.CANCELLED, Code.CANCELLED)
                assert printed(result) == "started\n"
            assert server.process.wait(WAIT_S) == 0
            assert server.log.wait("asked again to stop")
