"""Revoked blocks as rows of the ledger.

A row is of use until the block's own end: no token below it is valid after that anyway. Where the
end is not known (an id was revoked, not a token) the row is kept for ever.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from stockade.terms.authority import Revocation


def add(connection: sqlite3.Connection, made: Revocation, ended_before_s: float) -> None:
    """Write `made`, unless its block is there already, and drop the rows of blocks that ended
    before `ended_before_s`."""
    connection.execute("DELETE FROM revocation WHERE not_after_s < ?", (ended_before_s,))
    connection.execute(
        "INSERT INTO revocation (block, revoked_at_s, revoked_by, reason, not_after_s)"
        " VALUES (?, ?, ?, ?, ?) ON CONFLICT (block) DO NOTHING",
        (made.block, made.revoked_at_s, made.revoked_by, made.reason, made.not_after_s),
    )


def read(connection: sqlite3.Connection) -> Sequence[Revocation]:
    """Every row, oldest first."""
    rows = connection.execute(
        "SELECT block, revoked_at_s, revoked_by, reason, not_after_s FROM revocation"
        " ORDER BY revoked_at_s, rowid"
    ).fetchall()
    return [Revocation(*row) for row in rows]
