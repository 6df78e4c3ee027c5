"""The durable state of one installation: a SQLite file in WAL mode.

One connection writes, guarded by a lock, every method one transaction with `synchronous = FULL`: a
lease that was answered for is there after a power cut (0.24 ms a transaction). One connection only
reads, under a lock of its own, so that a call that looks its lease up does not wait for another
lease's fsync; WAL lets it see every transaction that has been committed before. Claims, of which
there are two for each call, share commits (`commits`).

The log is checkpointed by `tidy`, once a second, and not by whichever commit fills it: that one
would wait for it. So the log begins anew again and again and stays short, and nearly every commit
writes over old blocks (0.4 ms; one that makes the file longer commits in ext4, too: 2.7 ms).

The partial unique indexes over leases that are not released are what makes `create` idempotent and
keeps two leases from sharing a range of user ids, whatever the flow above does.

sqlite3.Error is translated here, once, to Failure(storage_unavailable).
"""

from __future__ import annotations

import math
import os
import sqlite3
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import Final, TypeVar

from stockade.ledger import revocations, secret_rows
from stockade.ledger.commits import Commits, Follower
from stockade.ledger.migrations import migrate
from stockade.ledger.rows import COLUMNS, Cell, from_row, to_row
from stockade.terms.authority import Revocation
from stockade.terms.fault import Code, failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.moment import Moment

T = TypeVar("T")

BUSY_MS: Final = 5000
# Where `tidy` does not keep up SQLite checkpoints by itself: 64 MiB of log.
_LOG_PAGES: Final = 16_384
# Above this much log a checkpoint that was overtaken by commits is finished under the lock.
_LONG_LOG_PAGES: Final = 1000
# A call may go on after its token's end, and the host's clock may be set back; neither may find
# that what was spent, or that a block is revoked, is forgotten.
KEPT_AFTER_END_S: Final = 24 * 3600
# Where the wall clock stood at a boot's begin, in seconds: the earliest that it ever said.
_BOOT: Final = "wall_at_boot "
_EARLIEST: Final = (
    "INSERT INTO counter (name, value) VALUES (?, ?)"
    " ON CONFLICT (name) DO UPDATE SET value = min(value, excluded.value) RETURNING value"
)
# Statements are put together from column names of this package; values are always bound.
_NAMES: Final = ", ".join(COLUMNS)
_VALUES: Final = ", ".join(f":{name}" for name in COLUMNS)
_CHANGES: Final = ", ".join(f"{name} = :{name}" for name in COLUMNS if name != "id")
_SELECT: Final = f"SELECT {_NAMES} FROM lease"  # noqa: S608
_INSERT: Final = f"INSERT INTO lease ({_NAMES}) VALUES ({_VALUES})"  # noqa: S608
_UPDATE: Final = f"UPDATE lease SET {_CHANGES} WHERE id = :id"  # noqa: S608
# For the claims of its calls (claim_table), which outlive it.
_RELEASED: Final = "INSERT OR IGNORE INTO released_lease (lease_id) VALUES (?)"


# Called in the transaction that writes a lease, with the record before (None: a new one) and after.
LeaseWatch = Callable[[sqlite3.Connection, LeaseRecord | None, LeaseRecord], None]


class SqliteLedger:
    """Implements `terms.ports.Ledger`. Thread-safe.

    Every call asks for its lease twice, so records that were read by their id or written are kept;
    they are right because the state directory's lock makes this process the only writer.
    """

    def __init__(self, path: str) -> None:
        """Open or make the ledger at `path` (mode 0600: it holds tokens). Raises
        Failure(storage_unavailable) for a damaged, foreign or newer file."""
        self._path = path
        self._write_lock = threading.RLock()
        self._read_lock = threading.Lock()
        self._known: dict[str, LeaseRecord] = {}
        self._forgotten_before_s = -math.inf
        self._on_lease: LeaseWatch = lambda connection, old, new: None
        with _translated():
            os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))
            with ExitStack() as opened:
                self._writer = _open(path)
                opened.callback(self._writer.close)
                _check(self._writer)
                self._reader = _open(path)
                opened.callback(self._reader.close)
                self._reader.execute("PRAGMA query_only = ON")
                self._checkpointer = _open(path)
                opened.pop_all()
        self._commits = Commits(self._writer, self._write_lock)

    def watch(self, lease: LeaseWatch, follower: Follower) -> None:
        """For the audit: `lease` writes its record with a lease's change."""
        self._on_lease = lease
        self._commits.follower = follower

    def add_lease(self, record: LeaseRecord) -> None:
        """Raises Failure(key_reused) if its id, name or user ids belong to another lease."""
        with self._write_lock:
            with self.transaction() as connection:
                try:
                    connection.execute(_INSERT, to_row(record))
                except sqlite3.IntegrityError as error:
                    raise failure(
                        Code.KEY_REUSED,
                        f"a lease {record.tenant}/{record.trajectory} named {record.name} exists",
                    ) from error
                self._on_lease(connection, None, record)
            self._remember(record)

    def put_lease(self, record: LeaseRecord) -> None:
        """Replace the row of `record.id`. Raises Failure(internal) if there is none."""
        with self._write_lock:
            old = self.lease(record.id)
            with self.transaction() as connection:
                if old is None or connection.execute(_UPDATE, to_row(record)).rowcount != 1:
                    raise failure(Code.INTERNAL, f"lease {record.id} is not in the ledger")
                if record.state is LeaseState.RELEASED:
                    connection.execute(_RELEASED, (record.id,))
                    # Not one moment longer than the lease, whatever happens after it.
                    secret_rows.remove_all(connection, record.id)
                self._on_lease(connection, old, record)
            self._remember(record)

    def lease(self, lease_id: str) -> LeaseRecord | None:
        known = self._known.get(lease_id)
        if known is not None:
            return known
        # No write in between, which would be overtaken by what was read before it.
        with self._write_lock:
            found = self._read(f"{_SELECT} WHERE id = ?", (lease_id,))
            if found:
                self._remember(found[0])
        return found[0] if found else None

    def find_lease(self, tenant: str, trajectory: str, name: str) -> LeaseRecord | None:
        found = self._read(
            f"{_SELECT} WHERE tenant = ? AND trajectory = ? AND name = ? AND state <> 'released'",
            (tenant, trajectory, name),
        )
        return found[0] if found else None

    def leases(self, tenant: str | None = None) -> Sequence[LeaseRecord]:
        """Every lease that is not released, oldest first; those of `tenant`, or of all."""
        return self._read(
            f"{_SELECT} WHERE state <> 'released' AND (?1 IS NULL OR tenant = ?1)"
            " ORDER BY created_at_s, rowid",
            (tenant,),
        )

    def sharing(self, lease_id: str) -> Sequence[LeaseRecord]:
        """Every lease that shares the workspace with this one and is not released, oldest first."""
        return self._read(
            f"{_SELECT} WHERE shares = ? AND state <> 'released' ORDER BY created_at_s, rowid",
            (lease_id,),
        )

    def next_uid_slot(self) -> int:
        """0, 1, 2, …: never the same twice, also after a crash."""
        with self.transaction() as connection:
            row = connection.execute(
                "UPDATE counter SET value = value + 1 WHERE name = 'uid_slot' RETURNING value - 1"
            ).fetchone()
            return int(row[0])

    def add_revocation(self, made: Revocation, ended_before_s: float) -> None:
        """Idempotent. Drops the rows of blocks that ended before `ended_before_s`."""
        with self.transaction() as connection:
            revocations.add(connection, made, ended_before_s)

    def revocations(self) -> Sequence[Revocation]:
        """Every block that is revoked, oldest first."""
        with self._read_lock, _translated():
            return revocations.read(self._reader)

    @property
    def forgotten_before_s(self) -> float:
        """Blocks that ended before this are forgotten: a day before the last `sweep`, by the wall
        clock as far as it went with the boot's own. A clock that was set forward and back again
        must not find that a block's sums, or its revocation, are gone while its tokens hold."""
        return self._forgotten_before_s

    def sweep(self, now: Moment) -> None:
        """Forget sums of blocks that ended long before, and approvals of leases that ended."""
        name, at_boot = f"{_BOOT}{now.boot}", math.floor(now.wall_s - now.boot_s)
        with self.transaction() as connection:
            [earliest] = connection.execute(_EARLIEST, (name, at_boot)).fetchone()
            connection.execute(
                "DELETE FROM counter WHERE name GLOB ? AND name <> ?", (f"{_BOOT}*", name)
            )
            before = min(now.wall_s, earliest + now.boot_s) - KEPT_AFTER_END_S
            self._forgotten_before_s = before
            connection.execute("DELETE FROM spend WHERE not_after_s <= ?", (before,))
            connection.execute(
                "DELETE FROM approval WHERE lease_id NOT IN"
                " (SELECT id FROM lease WHERE state <> 'released')"
            )

    def tidy(self) -> None:
        """Write what waits, and let the log begin anew. Called once a second, by one thread."""
        with _translated():
            try:
                self._commits.flush()
            finally:  # on a full disk this makes the room that the next commit needs
                self._checkpoint()

    def _checkpoint(self) -> None:
        checkpoint = "PRAGMA wal_checkpoint(PASSIVE)"
        log = self._checkpointer.execute(checkpoint).fetchone()[1]
        if log > _LONG_LOG_PAGES:
            with self._write_lock:
                self._writer.execute(checkpoint)

    def flush(self) -> None:
        """Write what waits."""
        with _translated():
            self._commits.flush()

    def probe(self) -> None:
        """A write like those of calls, synced. Raises Failure(storage_unavailable)."""
        with self.transaction() as connection:
            # It has to change something: SQLite writes no page for an update that changes none.
            connection.execute(
                "INSERT INTO counter (name, value) VALUES ('probe', 1)"
                " ON CONFLICT (name) DO UPDATE SET value = value + 1"
            )

    def close(self) -> None:
        with self._write_lock, self._read_lock, _translated():
            self._commits.flush()
            self._checkpointer.close()
            self._reader.close()
            self._writer.close()

    def commit(self, write: Callable[[sqlite3.Connection], T], *, durable: bool = True) -> T:
        """What `write` gives, once it is committed together with those of other threads;
        power-safe if `durable`. Raises what it raises, and Failure(storage_unavailable)."""
        with _translated():
            return self._commits.run(write, durable=durable)

    def commit_later(self, write: Callable[[sqlite3.Connection], object]) -> None:
        """Some time soon: with another commit, at the next `tidy`, or at `close`."""
        with _translated():
            self._commits.later(write)

    def _remember(self, record: LeaseRecord) -> None:
        """Released leases are not asked for again."""
        if record.state is LeaseState.RELEASED:
            self._known.pop(record.id, None)
        else:
            self._known[record.id] = record

    def rows(self, statement: str, values: Sequence[Cell]) -> list[tuple[Cell, ...]]:
        """What a SELECT gives. Raises Failure(storage_unavailable)."""
        with self._read_lock, _translated():
            return self._reader.execute(statement, values).fetchall()

    @contextmanager
    def connection(self) -> Iterator[sqlite3.Connection]:
        """One of its own that only reads: what takes long holds up nobody. Raises
        Failure(storage_unavailable)."""
        with _translated():
            made = _open(self._path)
            try:
                made.execute("PRAGMA query_only = ON")
                yield made
            finally:
                made.close()

    def _read(self, statement: str, values: Sequence[Cell]) -> list[LeaseRecord]:
        return [from_row(row) for row in self.rows(statement, values)]

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """For the tables of this package's other modules, too. Raises Failure(storage_unavailable)."""
        with self._write_lock, _translated():
            self._writer.execute("BEGIN IMMEDIATE")
            committed = False
            try:
                yield self._writer
                self._writer.execute("COMMIT")
                committed = True
            except BaseException:
                # A full disk can end the transaction by itself; there is none to roll back then.
                if self._writer.in_transaction:
                    self._writer.execute("ROLLBACK")
                raise
            finally:
                self._commits.follower.ended(committed)


def _open(path: str) -> sqlite3.Connection:
    # isolation_level None: transactions begin and end where this module says so.
    connection = sqlite3.connect(path, isolation_level=None, check_same_thread=False)
    try:
        connection.execute(f"PRAGMA busy_timeout = {BUSY_MS}")
        connection.execute("PRAGMA synchronous = FULL")
        connection.execute(f"PRAGMA wal_autocheckpoint = {_LOG_PAGES}")
    except BaseException:
        connection.close()
        raise
    return connection


def _check(connection: sqlite3.Connection) -> None:
    """Refuse a damaged file before anything is written to it, then bring it up to date."""
    # All tables but the audit: a million records are 1 s of processor time and 1 GB to
    # read, nothing is decided by it, and its readers verify it.
    names = connection.execute(
        "SELECT name FROM sqlite_schema WHERE type = 'table' AND name <> 'audit'"
    ).fetchall()
    for (name,) in names:
        damage = str(connection.execute(f'PRAGMA quick_check("{name}")').fetchone()[0])
        if damage != "ok":
            raise failure(Code.STORAGE_UNAVAILABLE, f"the ledger file is damaged: {damage}")
    migrate(connection)
    mode = str(connection.execute("PRAGMA journal_mode = WAL").fetchone()[0])
    if mode != "wal":
        raise failure(
            Code.STORAGE_UNAVAILABLE, f"the state directory's file system allows no WAL ({mode})"
        )


@contextmanager
def _translated() -> Iterator[None]:
    try:
        yield
    except (sqlite3.Error, OSError) as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"the ledger can't be used: {error}") from error
