"""Secrets at rest: sealed, bound to lease and name, gone with their lease."""

from __future__ import annotations

import secrets
import sqlite3
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.ledger.secret_rows import Seal
from stockade.ledger.secret_table import SecretTable
from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseState
from stockade.terms.secret import Secret
from stockade.testing.house import House, code_of, open_house
from stockade.tools.needles import needles

VALUE = b"the-secret-value-\x00\xff"
KEY = bytes(range(32))


@pytest.fixture
def house(tmp_path: Path) -> House:
    return open_house(str(tmp_path))


def table(house: House, key: bytes = KEY) -> SecretTable:
    return SecretTable(house.ledger, Seal(key, secrets.token_hex))


def test_put_all_replace_remove(house: House) -> None:
    lease = house.leases.create(house.request()).record
    made = Secret(lease.id, "A", VALUE, True, 1.0)
    other = Secret(lease.id, "B", b"another-value", False, 2.0)
    book = table(house)
    assert book.put(made)
    assert book.put(other)
    assert book.all() == [made, other]
    assert "secret-value" not in repr(made)
    changed = replace(made, value=b"changed-value", added_at_s=3.0)
    assert book.put(changed)
    assert book.all() == [other, changed]
    assert book.remove(lease.id, "B")
    assert not book.remove(lease.id, "B")
    assert book.all() == [changed]
    house.close()


def test_nothing_on_the_disk_shows_a_value(house: House, tmp_path: Path) -> None:
    lease = house.leases.create(house.request()).record
    assert table(house).put(Secret(lease.id, "A", VALUE, True, 1.0))
    held = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file())
    assert b"secret" in held  # the table's name: what was read is the ledger
    assert not any(form in held for form in needles(VALUE))
    house.close()


def test_a_row_opens_only_where_it_was_sealed_and_with_its_key(
    house: House, tmp_path: Path
) -> None:
    first = house.leases.create(house.request()).record
    second = house.leases.create(house.request("run-2")).record
    book = table(house)
    book.put(Secret(first.id, "A", VALUE, False, 1.0))
    assert code_of(lambda: table(house, bytes(32)).all()) is Code.STORAGE_UNAVAILABLE
    for change in (
        "name = 'B'",
        f"lease_id = '{second.id}'",
        "in_environment = 1",
        "sealed = x'00'",
    ):
        with closing(sqlite3.connect(tmp_path / "ledger.db")) as raw, raw:
            saved = raw.execute("SELECT * FROM secret").fetchall()
            raw.execute(f"UPDATE secret SET {change}")
            raw.commit()
            with pytest.raises(Failure, match="can't be opened") as failed:
                book.all()
            assert b"secret-value" not in str(failed.value).encode()
            raw.execute("DELETE FROM secret")
            raw.executemany("INSERT INTO secret VALUES (?, ?, ?, ?, ?, ?)", saved)
    assert len(book.all()) == 1
    house.close()


def test_each_sealing_has_a_nonce_of_its_own(house: House) -> None:
    seal = Seal(KEY, secrets.token_hex)
    made = Secret("ls_1", "A", VALUE, True, 1.0)
    rows = {seal.row(made)[4:] for _ in range(32)}
    assert len({nonce for nonce, _ in rows}) == 32
    house.close()


def test_it_ends_with_its_lease_in_one_transaction(house: House, tmp_path: Path) -> None:
    lease = house.leases.create(house.request()).record
    book = table(house)
    made = Secret(lease.id, "A", VALUE, True, 1.0)
    book.put(made)
    house.ledger.put_lease(replace(lease, state=LeaseState.DIRTY))
    assert book.all() == [made]
    house.ledger.put_lease(replace(lease, state=LeaseState.RELEASED))
    assert book.all() == []
    assert not book.put(made)
    assert book.all() == []
    house.close()


def test_rows_that_go_are_overwritten(house: House, tmp_path: Path) -> None:
    lease = house.leases.create(house.request()).record
    row = Seal(KEY, secrets.token_hex).row(Secret(lease.id, "A", VALUE * 100, True, 1.0))
    sealed = row[5]
    assert isinstance(sealed, bytes)
    with house.ledger.transaction() as connection:
        connection.execute("INSERT INTO secret VALUES (?, ?, ?, ?, ?, ?)", row)
    house.leases.release(None, lease.id)
    house.close()  # the last connection writes the log back into the file
    assert sealed[:64] not in (tmp_path / "ledger.db").read_bytes()
