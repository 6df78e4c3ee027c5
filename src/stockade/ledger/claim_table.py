"""Claims of calls: the table `claim`.

A claim is written before its call can have an effect and settled before the result is given out,
both power-safe (`commits`). What only has to outlive this process, because the host's end would
make it worthless or harmless, is not: which sandbox a command was given to, and that nothing was
executed.

Every change of state is one statement that names the states it starts from, so a claim that
somebody has settled stays as it is.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Sequence
from dataclasses import fields, replace
from operator import attrgetter
from typing import Final

from pydantic import TypeAdapter, ValidationError

from stockade.decide.chain import refer
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.rows import Cell
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import AuditEvent, Head
from stockade.terms.claim import ClaimRecord, ClaimState, Settled
from stockade.terms.fault import Code, failure
from stockade.terms.outcome import EditOutcome
from stockade.terms.spend import Metered

_COLUMNS: Final = tuple(field.name for field in fields(ClaimRecord))
_VALUES: Final[Callable[[ClaimRecord], Sequence[Cell]]] = attrgetter(*_COLUMNS)
# Statements are put together from the field names of the record; values are always bound.
_NAMES: Final = ", ".join(_COLUMNS)
_MARKS: Final = ", ".join("?" for _ in _COLUMNS)
_CHANGES: Final = ", ".join(f"{name} = excluded.{name}" for name in _COLUMNS if name != "id")
_SELECT: Final = f"SELECT {_NAMES} FROM claim"  # noqa: S608
# Without what may be large: a list of many is looked at, one is read.
_BRIEF: Final = ", ".join(
    {"result": "NULL", "arguments": "'{}'"}.get(name, name) for name in _COLUMNS
)
_BEGIN: Final = (
    f"INSERT INTO claim ({_NAMES}) VALUES ({_MARKS}) ON CONFLICT (id) DO UPDATE SET {_CHANGES}"  # noqa: S608
    " WHERE claim.state = 'not_executed' OR claim.request_id = excluded.request_id"
)
_STARTED: Final = "UPDATE claim SET sandbox = ?, guest_call = ? WHERE id = ?"
_SETTLE: Final = (
    "UPDATE claim SET state = ?, settled_at_s = ?, settled_by = ?, reason = ?,"
    " result = coalesce(?, result) WHERE id = ? AND state IN ('in_flight', 'in_doubt')"
)
# The newest first, because artifacts are read soon: in a lease of 5,000 calls with 30 KB each 0.2 ms
# in the place of 280, for each piece. The first condition spares the second the reading of most
# results. Only an artifact's own id can hold the second: what a command printed is text inside of a
# string.
_WITH_ARTIFACT: Final = (
    "SELECT chain FROM claim WHERE lease_id = ? AND instr(result, ?) > 0 AND EXISTS (SELECT 1 FROM"
    " json_each(claim.result, '$.artifacts') WHERE json_extract(value, '$.id') = ?)"
    " ORDER BY sequence DESC LIMIT 1"
)
_RELEASED: Final = (
    "UPDATE claim SET forget_at_s = ? WHERE forget_at_s IS NULL AND lease_id IN"
    " (SELECT lease_id FROM released_lease)"
)
_FORGET: Final = "DELETE FROM claim WHERE sequence IN (SELECT sequence FROM claim WHERE forget_at_s <= ? LIMIT ?)"
# In one transaction, which others wait for.
_FORGET_ROWS: Final = 500
_CHAIN: Final = TypeAdapter(tuple[str, ...])
_EDIT: Final = TypeAdapter(EditOutcome)
_METERED: Final = TypeAdapter(Metered)
_EDIT_NAMES: Final = tuple(field.name for field in fields(EditOutcome))


class _NothingUnsettledError(Exception):
    """Takes back what was written for a claim that is not there, or settled."""


class ClaimTable:
    """Implements `terms.books.ClaimBook`. Thread-safe."""

    def __init__(self, ledger: SqliteLedger, audit: AuditTable | None = None) -> None:
        """Without `audit` what belongs there is not recorded."""
        self._ledger = ledger
        self._audit = audit

    def get(self, claim_id: str) -> ClaimRecord | None:
        rows = self._ledger.rows(f"{_SELECT} WHERE id = ?", (claim_id,))
        return _record(rows[0]) if rows else None

    def begin(self, record: ClaimRecord, intent: AuditEvent | None = None) -> None:
        row = _row(record)

        def write(connection: sqlite3.Connection) -> None:
            if connection.execute(_BEGIN, row).rowcount != 1:
                raise failure(Code.INTERNAL, f"{record.id} is claimed already")
            self._append(connection, intent)

        self._ledger.commit(write)

    def started(self, claim_id: str, sandbox: str, guest_call: str) -> None:
        values = (sandbox, guest_call, claim_id)
        self._ledger.commit(lambda connection: connection.execute(_STARTED, values), durable=False)

    def settle(
        self,
        claim_id: str,
        state: ClaimState,
        *,
        at_s: float,
        by: str,
        result: str | None,
        reason: str | None = None,
        outcome: AuditEvent | None = None,
    ) -> Settled | None:
        def write(connection: sqlite3.Connection) -> Settled:
            place = self._append(connection, outcome)
            text = result if result is None or place is None else refer(result, place)
            values = (state.value, at_s, by, reason, text, claim_id)
            if connection.execute(_SETTLE, values).rowcount != 1:
                raise _NothingUnsettledError
            return Settled(place)

        try:
            return self._ledger.commit(write, durable=state is not ClaimState.NOT_EXECUTED)
        except _NothingUnsettledError:
            return None

    def put(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> Settled:
        def write(connection: sqlite3.Connection) -> Settled:
            place = self._append(connection, outcome)
            text = record.result if place is None else refer(record.result or "", place)
            if connection.execute(_BEGIN, _row(replace(record, result=text))).rowcount != 1:
                raise failure(Code.INTERNAL, f"{record.id} is claimed already")
            return Settled(place)

        return self._ledger.commit(write)

    def note(self, record: ClaimRecord, outcome: AuditEvent | None = None) -> None:
        row = _row(record)

        def write(connection: sqlite3.Connection) -> None:
            connection.execute(_BEGIN, row)
            self._append(connection, outcome)

        self._ledger.commit_later(write)

    def list(
        self, tenant: str | None, lease_id: str | None, states: Sequence[ClaimState], at_most: int
    ) -> Sequence[ClaimRecord]:
        marks = ", ".join("?" for _ in states)
        statement = (
            f"SELECT {_BRIEF} FROM claim WHERE state IN ({marks})"  # noqa: S608
            " AND (? IS NULL OR tenant = ?) AND (? IS NULL OR lease_id = ?)"
            " ORDER BY sequence DESC LIMIT ?"
        )
        values = (*states, tenant, tenant, lease_id, lease_id, at_most)
        return [_record(row) for row in reversed(self._ledger.rows(statement, values))]

    def chain_of_artifact(self, lease_id: str, artifact_id: str) -> tuple[str, ...] | None:
        self._ledger.flush()
        values = (lease_id, artifact_id, artifact_id)
        with self._ledger.connection() as connection:
            row = connection.execute(_WITH_ARTIFACT, values).fetchone()
        return None if row is None else _CHAIN.validate_json(row[0])

    def _append(self, connection: sqlite3.Connection, event: AuditEvent | None) -> Head | None:
        if event is None or self._audit is None:
            return None
        return self._audit.append(connection, event)

    def sweep(self, now_s: float, kept_s: float) -> None:
        self._ledger.tidy()  # what was noted before its lease was released counts as the lease's

        def mark(connection: sqlite3.Connection) -> None:
            connection.execute(_RELEASED, (now_s + kept_s,))
            connection.execute("DELETE FROM released_lease")

        def forget(connection: sqlite3.Connection) -> int:
            return connection.execute(_FORGET, (now_s, _FORGET_ROWS)).rowcount

        if self._ledger.rows("SELECT 1 FROM released_lease LIMIT 1", ()):
            self._ledger.commit(mark)
        while self._ledger.commit(forget, durable=False) == _FORGET_ROWS:
            pass


def _row(record: ClaimRecord) -> tuple[Cell, ...]:
    edit = None if record.foreseen is None else _edit_text(record.foreseen)
    metered = None if record.metered is None else _METERED.dump_json(record.metered).decode()
    row = dict(zip(_COLUMNS, _VALUES(record), strict=True))
    row["state"] = record.state.value
    row["chain"] = json.dumps(record.chain)
    row["foreseen"], row["metered"] = edit, metered
    return tuple(row.values())


def _edit_text(edit: EditOutcome) -> str:
    return json.dumps({name: getattr(edit, name) for name in _EDIT_NAMES})


def _record(row: Sequence[Cell]) -> ClaimRecord:
    """Raises Failure(storage_unavailable) for a row that this version can't understand."""
    cell = dict(zip(_COLUMNS, row, strict=True))
    try:
        edit, metered = cell.pop("foreseen"), cell.pop("metered")
        return ClaimRecord(
            state=ClaimState(str(cell.pop("state"))),
            chain=_CHAIN.validate_json(str(cell.pop("chain"))),
            foreseen=None if edit is None else _EDIT.validate_json(str(edit)),
            metered=None if metered is None else _METERED.validate_json(str(metered)),
            **cell,  # type: ignore[arg-type]
        )
    except (ValueError, ValidationError) as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE, "the ledger's table of claims can't be read"
        ) from error
