"""Budgets of commands that outlive their daemon: what bounds them, what is counted, and only once.

As in test_settlement, two houses opened one after the other on one directory are the daemon before
and after its end.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.flow.spending import SLICE_MS
from stockade.terms.claim import ClaimRecord, ClaimState, Completed, Evidence, StillRunning
from stockade.terms.fault import Code, Status, failure
from stockade.terms.outcome import Captured, End, ExecOutcome
from stockade.terms.ports import ExecContext
from stockade.terms.result import ToolResult
from stockade.terms.spend import Amount
from stockade.testing.clock import ManualClock
from stockade.testing.house import open_house
from tests.unit.flow.lines import Line, code, make_line
from tests.unit.flow.test_budgets import RESERVE_MS, limited, passing, priced, script, spent

USED_MS = 120


class Dead(BaseException):
    """The end of the process."""


def _die() -> None:
    raise Dead


@dataclass
class Daemons:
    """One daemon after the other, where a call costs 70 and a second of processor time 1,500."""

    directory: str
    clock: ManualClock
    line: Line

    def dies_at(self, point: str, token: str, *, takes_s: float = 0, cpu_ms: int = USED_MS) -> None:
        command = script(self.line, "busy", takes_s=takes_s, cpu_ms=cpu_ms)
        self.line.faults.arm(point, _die)
        with passing(self.clock), pytest.raises(Dead):
            self.line.call(arguments=command, token=token, call_id="c")

    def again(self, evidence: Evidence) -> None:
        record = self.line.record
        self.line.house.close()
        house = open_house(self.directory, clock=self.clock, ceiling=priced)
        self.line = make_line(house)
        self.line.record = record
        house.engine.left[("sandbox-0", "0")] = evidence
        house.sweeper.recover()
        house.settlement.recover()

    def claim(self) -> ClaimRecord:
        [found] = self.line.house.claims.book.list(None, None, tuple(ClaimState), 99)
        return found

    def repeat(self, token: str) -> ToolResult:
        """Waits for a command that still runs."""
        return self.line.call(arguments={"command": "busy"}, token=token, call_id="c")


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    clock = ManualClock()
    made = Daemons(
        str(tmp_path), clock, make_line(open_house(str(tmp_path), clock=clock, ceiling=priced))
    )
    yield made
    made.line.house.close()


def outcome(cpu_ms: int, end: End = End.EXITED) -> ExecOutcome:
    value = 0 if end is End.EXITED else None
    empty = Captured(b"", b"", 0)
    return ExecOutcome(end, value, empty, empty, wall_ms=7, cpu_ms=cpu_ms)


def test_it_is_ended_before_its_budget_is(daemons: Daemons) -> None:
    token = limited(daemons.line, cpu_ms=2000)
    daemons.dies_at("starting", token)
    used = [900]  # a part of it while no daemon was there

    def finish(context: ExecContext, timeout_ms: int) -> ExecOutcome:
        assert context.cpu is not None
        while (more := context.cpu.more(used[0])) is not None:
            used[0] += more  # on one processor all the time
        return outcome(used[0], End.BUDGET)

    daemons.again(StillRunning(finish))
    result = daemons.repeat(token)
    assert (result.status, code(result), result.replayed) == (
        Status.LIMITED,
        Code.BUDGET_EXCEEDED,
        True,
    )
    assert result.error is not None
    assert result.error.rule == "total.cpu_ms"
    assert result.error.details is not None
    assert result.error.details["total"] == 2000
    assert 2000 - 2 * RESERVE_MS <= used[0] <= 2000
    assert spent(daemons.line, token) == [Amount(cpu_ms=used[0])]


def test_what_it_drew_and_did_not_use_is_given_back_and_its_cost_is_known(
    daemons: Daemons,
) -> None:
    token = limited(daemons.line, cpu_ms=1000, cost_micro=10_000)
    daemons.dies_at("starting", token)
    assert spent(daemons.line, token)[0].cpu_ms == RESERVE_MS + SLICE_MS
    daemons.again(StillRunning(lambda context, timeout_ms: outcome(USED_MS)))
    result = daemons.repeat(token)
    assert (result.status, result.replayed) == (Status.SUCCEEDED, True)
    assert result.usage is not None
    assert result.usage.cost_micro == 70 + 180
    assert spent(daemons.line, token) == [Amount(cpu_ms=USED_MS, cost_micro=70 + 180)]


def test_its_claim_says_all_that_was_drawn_for_it(daemons: Daemons) -> None:
    token = limited(daemons.line, cpu_ms=5000)
    daemons.dies_at("ran", token, takes_s=2.0, cpu_ms=1500)
    claim = daemons.claim()
    assert claim.drawn_ms > 1500
    assert spent(daemons.line, token) == [Amount(cpu_ms=claim.drawn_ms)]
    assert claim.metered is not None
    assert [budget.total.cpu_ms for budget in claim.metered.budgets] == [5000]


@pytest.mark.parametrize("used_ms", [USED_MS, RESERVE_MS + SLICE_MS + 100])
def test_what_was_counted_when_the_daemon_died_is_not_counted_again(
    daemons: Daemons, used_ms: int
) -> None:
    """Between the end of the bill and that of the claim."""
    token = limited(daemons.line, calls=9, cpu_ms=5000)
    daemons.dies_at("shaped", token, cpu_ms=used_ms)
    assert spent(daemons.line, token) == [Amount(calls=1, cpu_ms=used_ms)]
    daemons.again(Completed(outcome(used_ms)))
    assert daemons.repeat(token).replayed
    assert spent(daemons.line, token) == [Amount(calls=1, cpu_ms=used_ms)]


def test_where_its_end_is_lost_all_that_was_drawn_is_spent(daemons: Daemons) -> None:
    token = limited(daemons.line, cpu_ms=1000)
    daemons.dies_at("starting", token)

    def finish(context: ExecContext, timeout_ms: int) -> ExecOutcome:
        raise failure(Code.SANDBOX_LOST, "nothing of the call was kept")

    daemons.again(StillRunning(finish))
    assert code(daemons.repeat(token)) is Code.IN_FLIGHT
    assert spent(daemons.line, token) == [Amount(cpu_ms=RESERVE_MS + SLICE_MS)]


def test_without_a_budget_of_time_nobody_looks(daemons: Daemons) -> None:
    token = limited(daemons.line, calls=5)
    daemons.dies_at("starting", token)
    meters: list[object] = []

    def finish(context: ExecContext, timeout_ms: int) -> ExecOutcome:
        meters.append(context.cpu)
        return outcome(USED_MS)

    daemons.again(StillRunning(finish))
    assert daemons.repeat(token).status is Status.SUCCEEDED
    assert meters == [None]
    assert daemons.claim().metered is None
