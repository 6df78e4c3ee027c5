"""A step and its version number are one transaction."""

from __future__ import annotations

import sqlite3

import pytest

from stockade.ledger import migrations
from stockade.ledger.migrations import CURRENT, migrate


def test_migrate_is_idempotent() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    migrate(connection)
    schema = connection.execute("SELECT sql FROM sqlite_schema").fetchall()
    migrate(connection)
    assert connection.execute("SELECT sql FROM sqlite_schema").fetchall() == schema
    connection.close()


def test_a_failing_step_leaves_the_version_before_it(monkeypatch: pytest.MonkeyPatch) -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    broken = (*migrations.MIGRATIONS, ("CREATE TABLE half (x)", "CREATE NONSENSE"))
    monkeypatch.setattr(migrations, "MIGRATIONS", broken)
    monkeypatch.setattr(migrations, "CURRENT", len(broken))
    with pytest.raises(sqlite3.Error):
        migrate(connection)
    assert connection.execute("PRAGMA user_version").fetchone() == (CURRENT,)
    assert connection.execute("SELECT 1 FROM sqlite_schema WHERE name = 'half'").fetchone() is None
    connection.close()


def test_leases_that_share_have_one_range_of_user_ids_and_others_do_not() -> None:
    """Also in a ledger that an earlier version has made and filled."""
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for statement in (*migrations.MIGRATIONS[0], "PRAGMA user_version = 1"):
        connection.execute(statement)
    connection.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
    table = connection.execute("PRAGMA table_info(lease)").fetchall()
    columns = [row[1] for row in table]
    values = {"TEXT": "a", "BLOB": b"a", "INTEGER": 1, "REAL": 1.0}
    first = [values[row[2]] for row in table]
    connection.execute(f"INSERT INTO lease VALUES ({', '.join('?' * len(columns))})", first)
    migrate(connection)
    copy = (
        f"INSERT INTO lease ({', '.join(columns)}, shares)"
        f" SELECT ?, tenant, trajectory, ?, {', '.join(columns[4:])}, ?"
    )
    connection.execute(f"{copy} FROM lease WHERE id = 'a'", ("b", "b", "a"))
    with pytest.raises(sqlite3.IntegrityError):
        connection.execute(f"{copy} FROM lease WHERE id = 'a'", ("c", "c", None))
    assert connection.execute("SELECT shares FROM lease ORDER BY id").fetchall() == [
        (None,),
        ("a",),
    ]
    connection.close()


def test_a_claim_of_an_earlier_version_is_not_metered() -> None:
    connection = sqlite3.connect(":memory:", isolation_level=None)
    for step in migrations.MIGRATIONS[:8]:
        for statement in step:
            connection.execute(statement)
    connection.execute("PRAGMA user_version = 8")
    connection.execute(f"PRAGMA application_id = {migrations.APPLICATION_ID}")
    table = connection.execute("PRAGMA table_info(claim)").fetchall()
    values = {"TEXT": "a", "INTEGER": 1, "REAL": 1.0}
    old = tuple(values[row[2]] for row in table)
    connection.execute(f"INSERT INTO claim VALUES ({', '.join('?' * len(old))})", old)
    migrate(connection)
    assert connection.execute("SELECT * FROM claim").fetchall() == [(*old, None, 0)]
    connection.close()
