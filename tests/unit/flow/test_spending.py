"""How long a command may go on unwatched: never so long that it could use more than was drawn."""

from __future__ import annotations

import random
from dataclasses import dataclass, field

import pytest

from stockade.flow.spending import LEAST_LOOK_MS, RESERVE_WALL_MS, SLICE_MS, Bill, Rate
from stockade.terms.base import MAX_INTEGER
from stockade.terms.grant import Total
from stockade.terms.spend import Amount, Budget, Prices
from stockade.testing.fake_books import FakeSpendBook
from tests.grants import NO_BUDGET

FREE = Prices({}, 0, 0)


def budget(**components: int) -> Budget:
    return Budget("b", Total(**{**NO_BUDGET.model_dump(), **components}), 10)


def bill(book: FakeSpendBook, budgets: tuple[Budget, ...], rate: Rate, prices: Prices) -> Bill:
    return Bill(book, budgets, prices, "run", rate)


@pytest.mark.parametrize(
    ("processors", "cpu_millis"), [(1, 1000), (2, 2000), (2, 500), (64, 2000), (64, 64_000)]
)
def test_nobody_uses_more_in_a_look_than_was_allowed(processors: int, cpu_millis: int) -> None:
    """The quotas of all periods that a look can touch, or all processors all the time."""
    rate = Rate(processors, cpu_millis)
    for allowed in range(rate.least_ms, 20_000, 37):
        wall = rate.lasts_ms(allowed)
        periods = wall // 100 + 2
        most = min(processors * wall, periods * cpu_millis // 10)
        assert most <= allowed
    assert rate.reserve_ms <= processors * RESERVE_WALL_MS


@pytest.mark.parametrize("total", [260, 500, 1234, 5000])
@pytest.mark.parametrize("busy", [0.3, 1.0, 2.0])
def test_a_command_that_never_stops_is_ended_near_its_total_and_below(
    total: int, busy: float
) -> None:
    book, one, rate = FakeSpendBook(), (budget(cpu_ms=total),), Rate(2, 2000)
    made = bill(book, one, rate, FREE)
    assert made.open() is None
    used, looks = 0.0, 0
    while (pause := made.more(int(used))) is not None:
        assert pause >= LEAST_LOOK_MS
        used, looks = used + pause * busy, looks + 1
    assert used <= total - rate.reserve_ms
    assert used >= total - rate.reserve_ms - rate.least_ms - 2
    assert looks < total  # not a busy loop
    late = used + rate.reserve_ms  # looked at and killed as late as allowed
    made.end(int(late))
    assert book.spent(one)[0].cpu_ms == int(late) <= total
    assert made.shortage is not None
    assert made.shortage.rule == "total.cpu_ms"


def test_what_was_used_beyond_the_budget_never_makes_the_sum_larger_than_it() -> None:
    book, one, rate = FakeSpendBook(), (budget(cpu_ms=300),), Rate(2, 2000)
    made = bill(book, one, rate, FREE)
    made.open()
    made.end(400)
    assert book.spent(one) == [Amount(cpu_ms=300)]


def test_what_is_given_back_is_given_back_once() -> None:
    """What others have counted meanwhile stays."""
    book, one = FakeSpendBook(), (budget(calls=9),)
    made, other, ended = (Bill(book, one, Prices({"run": 5}, 0, 0), "run", None) for _ in range(3))
    for each in (made, other, ended):
        assert each.open() is None
    ended.end(0)
    for _ in range(2):
        made.give_back()
        ended.give_back()
    assert (made.undone, made.cost_micro) == (True, 0)
    assert (ended.undone, ended.cost_micro) == (False, 5)
    assert [spent.calls for spent in book.spent(one)] == [2]


@pytest.mark.parametrize(("cpu_second", "cost"), [(0, 5), (1000, None)])
def test_the_cost_is_said_where_it_is_known(cpu_second: int, cost: int | None) -> None:
    book, rate = FakeSpendBook(), Rate(2, 2000)
    made = bill(book, (budget(cpu_ms=5000),), rate, Prices({"run": 5}, cpu_second, 0))
    assert made.open() is None
    made.end(None)
    assert made.cost_micro == cost


def test_nothing_is_counted_of_a_call_that_has_no_budget_left() -> None:
    book, rate = FakeSpendBook(), Rate(2, 2000)
    one = (budget(cpu_ms=rate.reserve_ms + rate.least_ms - 1, calls=9),)
    made = bill(book, one, rate, FREE)
    short = made.open()
    assert short is not None
    assert short.rule == "total.cpu_ms"
    assert book.spent(one) == [Amount()]
    made.end(5)
    made.give_back()
    assert book.spent(one) == [Amount()]


def test_ending_and_giving_back_happen_once() -> None:
    book, one, rate = FakeSpendBook(), (budget(calls=9, cpu_ms=1000),), Rate(2, 2000)
    made = bill(book, one, rate, FREE)
    made.open()
    assert book.spent(one) == [Amount(calls=1, cpu_ms=rate.reserve_ms + SLICE_MS)]
    made.end(10)
    made.end(20)
    made.give_back()
    assert book.spent(one) == [Amount(calls=1, cpu_ms=10)]


def test_no_price_makes_a_cost_that_no_result_can_say() -> None:
    prices = Prices({"run": MAX_INTEGER}, MAX_INTEGER, 0)
    made = bill(FakeSpendBook(), (budget(calls=9),), Rate(2, 2000), prices)
    assert made.open() is None
    made.end(1_000)
    assert made.cost_micro == MAX_INTEGER


@dataclass
class Child:
    bill: Bill
    used: float = 0.0
    wake: float = 0.0
    over: bool = False
    budgets: tuple[Budget, ...] = field(default=())


@pytest.mark.parametrize("seed", range(20))
def test_calls_at_once_stay_within_every_block(seed: int) -> None:
    """Random trees of blocks, prices, loads and lateness, on a simulated host."""
    chance = random.Random(seed)
    book, rate = FakeSpendBook(), Rate(2, 2000)
    prices = Prices({"run": chance.randrange(9)}, chance.choice((0, 7, 1500)), 0)
    names = ["root", *"abcd"]
    totals = {
        name: Total(
            calls=chance.choice((3, 6, NO_BUDGET.calls)),
            cost_micro=chance.choice((900, 4000, NO_BUDGET.calls)),
            cpu_ms=chance.choice((700, 2500, NO_BUDGET.calls)),
            egress_bytes=NO_BUDGET.calls,
        )
        for name in names
    }
    totals["root"] = totals["root"].model_copy(update={"cpu_ms": 2600})
    everybody = tuple(Budget(name, total, 10) for name, total in totals.items())
    running: list[Child] = []
    for now in range(3000):
        if chance.random() < 0.02 and len(running) < 4:
            family = (everybody[0], *chance.sample(everybody[1:], chance.randrange(1, 3)))
            made = Child(bill(book, family, rate, prices), wake=now)
            if made.bill.open() is None:
                running.append(made)
        for child in list(running):
            child.used += chance.random() * 2 / max(1, len(running))
            if now < child.wake:
                continue
            if child.over or chance.random() < 0.01:
                child.bill.end(int(child.used + 0.999))
                running.remove(child)
                continue
            pause = child.bill.more(int(child.used + 0.999))
            late = chance.randrange(RESERVE_WALL_MS // 2)
            child.over = pause is None
            child.wake = now + (pause or 0) + late
        _within(book, everybody)
    for child in running:
        child.bill.end(int(child.used + 0.999))
    _within(book, everybody)


def _within(book: FakeSpendBook, budgets: tuple[Budget, ...]) -> None:
    for budget, amount in zip(budgets, book.spent(budgets), strict=True):
        assert budget.shortage(amount, Amount()) is None
