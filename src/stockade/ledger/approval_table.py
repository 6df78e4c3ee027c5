"""Requests for a person's approval: the table `approval`.

A request lives as long as its lease. Each change of state is one statement that names the state it
starts from, so that of two calls with one approval exactly one gets it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import fields
from typing import Final

from stockade.ledger.rows import Cell
from stockade.ledger.store import SqliteLedger
from stockade.terms.approval import ApprovalRecord, ApprovalState
from stockade.terms.fault import Code, failure

RETRY_AFTER_MS: Final = 10_000
# Statements are put together from the field names of the record; values are always bound.
_NAMES: Final = ", ".join(field.name for field in fields(ApprovalRecord))
_MARKS: Final = ", ".join("?" for _ in fields(ApprovalRecord))
_LIVE: Final = "lease_id IN (SELECT id FROM lease WHERE state <> 'released')"
_SELECT: Final = f"SELECT {_NAMES} FROM approval WHERE {_LIVE}"  # noqa: S608
_INSERT: Final = f"INSERT OR REPLACE INTO approval ({_NAMES}) VALUES ({_MARKS})"  # noqa: S608
_DECIDE: Final = (
    "UPDATE approval SET state = ?, decided_at_s = ?, decided_by = ?, reason = ?"  # noqa: S608
    " WHERE id = ? AND state <> 'used' AND " + _LIVE
)


class ApprovalTable:
    """Implements `terms.books.ApprovalBook`. Thread-safe."""

    def __init__(self, ledger: SqliteLedger) -> None:
        self._ledger = ledger

    def ask(self, record: ApprovalRecord, at_most: int) -> ApprovalRecord:
        found = self.get(record.id)  # a request that is repeated writes nothing
        if found is not None and found.state is not ApprovalState.USED:
            return found
        with self._ledger.transaction() as connection:
            row = connection.execute(f"{_SELECT} AND id = ?", (record.id,)).fetchone()
            found = None if row is None else _record(row)
            if found is not None and found.state is not ApprovalState.USED:
                return found
            open_ones = connection.execute(
                "SELECT count(*) FROM approval WHERE lease_id = ? AND state = 'asked'",
                (record.lease_id,),
            ).fetchone()[0]
            if open_ones >= at_most:
                raise failure(
                    Code.BUSY,
                    f"{open_ones} requests of the lease wait for a person",
                    rule="approve",
                    retry_after_ms=RETRY_AFTER_MS,
                )
            connection.execute(_INSERT, _row(record))
        return record

    def get(self, approval_id: str) -> ApprovalRecord | None:
        rows = self._ledger.rows(f"{_SELECT} AND id = ?", (approval_id,))
        return _record(rows[0]) if rows else None

    def list(self) -> Sequence[ApprovalRecord]:
        return [_record(row) for row in self._ledger.rows(f"{_SELECT} ORDER BY asked_at_s, id", ())]

    def decide(
        self, approval_id: str, state: ApprovalState, at_s: float, by: str, reason: str | None
    ) -> ApprovalRecord | None:
        with self._ledger.transaction() as connection:
            connection.execute(_DECIDE, (state.value, at_s, by, reason, approval_id))
        return self.get(approval_id)

    def use(self, approval_id: str) -> bool:
        return self._move(approval_id, ApprovalState.GRANTED, ApprovalState.USED)

    def give_back(self, approval_id: str) -> None:
        self._move(approval_id, ApprovalState.USED, ApprovalState.GRANTED)

    def _move(self, approval_id: str, old: ApprovalState, new: ApprovalState) -> bool:
        with self._ledger.transaction() as connection:
            changed = connection.execute(
                "UPDATE approval SET state = ? WHERE id = ? AND state = ?",
                (new.value, approval_id, old.value),
            )
            return changed.rowcount == 1


def _row(record: ApprovalRecord) -> tuple[Cell, ...]:
    return tuple(getattr(record, field.name) for field in fields(record))


def _record(row: Sequence[Cell]) -> ApprovalRecord:
    cell = dict(zip((field.name for field in fields(ApprovalRecord)), row, strict=True))
    try:
        state = ApprovalState(str(cell.pop("state")))
    except ValueError as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE, "the ledger's table of approvals can't be read"
        ) from error
    return ApprovalRecord(state=state, **cell)  # type: ignore[arg-type]
