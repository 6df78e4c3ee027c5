"""The ledger's tables, one forward step per version.

`MIGRATIONS[n]` brings a database of version n to n + 1; `PRAGMA user_version` says where it is and
`application_id` that it is ours. A step and its new version number are one transaction, so a crash
leaves either the old or the new version. There is no way back: a database of a newer version is
refused, because writing it with an older program could lose what that program does not know.
"""

from __future__ import annotations

import sqlite3
from typing import Final

from stockade.terms.fault import Code, failure

# "Stkd": tells a ledger from another program's database.
APPLICATION_ID: Final = 0x53746B64

_V1: Final = (
    """
    CREATE TABLE lease (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        trajectory TEXT NOT NULL,
        name TEXT NOT NULL,
        generation INTEGER NOT NULL,
        state TEXT NOT NULL,
        source BLOB,
        excludes TEXT NOT NULL,
        image TEXT NOT NULL,
        env TEXT NOT NULL,
        uid_base INTEGER NOT NULL,
        capability TEXT NOT NULL,
        token TEXT NOT NULL,
        chain TEXT NOT NULL,
        created_at_s REAL NOT NULL,
        expires_at_s REAL NOT NULL,
        not_after_s REAL NOT NULL,
        workspace_version INTEGER NOT NULL
    ) STRICT
    """,
    "CREATE UNIQUE INDEX lease_name ON lease (tenant, trajectory, name) WHERE state <> 'released'",
    "CREATE UNIQUE INDEX lease_uid ON lease (uid_base) WHERE state <> 'released'",
    "CREATE TABLE counter (name TEXT PRIMARY KEY, value INTEGER NOT NULL) STRICT",
    "INSERT INTO counter (name, value) VALUES ('uid_slot', 0)",
)

# What was spent under a block counts against the block's own id and every id before it, so each
# id has a row of sums. `not_after_s` is the block's end: a row is of no use after it.
_V2: Final = (
    """
    CREATE TABLE spend (
        block TEXT PRIMARY KEY,
        calls INTEGER NOT NULL,
        cost_micro INTEGER NOT NULL,
        cpu_ms INTEGER NOT NULL,
        egress_bytes INTEGER NOT NULL,
        not_after_s REAL NOT NULL
    ) STRICT
    """,
    """
    CREATE TABLE approval (
        id TEXT PRIMARY KEY,
        tenant TEXT NOT NULL,
        lease_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        arguments TEXT NOT NULL,
        state TEXT NOT NULL,
        asked_at_s REAL NOT NULL,
        decided_at_s REAL,
        decided_by TEXT,
        reason TEXT
    ) STRICT
    """,
)

# The id of a block whose whole subtree is refused. `not_after_s` is the block's end where it is
# known: a row is of no use after it.
_V3: Final = (
    """
    CREATE TABLE revocation (
        block TEXT PRIMARY KEY,
        revoked_at_s REAL NOT NULL,
        revoked_by TEXT NOT NULL,
        reason TEXT NOT NULL,
        not_after_s REAL
    ) STRICT
    """,
)

# `shares` names the lease whose workspace this one works in, and whose user ids it therefore has;
# `forked_from` the one it began as a copy of.
_V4: Final = (
    "ALTER TABLE lease ADD COLUMN shares TEXT",
    "ALTER TABLE lease ADD COLUMN forked_from TEXT",
    "CREATE INDEX lease_shares ON lease (shares) WHERE shares IS NOT NULL",
    "DROP INDEX lease_uid",
    "CREATE UNIQUE INDEX lease_uid ON lease (uid_base)"
    " WHERE state <> 'released' AND shares IS NULL",
)

# The record under a call's name. `sequence` orders them; times of the wall clock may step.
# `forget_at_s` is set once the claim's lease is released.
_V5: Final = (
    """
    CREATE TABLE claim (
        sequence INTEGER PRIMARY KEY,
        id TEXT NOT NULL UNIQUE,
        key TEXT NOT NULL,
        state TEXT NOT NULL,
        tenant TEXT NOT NULL,
        trajectory TEXT NOT NULL,
        turn INTEGER,
        call_id TEXT NOT NULL,
        tool TEXT NOT NULL,
        arguments TEXT NOT NULL,
        lease_id TEXT NOT NULL,
        generation INTEGER NOT NULL,
        workspace_version INTEGER NOT NULL,
        image TEXT NOT NULL,
        plan_digest TEXT,
        chain TEXT NOT NULL,
        request_id TEXT NOT NULL,
        boot TEXT NOT NULL,
        until_boot_s REAL NOT NULL,
        created_at_s REAL NOT NULL,
        wall_limit_ms INTEGER,
        sandbox TEXT,
        guest_call TEXT,
        foreseen TEXT,
        settled_at_s REAL,
        settled_by TEXT,
        reason TEXT,
        result TEXT,
        forget_at_s REAL
    ) STRICT
    """,
    "CREATE INDEX claim_open ON claim (sequence) WHERE state IN ('in_flight', 'in_doubt')",
    "CREATE INDEX claim_lease ON claim (lease_id, sequence)",
    "CREATE INDEX claim_forget ON claim (forget_at_s) WHERE forget_at_s IS NOT NULL",
    # Released, and the claims do not say yet until when they are kept.
    "CREATE TABLE released_lease (lease_id TEXT PRIMARY KEY) STRICT",
)

# Records of the audit, as they are hashed. What they are looked up by is computed from their text,
# so that nothing beside the text can say something else. `audit_exported` is the last record of
# which a copy is somewhere else: the triggers let only those go. They keep mistakes out; what keeps
# an attacker's changes from passing unseen is the chain (decide/chain.py).
_V6: Final = (
    "CREATE TABLE audit (seq INTEGER PRIMARY KEY, hash BLOB NOT NULL, body TEXT NOT NULL) STRICT",
    "CREATE INDEX audit_call ON audit"
    " (coalesce(json_extract(body, '$.call_id'), json_extract(body, '$.request_id')))"
    " WHERE json_extract(body, '$.request_id') IS NOT NULL",
    "CREATE INDEX audit_checkpoint ON audit (seq)"
    " WHERE json_extract(body, '$.kind') = 'checkpoint'",
    "INSERT INTO counter (name, value) VALUES ('audit_exported', 0)",
    """
    CREATE TRIGGER audit_no_update BEFORE UPDATE ON audit
    BEGIN SELECT RAISE(ABORT, 'a record of the audit is never changed'); END
    """,
    """
    CREATE TRIGGER audit_no_delete BEFORE DELETE ON audit
    WHEN old.seq > (SELECT value FROM counter WHERE name = 'audit_exported')
    BEGIN SELECT RAISE(ABORT, 'a record of the audit is kept until it is exported'); END
    """,
)

# `sealed` is the encrypted value; it ends with its lease.
_V7: Final = (
    """
    CREATE TABLE secret (
        lease_id TEXT NOT NULL,
        name TEXT NOT NULL,
        in_environment INTEGER NOT NULL,
        added_at_s REAL NOT NULL,
        nonce BLOB NOT NULL,
        sealed BLOB NOT NULL,
        PRIMARY KEY (lease_id, name)
    ) STRICT
    """,
)

# A lease ends by the clock of the boot `boot`. No boot has the name of an old row's.
_V8: Final = (
    "ALTER TABLE lease ADD COLUMN boot TEXT NOT NULL DEFAULT ''",
    "ALTER TABLE lease ADD COLUMN ends_boot_s REAL NOT NULL DEFAULT 0",
)

# How a command's processor time is bounded, and how much of what its budgets have spent is its own.
_V9: Final = (
    "ALTER TABLE claim ADD COLUMN metered TEXT",
    "ALTER TABLE claim ADD COLUMN drawn_ms INTEGER NOT NULL DEFAULT 0",
)

# Whether a lease was released before its end had come: its time alone tells no longer, once that is
# past too.
_V10: Final = ("ALTER TABLE lease ADD COLUMN given_up INTEGER NOT NULL DEFAULT 0",)

MIGRATIONS: Final[tuple[tuple[str, ...], ...]] = (
    _V1,
    _V2,
    _V3,
    _V4,
    _V5,
    _V6,
    _V7,
    _V8,
    _V9,
    _V10,
)
CURRENT: Final = len(MIGRATIONS)


def migrate(connection: sqlite3.Connection) -> None:
    """Bring the database up to `CURRENT`. Raises Failure(storage_unavailable) if it belongs to
    another program or a newer version, sqlite3.Error if it can't be read or written."""
    version = _pragma(connection, "user_version")
    owner = _pragma(connection, "application_id")
    if version == 0 and owner == 0:
        tables = connection.execute("SELECT count(*) FROM sqlite_schema").fetchone()[0]
        if tables:
            raise failure(Code.STORAGE_UNAVAILABLE, "the ledger file is another program's database")
    elif owner != APPLICATION_ID:
        raise failure(Code.STORAGE_UNAVAILABLE, "the ledger file is another program's database")
    if version > CURRENT:
        raise failure(
            Code.STORAGE_UNAVAILABLE,
            f"the ledger has version {version}; this program knows versions up to {CURRENT}: "
            "use the newer program, or another state directory",
            version=version,
            known=CURRENT,
        )
    for number in range(version, CURRENT):
        connection.execute("BEGIN IMMEDIATE")
        try:
            for statement in MIGRATIONS[number]:
                connection.execute(statement)
            connection.execute(f"PRAGMA application_id = {APPLICATION_ID}")
            connection.execute(f"PRAGMA user_version = {number + 1}")
            connection.execute("COMMIT")
        except sqlite3.Error:
            connection.execute("ROLLBACK")
            raise


def _pragma(connection: sqlite3.Connection, name: str) -> int:
    return int(connection.execute(f"PRAGMA {name}").fetchone()[0])
