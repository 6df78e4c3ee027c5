from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.ledger.store import SqliteLedger
from stockade.terms.authority import Revocation

ONE = Revocation("a" * 32, 100.0, "uid 0", "leaked", 500.0)
TWO = Revocation("b" * 32, 101.5, "uid 7", "", None)


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


@pytest.fixture
def ledger(path: str) -> Iterator[SqliteLedger]:
    opened = SqliteLedger(path)
    yield opened
    opened.close()


def test_a_new_ledger_has_none(ledger: SqliteLedger) -> None:
    assert ledger.revocations() == []


def test_rows_come_back_oldest_first_and_outlive_the_process(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_revocation(TWO, 0)
    ledger.add_revocation(ONE, 0)
    ledger.close()
    again = SqliteLedger(path)
    assert again.revocations() == [ONE, TWO]
    again.close()


def test_the_first_revocation_of_a_block_stays(ledger: SqliteLedger) -> None:
    ledger.add_revocation(ONE, 0)
    ledger.add_revocation(replace(ONE, revoked_at_s=300.0, reason="again"), 0)
    assert ledger.revocations() == [ONE]


def test_rows_of_ended_blocks_are_dropped_and_those_without_an_end_kept(
    ledger: SqliteLedger,
) -> None:
    ledger.add_revocation(ONE, 0)
    ledger.add_revocation(TWO, 500.0)
    assert ledger.revocations() == [ONE, TWO]
    three = replace(ONE, block="c" * 32, revoked_at_s=900.0, not_after_s=2000.0)
    ledger.add_revocation(three, 500.1)
    assert ledger.revocations() == [TWO, three]
