"""The audit: what a record costs inside a transaction that is there anyway, and verifying many.

The ledger is a real one on a disk, with full fsync. "With a record" and "without" are the same
transaction of one row, in turns. Verification is that of the command line: of the table, and of an
exported file; its limit is for 1,000,000 records, all of which are made here.
"""

from __future__ import annotations

import secrets
import sqlite3
import time
from pathlib import Path
from typing import Final

from benchmarks.measure import Contender, Samples, interleave
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade.decide import signatures
from stockade.decide.chain import line_of
from stockade.edge.cli.audit_files import verify_file
from stockade.edge.client.audit import Report
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import AuditEvent, AuditKind, AuditUsage

RECORDS: Final = 1_000_000
_LIMIT_S: Final = 60.0
_APPENDS: Final = 2000
_BATCH: Final = 1000
_ROW: Final = "UPDATE counter SET value = value + 1 WHERE name = 'uid_slot'"


def measure(world: World) -> list[Figure]:
    place = world.directory(_made)
    seed = secrets.token_bytes(signatures.SEED_BYTES)
    ledger = SqliteLedger(str(place / "ledger.db"))
    table = AuditTable(
        ledger,
        time.time,
        signatures.public_key(seed),
        lambda data: signatures.sign(seed, data),
    )
    try:
        appended = _append(world, ledger, table)
        count = world.size(RECORDS)
        _fill(ledger, table, count)
        export = place / "audit.jsonl"
        with export.open("wb") as out:
            for link in table.read(1):
                out.write(line_of(link) + b"\n")
    finally:
        ledger.close()
    return [
        appended,
        _verify("verify the table", place / "ledger.db", count),
        _verify("verify an exported file", export, count),
    ]


def event() -> AuditEvent:
    """As large as the outcome of a short command."""
    return AuditEvent(
        kind=AuditKind.CALL_OUTCOME,
        at_ms=time.time_ns() // 1_000_000,
        tenant="acme",
        trajectory="run-1",
        lease_id="ls_0011223344556677",
        generation=1,
        turn=7,
        call_id=f"c-{secrets.token_hex(8)}",
        tool="bash_execute",
        request_id=f"rq_{secrets.token_hex(8)}",
        actor="uid 1000",
        arguments='{"command":"make test","timeout_ms":30000}',
        arguments_bytes=42,
        arguments_digest="0" * 64,
        chain=("a" * 32, "b" * 32, "c" * 32),
        plan_digest="d" * 64,
        status="succeeded",
        result_digest="e" * 64,
        usage=AuditUsage(12, 3, 1 << 20, 100),
    )


def _made(path: Path) -> Path:
    path.mkdir()
    return path


def _append(world: World, ledger: SqliteLedger, table: AuditTable) -> Figure:
    def without() -> None:
        with ledger.transaction() as connection:
            connection.execute(_ROW)

    def with_record(connection: sqlite3.Connection) -> None:
        connection.execute(_ROW)
        table.append(connection, event())

    def within() -> None:
        with ledger.transaction() as connection:
            with_record(connection)

    found = interleave(
        [Contender("with a record", within), Contender("without", without)], world.n(_APPENDS)
    )
    ours, theirs = (percentile(found[name].values, 50) for name in ("with a record", "without"))
    added = None if ours is None or theirs is None else round(ours - theirs, 4)
    return figure(
        "a transaction of the ledger",
        "with a record",
        found,
        note="one row and a record of the audit, full fsync, beside the same without the record",
        limits=[
            at_most("a record adds at the median, ms", added, 0.5),
            no_failure(found["with a record"]),
        ],
    )


def _fill(ledger: SqliteLedger, table: AuditTable, count: int) -> None:
    """Whole batches, each with its checkpoint, until there are at least `count` records."""
    while table.state().head.seq < count:
        with ledger.transaction() as connection:
            for _ in range(_BATCH - 1):
                table.append(connection, event())
        table.seal(time.time_ns() // 1_000_000)


def _verify(name: str, path: Path, count: int) -> Figure:
    samples = Samples()
    started = time.perf_counter()
    report: Report = verify_file(path, None, None, frozenset(), ())
    samples.values.append(time.perf_counter() - started)
    if report.flaw is not None or report.count < count:
        samples.fail(f"{report}")
    whole = samples.values[0] / report.count * RECORDS if report.count else None
    return figure(
        name,
        "stockade",
        {"stockade": samples},
        unit="s",
        note=f"{report.count} records with a checkpoint every {_BATCH}, one run",
        limits=[at_most("1,000,000 records, s", whole, _LIMIT_S), no_failure(samples)],
    )
