"""Budgets in the pipeline: what is counted, when, and what a call without one pays."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.decide.blocks import narrow
from stockade.decide.grant_file import CeilingFile
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.spending import RESERVE_WALL_MS, SLICE_MS, Spending
from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.fault import Code, Fault, Status
from stockade.terms.grant import Total
from stockade.terms.result import ToolResult
from stockade.terms.spend import Amount
from stockade.testing.clock import ManualClock
from stockade.testing.fake_engine import Script
from stockade.testing.faults import raising
from stockade.testing.house import PROCESSORS, open_house
from tests.grants import NO_BUDGET
from tests.unit.flow.lines import Line, code, make_line

PRICES = {"bash_execute": 70, "file_view": 5}
RESERVE_MS = RESERVE_WALL_MS * PROCESSORS


def priced(ceiling: CeilingFile) -> CeilingFile:
    prices = ceiling.prices
    return ceiling.model_copy(
        update={
            "prices": prices.model_copy(
                update={
                    "call": prices.call.model_copy(update={"value": PRICES}),
                    "cpu_second": prices.cpu_second.model_copy(update={"value": 1500}),
                }
            )
        }
    )


@pytest.fixture
def dear(tmp_path: Path) -> Iterator[Line]:
    """Where things cost something."""
    house = open_house(str(tmp_path), ceiling=priced)
    yield make_line(house)
    house.close()


def limited(line: Line, token: str | None = None, **components: int) -> str:
    token = token or line.record.token
    total = Total(**{**NO_BUDGET.model_dump(), **components})
    return attenuate(token, narrow(inspect(token).blocks[-1], total=total))


def spent(line: Line, token: str) -> list[Amount]:
    return [amount for _, amount in line.house.spending.left(line.house.permit(token))]


@contextmanager
def passing(clock: ManualClock, running: Callable[[], int] = lambda: 1) -> Iterator[None]:
    """Time goes on while all that are running wait for it: on a busy machine a thread that is
    awake would be late by what the others use up meanwhile."""
    over = threading.Event()

    def run() -> None:
        while not over.is_set():
            if clock.still() >= max(1, running()):
                clock.advance(0.005)
            over.wait(0.0005)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        over.set()
        thread.join()


def script(line: Line, name: str, **values: object) -> dict[str, JsonValue]:
    line.house.engine.scripts[name.encode()] = Script(**values)  # type: ignore[arg-type]
    return {"command": name}


def is_exhausted(result: ToolResult, component: str) -> bool:
    return (
        result.status is Status.DENIED
        and code(result) is Code.BUDGET_EXHAUSTED
        and result.error is not None
        and result.error.rule == f"total.{component}"
    )


def test_calls_are_counted_reads_too(line: Line) -> None:
    token = limited(line, calls=3)
    (line.house.workspace(line.record) / "a").write_text("x\n")
    assert line.call(token=token).status is Status.SUCCEEDED
    assert line.call("file_view", {"path": "a"}, token=token).status is Status.SUCCEEDED
    # It was asked of the file system, and answered.
    assert code(line.call("file_view", {"path": "none"}, token=token)) is Code.NOT_FOUND
    before = list(line.faults.seen)
    assert is_exhausted(line.call(token=token), "calls")
    assert "sandbox" not in line.faults.seen[len(before) :]
    assert spent(line, token) == [Amount(calls=3)]


def test_what_never_started_is_not_counted(line: Line) -> None:
    token = limited(line, calls=1)
    assert line.call("bash_execute", {}, token=token).status is Status.INVALID
    scope = line.record.grant.scope.model_copy(update={"execute": ()})
    narrower = attenuate(token, narrow(inspect(token).blocks[-1], scope=scope))
    assert line.call(token=narrower).status is Status.DENIED
    trouble = Fault(Code.SANDBOX_UNAVAILABLE, "none")
    refused = script(line, "refused", refused=trouble)
    assert line.call(arguments=refused, token=token).status is Status.UNAVAILABLE
    line.faults.arm("admitted", raising(RuntimeError("x")))
    assert line.call(token=token).status is Status.UNAVAILABLE
    assert spent(line, token) == [Amount()]
    assert line.call(token=token).status is Status.SUCCEEDED


def test_a_call_in_doubt_stays_counted(line: Line) -> None:
    token = limited(line, calls=2, cpu_ms=10_000)
    line.faults.arm("ran", raising(RuntimeError("x")))
    assert code(line.call(token=token)) is Code.IN_DOUBT
    assert spent(line, token) == [Amount(calls=1, cpu_ms=RESERVE_MS + SLICE_MS)]


def test_a_family_can_not_outspend_its_parent(line: Line) -> None:
    parent = limited(line, calls=3)
    children = [limited(line, parent, calls=n) for n in (3, 2)]
    for child in (*children, children[0]):
        assert line.call(token=child).status is Status.SUCCEEDED
    for token in (*children, parent):
        assert is_exhausted(line.call(token=token), "calls")
    assert spent(line, children[1]) == [Amount(calls=3), Amount(calls=1)]


def test_what_a_command_used_counts_and_the_rest_of_its_draw_is_given_back(line: Line) -> None:
    token = limited(line, cpu_ms=1000)
    assert line.call(arguments=script(line, "c", cpu_ms=120), token=token).status == "succeeded"
    assert spent(line, token) == [Amount(cpu_ms=120)]


def test_a_draw_is_durable_before_the_command_runs(line: Line, tmp_path: Path) -> None:
    token = limited(line, cpu_ms=1000)
    seen: list[list[Amount]] = []

    def crash() -> None:
        """What another process would find after this one was killed here."""
        ledger = SqliteLedger(str(tmp_path / "ledger.db"))
        book = Spending(SpendTable(ledger), lambda _: pytest.fail("no price"), PROCESSORS)
        seen.append([amount for _, amount in book.left(line.house.permit(token))])
        ledger.close()

    line.faults.arm("sandbox", crash)
    line.call(token=token)
    assert seen == [[Amount(cpu_ms=RESERVE_MS + SLICE_MS)]]


def test_a_command_is_ended_before_its_budget_is(line: Line) -> None:
    token = limited(line, cpu_ms=600)
    busy = script(line, "busy", stdout=b"so far\n", takes_s=100.0, cpu_ms=100_000)
    with passing(line.house.clock):
        result = line.call(arguments={**busy, "timeout_ms": 60_000}, token=token)
    assert (result.status, code(result)) == (Status.LIMITED, Code.BUDGET_EXCEEDED)
    assert result.error is not None
    assert result.error.rule == "total.cpu_ms"
    assert result.error.details is not None
    assert result.error.details["total"] == 600
    assert result.stdout is not None
    assert result.stdout.text == "so far\n"
    assert result.exit is None
    assert result.usage is not None
    assert result.usage.cpu_ms is not None
    assert 600 - 2 * RESERVE_MS <= result.usage.cpu_ms <= 600
    assert spent(line, token) == [Amount(cpu_ms=result.usage.cpu_ms)]
    again = line.call(arguments=busy, token=token)
    assert is_exhausted(again, "cpu_ms")
    # File tools use no processor time of a sandbox.
    (line.house.workspace(line.record) / "a").write_text("x\n")
    assert line.call("file_view", {"path": "a"}, token=token).status is Status.SUCCEEDED


def test_parallel_children_together_stay_within_their_parent(line: Line) -> None:
    parent = limited(line, cpu_ms=1200)
    children = [limited(line, parent, cpu_ms=n) for n in (1200, 1100)]
    busy = script(line, "busy", takes_s=100.0, cpu_ms=100_000)
    results: list[ToolResult] = []
    threads = [
        threading.Thread(
            target=lambda token=child: results.append(line.call(arguments=busy, token=token))
        )
        for child in children
    ]
    for thread in threads:
        thread.start()
    with passing(line.house.clock, lambda: sum(thread.is_alive() for thread in threads)):
        for thread in threads:
            thread.join()
    assert [code(result) for result in results] == [Code.BUDGET_EXCEEDED] * 2
    assert sum(r.usage.cpu_ms or 0 for r in results if r.usage) <= 1200
    assert spent(line, parent)[0].cpu_ms <= 1200


def test_a_call_without_a_budget_writes_nothing_and_is_not_watched(line: Line) -> None:
    assert line.call().status is Status.SUCCEEDED
    assert line.house.ledger.rows("SELECT count(*) FROM spend", ()) == [(0,)]
    with line.house.gate.open(
        line.house.permit(line.record.token), line.record, "bash_execute", {}, command=True
    ) as bill:
        assert bill.meter is None


def test_costs_are_whole_parts_rounded_up(dear: Line) -> None:
    (dear.house.workspace(dear.record) / "a").write_text("x\n")
    view = dear.call("file_view", {"path": "a"})
    bash = dear.call(arguments=script(dear, "c", cpu_ms=201))
    edit = dear.call("file_edit", {"path": "a", "old_str": "x", "new_str": "y"})
    missing = dear.call("file_view", {"path": "none"})
    costs = [r.usage.cost_micro for r in (view, bash, edit, missing) if r.usage]
    assert costs == [5, 70 + 302, 0, 5]


def test_without_prices_the_cost_is_nothing_and_of_a_refused_call_unknown(line: Line) -> None:
    free, refused = line.call(), line.call("bash_execute", {})
    assert free.usage is not None
    assert free.usage.cost_micro == 0
    assert refused.usage is not None
    assert refused.usage.cost_micro is None


def test_a_cost_budget_is_exhausted_by_calls(dear: Line) -> None:
    token = limited(dear, cost_micro=9)
    (dear.house.workspace(dear.record) / "a").write_text("x\n")
    assert dear.call("file_view", {"path": "a"}, token=token).status is Status.SUCCEEDED
    assert is_exhausted(dear.call("file_view", {"path": "a"}, token=token), "cost_micro")
    assert spent(dear, token) == [Amount(cost_micro=5)]


def test_a_cost_budget_bounds_processor_time(dear: Line) -> None:
    token = limited(dear, cost_micro=970)  # a call and 600 ms
    busy = script(dear, "busy", takes_s=100.0, cpu_ms=100_000)
    with passing(dear.house.clock):
        result = dear.call(arguments=busy, token=token)
    assert (result.status, code(result)) == (Status.LIMITED, Code.BUDGET_EXCEEDED)
    assert result.error is not None
    assert result.error.rule == "total.cost_micro"
    assert result.usage is not None
    assert result.usage.cost_micro is not None
    assert 970 - 3 * RESERVE_MS <= result.usage.cost_micro <= 970
    assert spent(dear, token) == [Amount(cost_micro=result.usage.cost_micro)]


def test_no_egress_needs_no_budget_of_it(line: Line) -> None:
    assert line.call(token=limited(line, egress_bytes=0)).status is Status.SUCCEEDED


def test_a_ledger_that_can_not_be_written_ends_the_command(line: Line) -> None:
    token = limited(line, cpu_ms=100_000)
    busy = script(line, "busy", takes_s=100.0, cpu_ms=100_000)

    def break_ledger() -> None:
        line.house.ledger._writer.execute("PRAGMA query_only = ON")

    line.faults.arm("starting", break_ledger)
    with passing(line.house.clock):
        told = line.call(arguments=busy, token=token, call_id="busy")
    # It was ended, and nobody is given a result that is not recorded.
    assert (told.status, code(told)) == (Status.UNKNOWN, Code.IN_DOUBT)
    line.house.ledger._writer.execute("PRAGMA query_only = OFF")
    line.house.settlement.tick()
    result = line.call(arguments=busy, token=token, call_id="busy")
    assert (result.status, code(result)) == (Status.LIMITED, Code.BUDGET_EXCEEDED)
    assert result.replayed
    line.house.ledger._writer.execute("PRAGMA query_only = OFF")
    assert spent(line, token) == [Amount(cpu_ms=RESERVE_MS + SLICE_MS)]


def test_a_whole_file_that_broke_off_is_counted(line: Line) -> None:
    """Part of it may have been written."""
    token = limited(line, calls=2)

    def transfer() -> None:
        permit = line.house.permit(token)
        with line.house.gate.transfer(permit, line.record, "file_edit", {"path": "f"}):
            raise OSError("the client is gone")

    with pytest.raises(OSError, match="the client"):
        transfer()
    assert [amount.calls for amount in spent(line, token)] == [1]
