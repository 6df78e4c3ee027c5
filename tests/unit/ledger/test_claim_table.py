"""Claims as rows, and writes that share a commit."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.ledger import commits
from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import EditOutcome
from stockade.terms.spend import Budget, Metered
from tests.grants import NO_BUDGET

METERED = Metered((Budget("a", NO_BUDGET, 5), Budget("b", NO_BUDGET, 4)), 2000, 70, 1500)
EDIT = EditOutcome("/workspace/f", 2, "0" * 32, "1" * 32, "-é\n+x\n", True)


def claim(number: int = 1, **changes: object) -> ClaimRecord:
    record = ClaimRecord(
        id=f"cl_{number:032x}",
        key="k" * 64,
        state=ClaimState.IN_FLIGHT,
        tenant="acme",
        trajectory="run/1",
        turn=None,
        call_id="c1",
        tool="file_edit",
        arguments='{"path":"é"}',
        lease_id="ls_0000000000000001",
        generation=1,
        workspace_version=1,
        image="host",
        plan_digest=None,
        chain=("a", "b"),
        request_id=f"rq_{number}",
        boot="boot-1",
        until_boot_s=12.5,
        created_at_s=1000.0,
    )
    return replace(record, **changes)  # type: ignore[arg-type]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    made = SqliteLedger(str(tmp_path / "ledger.db"))
    yield made
    made.close()


@pytest.fixture
def table(ledger: SqliteLedger) -> ClaimTable:
    return ClaimTable(ledger)


def settle(
    table: ClaimTable, record: ClaimRecord, state: ClaimState = ClaimState.COMPLETED
) -> bool:
    done = table.settle(record.id, state, at_s=1001.0, by="daemon", result="{}", reason="why")
    return done is not None


def test_a_claim_is_read_as_it_was_written(table: ClaimTable) -> None:
    full = claim(
        turn=3,
        plan_digest="d",
        wall_limit_ms=5,
        sandbox="sb",
        guest_call="7",
        foreseen=EDIT,
        settled_at_s=1.0,
        settled_by="uid 1",
        reason="r",
        result="{}",
        metered=METERED,
        drawn_ms=250,
    )
    for number, record in enumerate([claim(1), replace(full, id="cl_" + "f" * 32)]):
        table.begin(record)
        assert table.get(record.id) == record, number
    assert table.get("cl_" + "0" * 32) is None


def test_a_claim_is_begun_once_unless_nothing_was_executed(table: ClaimTable) -> None:
    first, again = claim(), claim(request_id="rq_other", arguments="{}")
    table.begin(first)
    table.begin(replace(first, foreseen=EDIT))  # the same request goes on
    for write in (table.begin, table.put):
        with pytest.raises(Failure) as caught:
            write(again)
        assert caught.value.fault.code is Code.INTERNAL
    assert settle(table, first, ClaimState.NOT_EXECUTED)
    table.begin(again)
    assert table.get(first.id) == again


def test_a_settled_claim_stays_as_it_is(table: ClaimTable) -> None:
    table.begin(claim())
    assert settle(table, claim(), ClaimState.IN_DOUBT)
    assert settle(table, claim())
    assert not settle(table, claim(), ClaimState.NOT_EXECUTED)
    found = table.get(claim().id)
    assert found is not None
    assert (found.state, found.result, found.reason) == (ClaimState.COMPLETED, "{}", "why")


def test_where_a_command_was_given_to(table: ClaimTable) -> None:
    table.begin(claim())
    table.started(claim().id, "sb_1", "9")
    found = table.get(claim().id)
    assert found is not None
    assert (found.sandbox, found.guest_call) == ("sb_1", "9")


def test_lists_are_by_tenant_lease_and_state_and_the_newest(table: ClaimTable) -> None:
    for number in range(5):
        table.begin(claim(number))
    table.begin(claim(8, tenant="other"))
    table.begin(claim(9, lease_id="ls_0000000000000002"))
    settle(table, claim(2), ClaimState.IN_DOUBT)
    everything = tuple(ClaimState)
    assert [r.id for r in table.list(None, None, everything, 2)] == [claim(8).id, claim(9).id]
    assert len(table.list("acme", None, everything, 99)) == 6
    assert len(table.list("acme", claim().lease_id, everything, 99)) == 5
    [doubtful] = table.list(None, None, (ClaimState.IN_DOUBT,), 99)
    assert (doubtful.id, doubtful.result, doubtful.arguments) == (claim(2).id, None, "{}")


def test_reads_are_written_soon(ledger: SqliteLedger, table: ClaimTable) -> None:
    done = claim(1, state=ClaimState.COMPLETED)
    table.note(done)
    assert table.get(done.id) is None
    table.begin(claim(2))
    assert table.get(done.id) == done
    table.note(claim(3))
    ledger.tidy()
    assert table.get(claim(3).id) is not None
    for number in range(10, 11 + commits._MOST_WAITING):
        table.note(claim(number))
    assert table.get(claim(10).id) is not None
    assert table.get(claim(9 + commits._MOST_WAITING).id) is not None


@pytest.fixture
def in_use(ledger: SqliteLedger, tmp_path: Path) -> Iterator[sqlite3.Connection]:
    """No transaction of the ledger can begin until this one ends."""
    ledger._writer.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(tmp_path / "ledger.db", isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    yield other
    other.close()


def test_a_read_waits_for_a_commit_that_succeeds(
    ledger: SqliteLedger, table: ClaimTable, in_use: sqlite3.Connection
) -> None:
    notes = [claim(number, state=ClaimState.COMPLETED) for number in range(10, 50)]
    for note in notes:
        table.note(note)
    refused: list[Callable[[], None]] = [
        lambda: table.begin(claim(1)),
        ledger.tidy,
        ledger.flush,
    ]
    for each in refused:
        with pytest.raises(Failure, match="locked"):
            each()
    in_use.execute("ROLLBACK")
    ledger.tidy()
    found = table.list(None, None, (ClaimState.COMPLETED,), 99)
    assert [row.id for row in found] == [note.id for note in notes]
    assert table.get(claim(1).id) is None  # nor is anything written that was refused


def test_what_can_not_wait_any_more_is_refused(
    ledger: SqliteLedger, table: ClaimTable, in_use: sqlite3.Connection
) -> None:
    for number in range(commits._MOST_WAITING):
        table.note(claim(number))
    for number in range(200, 203):
        with pytest.raises(Failure, match="locked"):
            table.note(claim(number))
    in_use.execute("ROLLBACK")
    ledger.tidy()
    assert len(table.list(None, None, tuple(ClaimState), 999)) == commits._MOST_WAITING


def test_a_read_whose_own_write_fails_is_said_and_stops_no_other(
    ledger: SqliteLedger, table: ClaimTable, caplog: pytest.LogCaptureFixture
) -> None:
    """And what it wrote before it failed is not kept."""

    def half(connection: sqlite3.Connection) -> None:
        connection.execute("INSERT INTO counter (name, value) VALUES ('half', 1)")
        connection.execute("INSERT INTO nowhere VALUES (1)")

    ledger.commit_later(half)
    table.note(claim(2))
    table.begin(claim(1))
    assert len(table.list(None, None, tuple(ClaimState), 9)) == 2
    assert "no such table: nowhere" in caplog.text
    assert not ledger.rows("SELECT 1 FROM counter WHERE name = 'half'", ())


def test_the_log_begins_anew_where_nothing_can_be_written(
    ledger: SqliteLedger, table: ClaimTable, in_use: sqlite3.Connection, tmp_path: Path
) -> None:
    """On a full disk that makes the room which the next commit needs."""
    in_use.execute("ROLLBACK")
    table.begin(claim(1))
    table.note(claim(2))
    in_use.execute("BEGIN IMMEDIATE")
    with pytest.raises(Failure, match="locked"):
        ledger.tidy()
    assert claim(1).id.encode() in (tmp_path / "ledger.db").read_bytes()


def test_what_waits_is_written_at_the_end(tmp_path: Path) -> None:
    first = SqliteLedger(str(tmp_path / "l.db"))
    for number in range(40):
        ClaimTable(first).note(claim(number))
    first.close()
    second = SqliteLedger(str(tmp_path / "l.db"))
    assert len(ClaimTable(second).list(None, None, tuple(ClaimState), 99)) == 40
    second.close()


def test_claims_are_kept_until_some_time_after_the_release(
    ledger: SqliteLedger, table: ClaimTable
) -> None:
    for number in range(3):
        table.begin(claim(number))
    table.begin(claim(5, lease_id="ls_0000000000000002"))
    table.note(claim(4))
    with ledger.transaction() as connection:
        connection.execute("INSERT INTO released_lease VALUES (?)", (claim().lease_id,))
    table.sweep(100.0, 7.0)
    assert not ledger.rows("SELECT 1 FROM released_lease", ())
    table.sweep(106.9, 7.0)
    assert len(table.list(None, None, tuple(ClaimState), 99)) == 5
    table.sweep(107.0, 7.0)
    assert [r.id for r in table.list(None, None, tuple(ClaimState), 99)] == [claim(5).id]


def test_many_at_once_share_commits(ledger: SqliteLedger, table: ClaimTable) -> None:
    """The log's frames are counted: a commit of its own for each would be some frames for each."""
    ready, threads, errors = threading.Barrier(17), [], []

    def work(number: int) -> None:
        ready.wait()
        for step in range(5):
            try:
                table.begin(claim(number * 100 + step))
            except Failure as error:
                errors.append(error)

    commits_made: list[str] = []
    ledger._writer.set_trace_callback(
        lambda text: commits_made.append(text) if text == "COMMIT" else None
    )
    for number in range(16):
        threads.append(threading.Thread(target=work, args=(number,)))
        threads[-1].start()
    with ledger._write_lock:  # so that the first writes of all wait together
        ready.wait()
        while len(ledger._commits._jobs) < 16:
            pass
    for thread in threads:
        thread.join()
    ledger._writer.set_trace_callback(None)
    assert not errors
    assert len(table.list(None, None, tuple(ClaimState), 999)) == 80
    assert len(commits_made) <= 80 - 15


def test_one_write_that_fails_does_not_undo_the_others(
    ledger: SqliteLedger, table: ClaimTable
) -> None:
    table.begin(claim(1))
    refused: list[BaseException] = []

    def again() -> None:
        try:
            table.begin(claim(1, request_id="rq_other"))
        except Failure as error:
            refused.append(error)

    threads = [threading.Thread(target=again)]
    threads += [threading.Thread(target=table.begin, args=(claim(n),)) for n in range(2, 6)]
    with ledger._write_lock:
        for thread in threads:
            thread.start()
        while len(ledger._commits._jobs) < 5:
            pass
    for thread in threads:
        thread.join()
    assert len(refused) == 1
    assert len(table.list(None, None, tuple(ClaimState), 9)) == 5


def test_a_database_that_can_not_be_written_refuses(
    ledger: SqliteLedger, table: ClaimTable
) -> None:
    ledger._writer.execute("PRAGMA query_only = ON")
    for action in (
        lambda: table.begin(claim()),
        lambda: table.started(claim().id, "s", "1"),
        lambda: settle(table, claim()),
    ):
        with pytest.raises(Failure) as caught:
            action()
        assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    ledger._writer.execute("PRAGMA query_only = OFF")
    table.begin(claim())


def test_a_full_disk_refuses_and_the_next_write_works(
    ledger: SqliteLedger, table: ClaimTable
) -> None:
    pages = ledger._writer.execute("PRAGMA page_count").fetchone()[0]
    ledger._writer.execute(f"PRAGMA max_page_count = {pages + 2}")
    with pytest.raises(Failure) as caught:
        table.begin(claim(1, arguments="x" * 100_000))
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert table.get(claim().id) is None
    ledger._writer.execute("PRAGMA max_page_count = 1000000")
    table.begin(claim(1))


def test_what_need_not_outlive_the_host_is_not_synced(
    ledger: SqliteLedger, table: ClaimTable
) -> None:
    modes: list[str] = []
    ledger._writer.set_trace_callback(
        lambda text: modes.append(text.split()[-1]) if text.startswith("PRAGMA sync") else None
    )
    table.begin(claim())
    assert modes == []
    table.started(claim().id, "s", "1")
    assert modes == ["NORMAL", "FULL"]
    settle(table, claim())
    assert modes == ["NORMAL", "FULL"]
    assert ledger._writer.execute("PRAGMA synchronous").fetchone() == (2,)


def test_the_log_begins_anew(ledger: SqliteLedger, table: ClaimTable, tmp_path: Path) -> None:
    log = tmp_path / "ledger.db-wal"
    for number in range(20):
        table.begin(claim(number, arguments="x" * 50_000))
    size = log.stat().st_size
    for round_ in range(1, 4):
        ledger.tidy()
        for number in range(20):
            table.begin(claim(round_ * 100 + number, arguments="x" * 50_000))
    assert log.stat().st_size < size * 1.5


def test_the_call_that_kept_an_artifact_is_found_by_its_own_id_alone(table: ClaimTable) -> None:
    wanted, lease = "ar_0000000000000001", claim().lease_id
    kept = f'{{"stdout":"x","artifacts":[{{"id":"{wanted}"}}]}}'
    named = f'{{"stdout":"\\"artifacts\\":[{{\\"id\\":\\"{wanted}\\"}}]","artifacts":[]}}'
    table.put(claim(1, call_id="c1", chain=("mine",), result=kept))
    table.put(claim(2, call_id="c2", chain=("other",), result=named))
    table.put(claim(3, call_id="c3", chain=("none",)))
    table.note(claim(4, call_id="c4", chain=("read",), result='{"artifacts":[{"id":"ar_4"}]}'))
    assert table.chain_of_artifact(lease, "ar_4") == ("read",)
    assert table.chain_of_artifact(lease, wanted) == ("mine",)
    assert table.chain_of_artifact("ls_0000000000000002", wanted) is None
    assert table.chain_of_artifact(lease, "ar_0000000000000002") is None


def test_a_damaged_row_is_refused(ledger: SqliteLedger, table: ClaimTable) -> None:
    table.begin(claim())
    with ledger.transaction() as connection:
        connection.execute("UPDATE claim SET state = 'maybe'")
    with pytest.raises(Failure) as caught:
        table.get(claim().id)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert isinstance(caught.value.__cause__, ValueError | sqlite3.Error)
