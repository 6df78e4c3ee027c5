"""Secrets at rest: rows of the table `secret`, sealed with AES-256-GCM.

The key is in a file of its own, so a copy of the ledger alone says nothing. Lease, name and use are
associated data: a row that is moved to another lease or name does not open. A nonce is 96 random
bits, new for each sealing; the key seals far fewer than the 2^32 that those allow. Rows that go are
overwritten (`secure_delete`); what an older page of the file still holds is sealed.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Sequence
from typing import Final

from cryptography.exceptions import InvalidTag
from cryptography.hazmat.primitives.ciphers.aead import AESGCM

from stockade.decide.canonical import canonical
from stockade.ledger.rows import Cell
from stockade.terms.fault import Code, failure
from stockade.terms.secret import Secret

NONCE_BYTES: Final = 12
_PUT: Final = (
    "INSERT OR REPLACE INTO secret (lease_id, name, in_environment, added_at_s, nonce, sealed)"
    " SELECT ?1, ?2, ?3, ?4, ?5, ?6"
    " WHERE EXISTS (SELECT 1 FROM lease WHERE id = ?1 AND state <> 'released')"
)
SELECT: Final = (
    "SELECT lease_id, name, in_environment, added_at_s, nonce, sealed FROM secret"
    " ORDER BY added_at_s, rowid"
)


class Seal:
    """Closes and opens values with one key."""

    def __init__(self, key: bytes, random_hex: Callable[[int], str]) -> None:
        """`key` has 32 bytes; `random_hex(n)` gives n random bytes."""
        self._cipher = AESGCM(key)
        self._random_hex = random_hex

    def row(self, secret: Secret) -> tuple[Cell, ...]:
        nonce = bytes.fromhex(self._random_hex(NONCE_BYTES))
        about = _about(secret.lease_id, secret.name, secret.in_environment)
        return (
            secret.lease_id,
            secret.name,
            int(secret.in_environment),
            secret.added_at_s,
            nonce,
            self._cipher.encrypt(nonce, secret.value, about),
        )

    def secret(self, row: Sequence[Cell]) -> Secret:
        """Raises Failure(storage_unavailable) for a row that this key did not seal."""
        lease_id, name, used, added_at_s, nonce, sealed = row
        try:
            if not (
                isinstance(lease_id, str)
                and isinstance(name, str)
                and isinstance(added_at_s, float)
                and isinstance(nonce, bytes)
                and isinstance(sealed, bytes)
            ):
                raise ValueError("a cell of another kind")
            value = self._cipher.decrypt(nonce, sealed, _about(lease_id, name, bool(used)))
        except (ValueError, InvalidTag) as error:
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                f"the secret {name!r} of lease {lease_id!r} can't be opened with the key there is",
            ) from error
        return Secret(lease_id, name, value, bool(used), added_at_s)


def put(connection: sqlite3.Connection, row: Sequence[Cell]) -> bool:
    connection.execute("PRAGMA secure_delete = ON")
    return connection.execute(_PUT, row).rowcount == 1


def remove(connection: sqlite3.Connection, lease_id: str, name: str) -> bool:
    connection.execute("PRAGMA secure_delete = ON")
    done = connection.execute(
        "DELETE FROM secret WHERE lease_id = ? AND name = ?", (lease_id, name)
    )
    return done.rowcount == 1


def remove_all(connection: sqlite3.Connection, lease_id: str) -> None:
    # Zeroing costs writes of pages; from here on for every table, which are small.
    connection.execute("PRAGMA secure_delete = ON")
    connection.execute("DELETE FROM secret WHERE lease_id = ?", (lease_id,))


def _about(lease_id: str, name: str, in_environment: bool) -> bytes:
    return canonical([lease_id, name, in_environment])
