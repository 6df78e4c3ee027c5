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
