"""The table `secret` as the flow knows it."""

from __future__ import annotations

from collections.abc import Sequence

from stockade.ledger import secret_rows
from stockade.ledger.secret_rows import Seal
from stockade.ledger.store import SqliteLedger
from stockade.terms.secret import Secret


class SecretTable:
    """Implements `terms.books.SecretBook`. Thread-safe."""

    def __init__(self, ledger: SqliteLedger, seal: Seal) -> None:
        self._ledger = ledger
        self._seal = seal

    def put(self, secret: Secret) -> bool:
        row = self._seal.row(secret)
        with self._ledger.transaction() as connection:
            return secret_rows.put(connection, row)

    def remove(self, lease_id: str, name: str) -> bool:
        with self._ledger.transaction() as connection:
            return secret_rows.remove(connection, lease_id, name)

    def all(self) -> Sequence[Secret]:
        return [self._seal.secret(row) for row in self._ledger.rows(secret_rows.SELECT, ())]
