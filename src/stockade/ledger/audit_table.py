"""The audit's records: the table `audit`, to which rows are only ever added.

`append` adds a record within the caller's transaction, so that a claim and its intent, a settlement
and its outcome, a lease and its change of state are on the disk together or not at all. The end of
the chain is kept in memory: who changes the file under a running daemon can't make the next record
follow the change. It moves on only when the transaction is committed; after a rollback the next
record takes the same place, so a crash or a failure never leaves a gap.

Changes of leases are recorded here, from the records before and after, because then no path of the
flow can forget one. Who caused them is what `acting` says of the thread.
"""

from __future__ import annotations

import json
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

from pydantic import ValidationError

from stockade.decide.chain import GENESIS, body_of, checkpoint_body, hash_of, make_checkpoint
from stockade.ledger.commits import Follower
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import (
    Acting,
    AuditEvent,
    AuditKind,
    AuditState,
    Checkpoint,
    Head,
    Link,
)
from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord, LeaseState

# A piece that is dropped in one transaction: a few milliseconds.
DROP_RECORDS: Final = 5000
_SHOWN: Final = 1000
_READ_RECORDS: Final = 1000
_NOBODY: Final = Acting(actor=None)
_INSERT: Final = "INSERT INTO audit (seq, hash, body) VALUES (?, ?, ?)"
_IS_CHECKPOINT: Final = "json_extract(body, '$.kind') = 'checkpoint'"
_ANCHOR: Final = f"SELECT max(seq) FROM audit WHERE {_IS_CHECKPOINT} AND seq <= ?"  # noqa: S608
_SINCE: Final = (
    "SELECT seq FROM audit WHERE json_extract(body, '$.at_ms') >= ? ORDER BY seq LIMIT 1"
)
_CALL: Final = (
    "json_extract(body, '$.request_id') IS NOT NULL AND"
    " coalesce(json_extract(body, '$.call_id'), json_extract(body, '$.request_id')) = ?"
)


class AuditTable:
    """Implements `terms.audit.AuditLog`. Thread-safe."""

    def __init__(
        self,
        ledger: SqliteLedger,
        clock: Callable[[], float],
        key: bytes,
        sign: Callable[[bytes], bytes],
        keep: Callable[[Checkpoint], None] = lambda made: None,
    ) -> None:
        """`sign` signs with the key whose public part is `key`. `keep` puts a checkpoint that is
        in the table somewhere else as well."""
        self._ledger = ledger
        self._clock = clock
        self._key = key
        self._sign = sign
        self._keep = keep
        self._thread = threading.local()
        row = ledger.rows("SELECT seq, hash FROM audit ORDER BY seq DESC LIMIT 1", ())
        self._head = Head(_whole(row[0][0]), _bytes(row[0][1])) if row else Head(0, GENESIS)
        self._sealed = self._newest_checkpoint()
        self._next: Head | None = None
        self._closing = self._closed = False
        ledger.watch(self._lease_changed, Follower(lambda: self._next, self._back, self._ended))

    def append(self, connection: sqlite3.Connection, event: AuditEvent) -> Head:
        """Add a record in the ledger's transaction of which `connection` is. Gives its place,
        which is good once the transaction is committed."""
        end = self._next or self._head
        return self._put(connection, end, body_of(event, end.seq + 1))

    def write(self, event: AuditEvent) -> Head:
        return self._ledger.commit(lambda connection: self.append(connection, event))

    def write_signed(self, event: AuditEvent, at_ms: int, *, last: bool = False) -> Checkpoint:
        self._ledger.flush()  # what waits to be written is older
        with self._ledger.transaction() as connection:
            made = self._signed(connection, self.append(connection, event), at_ms)
            self._closing = last
        self._sealed = made
        self._keep(made)
        return made

    def seal(self, at_ms: int) -> Checkpoint | None:
        self._ledger.flush()  # what waits to be written is older than the signature
        with self._ledger.transaction() as connection:
            end = self._head
            if end.seq == 0 or self.unsealed() == 0:
                return None
            made = self._signed(connection, end, at_ms)
        self._sealed = made
        self._keep(made)
        return made

    def unsealed(self) -> int:
        sealed = 0 if self._sealed is None else self._sealed.seq + 1
        return self._head.seq - sealed

    @contextmanager
    def acting(self, who: Acting) -> Iterator[None]:
        before = self._acting
        self._thread.who = who
        try:
            yield
        finally:
            self._thread.who = before

    def exported(self, through: int, event: AuditEvent) -> None:
        with self._ledger.transaction() as connection:
            if not 1 <= through <= self._head.seq:
                raise failure(
                    Code.INVALID_ARGUMENT, f"there is no record {through}", argument="through"
                )
            connection.execute(
                "UPDATE counter SET value = max(value, ?) WHERE name = 'audit_exported'", (through,)
            )
            self.append(connection, event)

    def drop(self, older_than_ms: int, at_ms: int) -> int:
        # The checkpoint is what stays: it signs all that goes.
        found = self._ledger.rows(
            f"SELECT seq FROM audit WHERE {_IS_CHECKPOINT} AND seq - 1 <="  # noqa: S608
            " (SELECT value FROM counter WHERE name = 'audit_exported')"
            " AND json_extract(body, '$.at_ms') < ?"
            " AND seq > (SELECT min(seq) FROM audit) ORDER BY seq LIMIT ?",
            (older_than_ms, DROP_RECORDS),
        )
        seqs = [_whole(row[0]) for row in found]
        if not seqs:
            return 0
        first = self.state().first
        keep_from = max([s for s in seqs if s - first <= DROP_RECORDS] or seqs[:1])
        with self._ledger.transaction() as connection:
            gone = connection.execute("DELETE FROM audit WHERE seq < ?", (keep_from,)).rowcount
            detail = {"through": keep_from - 1, "records": gone}
            event = AuditEvent(AuditKind.AUDIT_DROPPED, at_ms, detail=detail)
            # At once: unsigned, it does not say to a reader why the beginning is missing.
            made = self._signed(connection, self.append(connection, event), at_ms)
        self._sealed = made
        self._keep(made)
        return gone

    def state(self) -> AuditState:
        first = self._ledger.rows("SELECT min(seq) FROM audit", ())[0][0]
        exported = self._ledger.rows("SELECT value FROM counter WHERE name = 'audit_exported'", ())[
            0
        ][0]
        return AuditState(
            first=0 if first is None else _whole(first),
            head=self._head,
            exported=_whole(exported),
            sealed=self._sealed,
        )

    def read(self, first: int) -> Iterator[Link]:
        with self._ledger.connection() as connection:
            yield from links(connection, first, self._head.seq)

    def anchor(self, seq: int) -> int:
        return _anchor(self._ledger.rows(_ANCHOR, (seq,))[0][0])

    def since(self, at_ms: int) -> int:
        row = self._ledger.rows(_SINCE, (at_ms,))
        return _whole(row[0][0]) if row else self._head.seq + 1

    def of_call(self, call: str, tenant: str | None = None) -> Sequence[Link]:
        mine = "" if tenant is None else " AND json_extract(body, '$.tenant') = ?"
        rows = self._ledger.rows(
            f"SELECT seq FROM audit WHERE {_CALL}{mine} ORDER BY seq DESC LIMIT {_SHOWN}",  # noqa: S608
            (call,) if tenant is None else (call, tenant),
        )
        seqs = [_whole(row[0]) for row in reversed(rows)]
        with self._ledger.connection() as connection:
            return [link for seq in seqs for link in links(connection, seq, seq)]

    @property
    def _acting(self) -> Acting:
        found: Acting = getattr(self._thread, "who", _NOBODY)
        return found

    def _signed(self, connection: sqlite3.Connection, end: Head, at_ms: int) -> Checkpoint:
        made = make_checkpoint(end.seq, end.hash, at_ms, self._key, self._sign)
        self._put(connection, end, checkpoint_body(made))
        return made

    def _put(self, connection: sqlite3.Connection, end: Head, body: str) -> Head:
        if self._closed:
            raise failure(Code.STORAGE_UNAVAILABLE, "the audit is closed: the daemon has stopped")
        made = Head(end.seq + 1, hash_of(end.hash, body))
        connection.execute(_INSERT, (made.seq, made.hash, body))
        self._next = made
        return made

    def _back(self, mark: object) -> None:
        self._next = mark if isinstance(mark, Head) else None

    def _ended(self, committed: bool) -> None:
        if committed and self._next is not None:
            self._head = self._next
        self._next = None
        # Before another transaction can begin.
        self._closed = self._closed or (committed and self._closing)
        self._closing = False

    def _lease_changed(
        self, connection: sqlite3.Connection, old: LeaseRecord | None, new: LeaseRecord
    ) -> None:
        now = self._clock()
        kind = _change(old, new, now, self._acting.actor is not None)
        if kind is None:
            return
        who = self._acting
        detail: dict[str, int | str] = {
            "name": new.name,
            "expires_at_ms": int(new.expires_at_s * 1000),
            "workspace_version": new.workspace_version,
        }
        if new.shares is not None:
            detail["shares"] = new.shares
        if new.forked_from is not None:
            detail["forked_from"] = new.forked_from
        self.append(
            connection,
            AuditEvent(
                kind=kind,
                at_ms=int(now * 1000),
                tenant=new.tenant,
                trajectory=new.trajectory,
                lease_id=new.id,
                generation=new.generation,
                request_id=who.request_id,
                actor=who.actor,
                client=who.client,
                model=who.model,
                chain=new.chain,
                detail=detail,
            ),
        )

    def _newest_checkpoint(self) -> Checkpoint | None:
        rows = self._ledger.rows(
            f"SELECT body FROM audit WHERE {_IS_CHECKPOINT} ORDER BY seq DESC LIMIT 1",  # noqa: S608
            (),
        )
        if not rows:
            return None
        try:
            return Checkpoint.model_validate(json.loads(str(rows[0][0]))["checkpoint"])
        except (ValueError, KeyError, TypeError, ValidationError) as error:
            raise failure(
                Code.STORAGE_UNAVAILABLE, "the audit's last checkpoint can't be read"
            ) from error


def links(connection: sqlite3.Connection, first: int, last: int = MAX_INTEGER) -> Iterator[Link]:
    """Rows `first` to `last` with the hash that each follows, as the file has them, for whatever
    they are worth. A few at a time: a slow reader must not keep the write-ahead log from being
    emptied."""
    prev: bytes | None = None
    while True:
        rows = connection.execute(
            "SELECT seq, hash, body FROM audit WHERE seq BETWEEN ? AND ? ORDER BY seq LIMIT ?",
            (first, last, _READ_RECORDS),
        ).fetchall()
        for seq, digest, body in rows:
            if prev is None:
                prev = _before(connection, seq, body)
            link = Link(_whole(seq), prev, _bytes(digest), str(body))
            yield link
            prev = link.hash
            first = link.seq + 1
        if len(rows) < _READ_RECORDS:
            return


def first_of(connection: sqlite3.Connection, since: int | None, since_ms: int | None) -> int:
    """The checkpoint at or before record `since`, or before the first one that is as young as
    `since_ms`."""
    if since is None:
        row = connection.execute(_SINCE, (since_ms,)).fetchone()
        since = MAX_INTEGER if row is None else _whole(row[0])
    return _anchor(connection.execute(_ANCHOR, (since,)).fetchone()[0])


def _anchor(cell: object) -> int:
    return 1 if cell is None else _whole(cell)


def _before(connection: sqlite3.Connection, seq: int, body: object) -> bytes:
    """The hash that the first row of a reading follows: that of the row before it, or what it
    signs, if it is the checkpoint up to which rows were dropped."""
    row = connection.execute("SELECT hash FROM audit WHERE seq = ?", (seq - 1,)).fetchone()
    if row is not None:
        return _bytes(row[0])
    try:
        return bytes.fromhex(json.loads(str(body))["checkpoint"]["hash"]) if seq > 1 else GENESIS
    except (ValueError, KeyError, TypeError):
        return GENESIS


def _change(
    old: LeaseRecord | None, new: LeaseRecord, now: float, acting: bool
) -> AuditKind | None:
    """What a lease's new record says of it; None where nothing of interest to others changed."""
    if old is None or old.state is LeaseState.RELEASED:
        return None
    if new.state is LeaseState.RELEASED:
        over = new.expires_at_s <= now or not acting
        return AuditKind.LEASE_EXPIRED if over else AuditKind.LEASE_RELEASED
    if old.state is LeaseState.CREATING and new.state is LeaseState.READY:
        return AuditKind.LEASE_CREATED
    if new.generation != old.generation:
        return AuditKind.LEASE_TAKEN_OVER
    if new.workspace_version != old.workspace_version:
        return AuditKind.LEASE_RESET
    if new.state is old.state and new.expires_at_s != old.expires_at_s:
        return AuditKind.LEASE_RENEWED
    return None


def _whole(cell: object) -> int:
    if not isinstance(cell, int):
        raise failure(Code.STORAGE_UNAVAILABLE, "the ledger's table of the audit can't be read")
    return cell


def _bytes(cell: object) -> bytes:
    if not isinstance(cell, bytes):
        raise failure(Code.STORAGE_UNAVAILABLE, "the ledger's table of the audit can't be read")
    return cell
