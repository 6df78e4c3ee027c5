"""What was spent, by block: the table `spend`.

A call's amount is counted against every block of its chain in one transaction, after all of them
have been asked, so that calls that run at once can't together pass any sum. A sum is never more
than its budget and never below zero. What is drawn for a command that runs is said in its claim in
the same transaction, so that the next process knows how much of a sum is this call's.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Final

from stockade.ledger.store import SqliteLedger
from stockade.terms.fault import Code, failure
from stockade.terms.spend import Amount, Budget, Shortage

_SELECT: Final = "SELECT calls, cost_micro, cpu_ms, egress_bytes FROM spend WHERE block = ?"
_ADD: Final = (
    "INSERT INTO spend (block, calls, cost_micro, cpu_ms, egress_bytes, not_after_s)"
    " VALUES (?, ?, ?, ?, ?, ?) ON CONFLICT (block) DO UPDATE SET"
    " calls = calls + excluded.calls, cost_micro = cost_micro + excluded.cost_micro,"
    " cpu_ms = cpu_ms + excluded.cpu_ms, egress_bytes = egress_bytes + excluded.egress_bytes"
)
_TAKE: Final = (
    "UPDATE spend SET calls = max(0, calls - ?), cost_micro = max(0, cost_micro - ?),"
    " cpu_ms = max(0, cpu_ms - ?), egress_bytes = max(0, egress_bytes - ?) WHERE block = ?"
)
_DRAWN: Final = "UPDATE claim SET drawn_ms = drawn_ms + ? WHERE id = ?"


class SpendTable:
    """Implements `terms.books.SpendBook`. Thread-safe."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    def add(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> Shortage | None:
        with self._ledger.transaction() as connection:
            for budget in budgets:
                shortage = budget.shortage(_sum(connection, budget.block), amount)
                if shortage is not None:
                    return shortage
            for budget in budgets:
                row = (budget.block, *_cells(budget.counted(amount)), float(budget.not_after_s))
                connection.execute(_ADD, row)
            if claim_id is not None:
                connection.execute(_DRAWN, (amount.cpu_ms, claim_id))
        return None

    def take_back(
        self, budgets: Sequence[Budget], amount: Amount, claim_id: str | None = None
    ) -> None:
        with self._ledger.transaction() as connection:
            for budget in budgets:
                connection.execute(_TAKE, (*_cells(budget.counted(amount)), budget.block))
            if claim_id is not None:
                connection.execute(_DRAWN, (-amount.cpu_ms, claim_id))

    def spent(self, budgets: Sequence[Budget]) -> Sequence[Amount]:
        found = (self._ledger.rows(_SELECT, (budget.block,)) for budget in budgets)
        return [_amount(rows[0]) if rows else Amount() for rows in found]


def _sum(connection: sqlite3.Connection, block: str) -> Amount:
    row = connection.execute(_SELECT, (block,)).fetchone()
    return Amount() if row is None else _amount(row)


def _cells(amount: Amount) -> tuple[int, int, int, int]:
    return amount.calls, amount.cost_micro, amount.cpu_ms, amount.egress_bytes


def _amount(row: Sequence[object]) -> Amount:
    calls, cost_micro, cpu_ms, egress_bytes = (_whole(cell) for cell in row)
    return Amount(calls, cost_micro, cpu_ms, egress_bytes)


def _whole(cell: object) -> int:
    if not isinstance(cell, int):
        raise failure(Code.STORAGE_UNAVAILABLE, "the ledger's table of spend can't be read")
    return cell
