"""The ledger keeps what it answered for, and refuses files that it does not understand."""

from __future__ import annotations

import os
import sqlite3
import stat
import threading
from contextlib import closing
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.ledger.migrations import APPLICATION_ID, CURRENT
from stockade.ledger.store import SqliteLedger
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Grant, PerCall, PerLease, Profile, Scope, System, Tier
from stockade.terms.lease import LeaseRecord, LeaseState
from tests.grants import NO_BUDGET

GRANT = Grant(
    scope=Scope(read=("/workspace",), write=("/workspace",), execute=("/",), connect=()),
    deny=("/workspace/.git/hooks",),
    tools=("bash_execute", "file_view"),
    system=System(profile=Profile.AGENT, images=("host",), tier_min=Tier.CONTAINER),
    per_call=PerCall(wall_ms=1000, output_bytes=2000),
    per_lease=PerLease(
        memory_bytes=1 << 30,
        cpu_millis=1000,
        pids=100,
        disk_bytes=1 << 31,
        inodes=10_000,
        sandboxes=2,
        parallel=3,
    ),
    total=NO_BUDGET,
    depth=3,
    checks=(),
    approve=(),
)

RECORD = LeaseRecord(
    id="ls_0000000000000001",
    tenant="acme",
    trajectory="run-1/a",
    name="main",
    generation=1,
    state=LeaseState.READY,
    source="/srv/caf\udce9",
    excludes=("*.o", "we\udcffird"),
    image="host",
    env=(("A", "1"), ("B", "ä\n")),
    uid_base=1_073_741_824,
    grant=GRANT,
    token="t",
    chain=("aa", "bb"),
    created_at_s=1_700_000_000.25,
    expires_at_s=1_700_003_600.0,
    not_after_s=1_700_086_400.0,
    workspace_version=3,
)


def other(number: int, **changes: object) -> LeaseRecord:
    values: dict[str, object] = {
        "id": f"ls_{number:016x}",
        "uid_base": RECORD.uid_base + number * 65536,
        "trajectory": f"run-{number}",
    }
    return replace(RECORD, **{**values, **changes})  # type: ignore[arg-type]


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "ledger.db")


def test_a_record_survives_a_restart_in_every_field(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    assert ledger.lease(RECORD.id) == RECORD
    ledger.close()
    again = SqliteLedger(path)
    assert again.lease(RECORD.id) == RECORD
    assert again.find_lease("acme", "run-1/a", "main") == RECORD
    again.close()


def test_the_file_is_for_its_owner_only(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    for name in os.listdir(os.path.dirname(path)):
        mode = os.stat(os.path.join(os.path.dirname(path), name)).st_mode
        assert stat.S_IMODE(mode) == 0o600, name
    ledger.close()


def test_writes_are_power_safe(path: str) -> None:
    ledger = SqliteLedger(path)
    assert ledger._writer.execute("PRAGMA synchronous").fetchone() == (2,)
    assert ledger._writer.execute("PRAGMA journal_mode").fetchone() == ("wal",)
    ledger.close()


def test_a_name_belongs_to_one_lease_until_it_is_released(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    same_name = other(2, trajectory=RECORD.trajectory)
    for state in (LeaseState.READY, LeaseState.DIRTY, LeaseState.RESETTING):
        ledger.put_lease(replace(RECORD, state=state))
        with pytest.raises(Failure) as caught:
            ledger.add_lease(same_name)
        assert caught.value.fault.code is Code.KEY_REUSED
    ledger.add_lease(replace(same_name, name="second"))
    ledger.put_lease(replace(RECORD, state=LeaseState.RELEASED))
    assert ledger.find_lease("acme", RECORD.trajectory, "main") is None
    ledger.add_lease(other(3, trajectory=RECORD.trajectory))
    found = ledger.find_lease("acme", RECORD.trajectory, "main")
    assert found is not None
    assert found.id == other(3).id
    ledger.close()


def test_two_leases_never_share_user_ids(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    with pytest.raises(Failure):
        ledger.add_lease(other(2, uid_base=RECORD.uid_base))
    ledger.put_lease(replace(RECORD, state=LeaseState.RELEASED))
    ledger.add_lease(other(2, uid_base=RECORD.uid_base))
    ledger.close()


def test_leases_lists_what_is_not_released_oldest_first(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    ledger.add_lease(other(2, created_at_s=1.0, tenant="b"))
    ledger.add_lease(other(3, state=LeaseState.RELEASED))
    ledger.add_lease(other(4, created_at_s=2.0, state=LeaseState.DIRTY))
    assert [r.id[-1] for r in ledger.leases()] == ["2", "4", "1"]
    assert [r.id[-1] for r in ledger.leases("acme")] == ["4", "1"]
    assert ledger.leases("nobody") == []
    ledger.close()


def test_an_unknown_lease_can_not_be_put(path: str) -> None:
    ledger = SqliteLedger(path)
    with pytest.raises(Failure) as caught:
        ledger.put_lease(RECORD)
    assert caught.value.fault.code is Code.INTERNAL
    assert ledger.lease(RECORD.id) is None
    ledger.close()


def test_slots_are_never_given_twice_also_across_threads_and_restarts(path: str) -> None:
    ledger = SqliteLedger(path)
    taken: list[int] = []

    def take() -> None:
        taken.extend(ledger.next_uid_slot() for _ in range(10))

    threads = [threading.Thread(target=take) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    ledger.close()
    again = SqliteLedger(path)
    taken.append(again.next_uid_slot())
    again.close()
    assert sorted(taken) == list(range(41))
    assert taken[-1] == 40


def test_a_newer_database_is_refused_and_left_alone(path: str) -> None:
    SqliteLedger(path).close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute(f"PRAGMA user_version = {CURRENT + 1}")
    connection.close()
    before = Path(path).read_bytes()
    with pytest.raises(Failure) as caught:
        SqliteLedger(path)
    fault = caught.value.fault
    assert fault.code is Code.STORAGE_UNAVAILABLE
    assert f"version {CURRENT + 1}" in fault.message
    assert fault.details == {"version": CURRENT + 1, "known": CURRENT}
    assert Path(path).read_bytes() == before


def test_another_programs_database_is_refused(path: str) -> None:
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE theirs (x)")
    connection.close()
    with pytest.raises(Failure) as caught:
        SqliteLedger(path)
    assert "another program" in caught.value.fault.message
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("DROP TABLE theirs")
        connection.execute("PRAGMA application_id = 7")
    connection.close()
    with pytest.raises(Failure):
        SqliteLedger(path)


@pytest.mark.parametrize("damage", ["garbage", "page"])
def test_a_damaged_file_is_refused(path: str, damage: str) -> None:
    ledger = SqliteLedger(path)
    for number in range(2, 30):
        ledger.add_lease(other(number))
    ledger.close()
    content = bytearray(Path(path).read_bytes())
    if damage == "garbage":
        content[:] = b"not a database at all" * 400
    else:
        content[4096:8192] = bytes(4096)
    Path(path).write_bytes(content)
    with pytest.raises(Failure) as caught:
        SqliteLedger(path)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


def test_a_row_that_is_not_understood_is_a_fault_and_no_guess(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    ledger.close()
    with closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("UPDATE lease SET state = 'elsewhere'")
    connection.close()
    again = SqliteLedger(path)
    with pytest.raises(Failure) as caught:
        again.lease(RECORD.id)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    again.close()


def test_no_place_for_the_file_is_a_fault(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        SqliteLedger(str(tmp_path / "absent" / "ledger.db"))
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


def test_a_failed_write_leaves_the_old_row_and_a_usable_ledger(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    # max_page_count is how SQLite itself says "database or disk is full".
    pages = ledger._writer.execute("PRAGMA page_count").fetchone()[0]
    ledger._writer.execute(f"PRAGMA max_page_count = {pages}")
    with pytest.raises(Failure) as caught:
        ledger.put_lease(replace(RECORD, token="x" * 100_000))
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert ledger.lease(RECORD.id) == RECORD
    ledger._writer.execute("PRAGMA max_page_count = 1000000")
    ledger.put_lease(replace(RECORD, generation=2))
    assert ledger.lease(RECORD.id) == replace(RECORD, generation=2)
    ledger.close()


def test_readers_do_not_wait_for_a_writer(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    with ledger.transaction() as connection:
        connection.execute("UPDATE lease SET generation = 9")
        assert ledger.leases() == [RECORD]
    assert ledger.leases() == [replace(RECORD, generation=9)]
    ledger.close()


def test_what_is_kept_in_memory_is_what_was_written(path: str) -> None:
    ledger = SqliteLedger(path)
    ledger.add_lease(RECORD)
    ledger.put_lease(replace(RECORD, generation=2))
    assert ledger.lease(RECORD.id) == replace(RECORD, generation=2)
    with pytest.raises(Failure):
        ledger.add_lease(replace(RECORD, generation=3))
    assert ledger.lease(RECORD.id) == replace(RECORD, generation=2)
    ledger.put_lease(replace(RECORD, state=LeaseState.RELEASED))
    assert ledger.lease(RECORD.id) == replace(RECORD, state=LeaseState.RELEASED)
    ledger.close()
    again = SqliteLedger(path)
    assert again.lease(RECORD.id) == replace(RECORD, state=LeaseState.RELEASED)
    again.close()


def test_a_new_file_gets_the_current_version_and_our_mark(path: str) -> None:
    SqliteLedger(path).close()
    connection = sqlite3.connect(path)
    assert connection.execute("PRAGMA user_version").fetchone() == (CURRENT,)
    assert connection.execute("PRAGMA application_id").fetchone() == (APPLICATION_ID,)
    connection.close()
