"""The table of spend: all blocks or none, by component, durable, and the fake beside it."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import KEPT_AFTER_END_S, SqliteLedger
from stockade.terms.books import SpendBook
from stockade.terms.claim import ClaimState
from stockade.terms.grant import Total
from stockade.terms.moment import Moment
from stockade.terms.spend import Amount, Budget, Shortage
from stockade.testing.fake_books import FakeSpendBook
from tests.grants import NO_BUDGET
from tests.unit.ledger.test_claim_table import claim

END = 2_000


def budget(block: str, **components: int) -> Budget:
    return Budget(block, Total(**{**NO_BUDGET.model_dump(), **components}), END)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    made = SqliteLedger(str(tmp_path / "ledger.db"))
    yield made
    made.close()


@pytest.fixture(params=["table", "fake"])
def book(request: pytest.FixtureRequest, ledger: SqliteLedger) -> SpendBook:
    return SpendTable(ledger) if request.param == "table" else FakeSpendBook()


def test_an_amount_counts_against_every_block(book: SpendBook) -> None:
    family = [budget("root", calls=5), budget("child", calls=3)]
    assert book.add(family, Amount(calls=2)) is None
    assert book.spent(family) == [Amount(calls=2), Amount(calls=2)]


def test_children_share_what_their_parent_has(book: SpendBook) -> None:
    root = budget("root", calls=3)
    for child in ("a", "b", "a"):
        assert book.add([root, budget(child, calls=3)], Amount(calls=1)) is None
    short = book.add([root, budget("c", calls=3)], Amount(calls=1))
    assert short == Shortage("root", "calls", 3, 3)
    assert book.spent([budget("c", calls=3)]) == [Amount()]


def test_all_or_none(book: SpendBook) -> None:
    family = [budget("root", cpu_ms=100), budget("child", cpu_ms=10)]
    assert book.add(family, Amount(cpu_ms=11)) == Shortage("child", "cpu_ms", 10, 0)
    assert book.spent(family) == [Amount(), Amount()]
    assert book.add(family, Amount(cpu_ms=10)) is None


@pytest.mark.parametrize("component", ["calls", "cost_micro", "cpu_ms", "egress_bytes"])
def test_each_component_is_held_by_itself(book: SpendBook, component: str) -> None:
    one = [budget("b", **{component: 1})]
    assert book.add(one, Amount(**{component: 1})) is None
    assert book.add(one, Amount(**{component: 1})) == Shortage("b", component, 1, 1)
    assert book.add(one, Amount()) is None


def test_a_component_without_a_budget_is_not_counted(book: SpendBook) -> None:
    one = [budget("b", calls=9)]
    assert book.add(one, Amount(calls=1, cpu_ms=10**9)) is None
    assert book.spent(one) == [Amount(calls=1)]


def test_what_is_taken_back_can_be_spent_again_and_never_more(book: SpendBook) -> None:
    one = [budget("b", cpu_ms=10)]
    assert book.add(one, Amount(cpu_ms=8)) is None
    book.take_back(one, Amount(cpu_ms=5))
    assert book.spent(one) == [Amount(cpu_ms=3)]
    book.take_back(one, Amount(cpu_ms=5))
    assert book.add(one, Amount(cpu_ms=11)) == Shortage("b", "cpu_ms", 10, 0)


def test_sums_are_there_after_a_restart(tmp_path: Path) -> None:
    path = str(tmp_path / "again.db")
    first = SqliteLedger(path)
    SpendTable(first).add([budget("b", calls=9)], Amount(calls=4))
    first.close()
    second = SqliteLedger(path)
    assert SpendTable(second).spent([budget("b", calls=9)]) == [Amount(calls=4)]
    second.close()


def test_sums_of_blocks_that_ended_long_before_are_forgotten(ledger: SqliteLedger) -> None:
    book, one = SpendTable(ledger), [budget("b", calls=9)]
    book.add(one, Amount(calls=4))
    ledger.sweep(Moment(END + KEPT_AFTER_END_S - 1, 5.0, "b"))
    assert book.spent(one) == [Amount(calls=4)]
    # The wall clock was set: no time has passed. A restart does not make it so either.
    ledger.sweep(Moment(END + 3 * KEPT_AFTER_END_S, 5.0, "b"))
    assert book.spent(one) == [Amount(calls=4)]
    assert ledger.forgotten_before_s < END
    ledger.sweep(Moment(END + KEPT_AFTER_END_S + 1, 7.0, "b"))
    assert book.spent(one) == [Amount()]
    ledger.sweep(Moment(1.0, 9.0, "next"))
    names = [name for (name,) in ledger.rows("SELECT name FROM counter", ())]
    assert [name for name in names if "boot" in str(name)] == ["wall_at_boot next"]


def test_a_claim_says_what_was_drawn_for_it_and_no_other_does(ledger: SqliteLedger) -> None:
    book, claims = SpendTable(ledger), ClaimTable(ledger)
    for number in (1, 2):
        claims.begin(claim(number, drawn_ms=50))

    def drawn() -> list[int]:
        return [record.drawn_ms for record in claims.list(None, None, tuple(ClaimState), 9)]

    one = [budget("b", cpu_ms=300)]
    assert book.add(one, Amount(cpu_ms=200), claim(1).id) is None
    assert drawn() == [250, 50]
    assert book.add(one, Amount(cpu_ms=200), claim(1).id) is not None
    assert book.add(one, Amount(cpu_ms=60)) is None
    assert drawn() == [250, 50]
    book.take_back(one, Amount(cpu_ms=130), claim(1).id)
    book.take_back(one, Amount(cpu_ms=60))
    assert drawn() == [120, 50]
    assert book.spent(one) == [Amount(cpu_ms=70)]
