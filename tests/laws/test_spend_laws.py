"""Laws of spending: whatever is counted and taken back in whatever order, no block passes its total."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import astuple
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.grant import Total
from stockade.terms.spend import Amount, Budget
from stockade.testing.fake_books import FakeSpendBook
from tests.grants import NO_BUDGET

SMALL = st.integers(0, 12)
TOTALS = st.builds(
    Total,
    calls=SMALL | st.just(NO_BUDGET.calls),
    cost_micro=SMALL | st.just(NO_BUDGET.calls),
    cpu_ms=SMALL | st.just(NO_BUDGET.calls),
    egress_bytes=SMALL | st.just(NO_BUDGET.calls),
)
PART = st.integers(0, 4)
AMOUNTS = st.builds(Amount, PART, PART, PART, PART)


@st.composite
def trees(draw: st.DrawFn) -> list[tuple[int, Total]]:
    """Block number -> its parent's number (the root is its own) and its total, which need not be
    below its parent's: the law does not rest on attenuation."""
    size = draw(st.integers(1, 7))
    return [(draw(st.integers(0, max(0, n - 1))), draw(TOTALS)) for n in range(size)]


STEPS = st.lists(st.tuples(st.integers(0, 6), AMOUNTS, st.booleans()), max_size=40)


def chain(tree: Sequence[tuple[int, Total]], number: int, example: str) -> list[Budget]:
    """Root first."""
    parent, total = tree[number]
    above = chain(tree, parent, example) if number else []
    return [*above, Budget(f"{example}-{number}", total, 10)]


@pytest.fixture(scope="module")
def table(tmp_path_factory: pytest.TempPathFactory) -> Iterator[SpendTable]:
    ledger = SqliteLedger(str(Path(tmp_path_factory.mktemp("spend")) / "ledger.db"))
    with ledger.transaction() as connection:
        connection.execute("SELECT 1")
    ledger._writer.execute("PRAGMA synchronous = OFF")  # the law is not about power cuts
    yield SpendTable(ledger)
    ledger.close()


_examples = iter(range(10**9))


@settings(max_examples=120, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), steps=STEPS)
def test_no_block_ever_passes_its_total(
    table: SpendTable, tree: list[tuple[int, Total]], steps: list[tuple[int, Amount, bool]]
) -> None:
    example, fake = str(next(_examples)), FakeSpendBook()
    everybody = [chain(tree, number, example)[-1] for number in range(len(tree))]
    held: list[tuple[list[Budget], Amount]] = []
    for number, amount, give in steps:
        budgets = chain(tree, number % len(tree), example)
        if give and held:
            back = held.pop()
            table.take_back(*back)
            fake.take_back(*back)
        else:
            short = table.add(budgets, amount)
            assert short == fake.add(budgets, amount)
            if short is None:
                held.append((budgets, amount))
            else:
                # It was refused for a reason, and the reason is named.
                assert short.total < short.spent + getattr(amount, short.component)
        sums = table.spent(everybody)
        assert sums == fake.spent(everybody)
        for budget, have in zip(everybody, sums, strict=True):
            assert budget.shortage(have, Amount()) is None


@settings(max_examples=60, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(tree=trees(), steps=STEPS)
def test_a_block_has_the_sum_of_all_below_it(
    table: SpendTable, tree: list[tuple[int, Total]], steps: list[tuple[int, Amount, bool]]
) -> None:
    example = str(next(_examples))
    expected = [(0, 0, 0, 0)] * len(tree)
    for number, amount, _ in steps:
        budgets = chain(tree, number % len(tree), example)
        if table.add(budgets, amount) is None:
            for budget in budgets:
                index = int(budget.block.rpartition("-")[2])
                counted = astuple(budget.counted(amount))
                pairs = zip(expected[index], counted, strict=True)
                expected[index] = tuple(a + b for a, b in pairs)
    everybody = [chain(tree, number, example)[-1] for number in range(len(tree))]
    assert [astuple(amount) for amount in table.spent(everybody)] == expected
