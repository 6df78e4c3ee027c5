"""The table of the audit: no gap whatever fails, no change but at its end, and who did what."""

from __future__ import annotations

import os
import signal
import sqlite3
import threading
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

import pytest

from stockade.decide import signatures
from stockade.decide.chain import GENESIS, genuine
from stockade.decide.chain_verifier import Flaw, Verifier
from stockade.ledger.audit_table import AuditTable, first_of, links
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import Acting, AuditEvent, AuditKind, AuditRecord, Checkpoint
from stockade.terms.fault import Code, Failure
from stockade.testing.clock import ManualClock
from stockade.testing.house import open_house

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)


@dataclass
class Place:
    path: str
    clock: ManualClock
    ledger: SqliteLedger
    table: AuditTable
    kept: list[Checkpoint]

    def write(self, count: int = 1, **values: object) -> None:
        for _ in range(count):
            self.table.write(self.event(**values))

    def event(self, **values: object) -> AuditEvent:
        made = {"kind": AuditKind.CALL_OUTCOME, "at_ms": int(self.clock() * 1000), **values}
        return AuditEvent(**made)  # type: ignore[arg-type]

    def seal(self) -> Checkpoint | None:
        return self.table.seal(int(self.clock() * 1000))

    def records(self, first: int = 1) -> list[AuditRecord]:
        return [AuditRecord.model_validate_json(link.body) for link in self.table.read(first)]

    def flaw(self, *, whole: bool = True) -> Flaw | None:
        verifier = Verifier(keys=frozenset({KEY.hex()}), whole=whole)
        for link in self.table.read(1):
            found = verifier.add(link)
            if found is not None:
                return found
        return verifier.end()


def opened(directory: Path, clock: ManualClock | None = None) -> Place:
    clock = clock or ManualClock()
    path = str(directory / "ledger.db")
    ledger = SqliteLedger(path)
    kept: list[Checkpoint] = []
    table = AuditTable(
        ledger, clock, KEY, lambda data: signatures.sign(SEED, data), keep=kept.append
    )
    return Place(path, clock, ledger, table, kept)


@pytest.fixture
def place(tmp_path: Path) -> Iterator[Place]:
    made = opened(tmp_path)
    yield made
    made.ledger.close()


def test_records_follow_each_other_and_a_restart_goes_on(place: Place, tmp_path: Path) -> None:
    place.write(2, tenant="acme")
    first = place.table.state().head
    place.ledger.close()
    again = opened(tmp_path, place.clock)
    assert again.table.state().head == first
    again.write()
    assert [record.seq for record in again.records()] == [1, 2, 3]
    assert again.flaw() is None
    again.ledger.close()


def test_a_rollback_leaves_no_gap_and_no_trace(place: Place) -> None:
    place.write()
    places: list[int] = []

    def fail() -> None:
        with place.ledger.transaction() as connection:
            places.append(place.table.append(connection, place.event(call_id="lost")).seq)
            places.append(place.table.append(connection, place.event()).seq)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fail()
    assert places == [2, 3]
    place.write(call_id="kept")
    assert [record.call_id for record in place.records()] == [None, "kept"]
    assert place.flaw() is None


def test_a_write_that_fails_among_others_leaves_no_gap(place: Place) -> None:
    """Writes of several threads share a transaction, each in a savepoint of its own."""
    started, failed = threading.Barrier(3), threading.Event()

    def good() -> None:
        started.wait(60)
        place.write()

    def bad(connection: sqlite3.Connection) -> None:
        place.table.append(connection, place.event(call_id="lost"))
        raise ValueError

    def failing() -> None:
        started.wait(60)
        with pytest.raises(ValueError):
            place.ledger.commit(bad)
        failed.set()

    threads = [threading.Thread(target=work) for work in (good, failing, good)]
    with place.ledger.transaction():  # until then all of them wait
        for thread in threads:
            thread.start()
    for thread in threads:
        thread.join(60)
    place.write()
    assert failed.is_set()
    assert [record.call_id for record in place.records()] == [None, None, None]
    assert place.flaw() is None


def test_what_waits_to_be_written_is_signed_too(place: Place) -> None:
    place.write()
    place.ledger.commit_later(lambda connection: place.table.append(connection, place.event()))
    made = place.seal()
    assert made is not None
    assert made.seq == 2


def test_what_waits_to_be_written_comes_before_the_last_record(place: Place) -> None:
    place.ledger.commit_later(
        lambda connection: place.table.append(connection, place.event(turn=1))
    )
    made = place.table.write_signed(place.event(turn=2), 5, last=True)
    assert [record.turn for record in place.records()[:2]] == [1, 2]
    assert made.seq == 2
    assert place.kept == [made]


def test_several_records_of_one_transaction_follow_each_other(place: Place) -> None:
    with place.ledger.transaction() as connection:
        for number in range(3):
            place.table.append(connection, place.event(turn=number))
    assert [record.turn for record in place.records()] == [0, 1, 2]
    assert place.flaw() is None


def test_a_process_that_is_killed_in_a_transaction_leaves_no_gap(tmp_path: Path) -> None:
    opened(tmp_path).ledger.close()
    child = os.fork()
    if child == 0:
        try:
            mine = opened(tmp_path)
            mine.write(3)
            with mine.ledger.transaction() as connection:
                mine.table.append(connection, mine.event(call_id="lost"))
                os.kill(os.getpid(), signal.SIGKILL)
        finally:
            os._exit(1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
    place = opened(tmp_path)
    place.write()
    assert [record.seq for record in place.records()] == [1, 2, 3, 4]
    assert place.flaw() is None
    place.ledger.close()


def test_many_threads_make_one_chain(place: Place) -> None:
    threads = [threading.Thread(target=place.write, args=(20,)) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(place.records()) == 160
    assert place.flaw() is None


@pytest.mark.parametrize(
    "statement",
    ["UPDATE audit SET body = body", "UPDATE audit SET hash = x'00'", "DELETE FROM audit"],
)
def test_the_table_refuses_changes_by_statement(place: Place, statement: str) -> None:
    place.write(2)
    with pytest.raises(Failure) as caught, place.ledger.transaction() as connection:
        connection.execute(statement)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert len(place.records()) == 2


def test_what_was_put_in_behind_its_back_stops_the_writing(place: Place) -> None:
    place.write()
    other = sqlite3.connect(place.path)
    other.execute("INSERT INTO audit VALUES (2, x'00', '{}')")
    other.commit()
    other.close()
    with pytest.raises(Failure) as caught:
        place.write()
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


def test_a_record_taken_out_under_a_running_daemon_shows(place: Place) -> None:
    place.write(3)
    other = sqlite3.connect(place.path)
    other.execute("DROP TRIGGER audit_no_delete")
    other.execute("DELETE FROM audit WHERE seq = 3")
    other.commit()
    other.close()
    place.write()
    assert place.flaw() == Flaw(3, "is missing: record 4 stands in its place")


def test_a_checkpoint_signs_all_there_is_and_only_once(place: Place) -> None:
    assert place.seal() is None
    place.write(3)
    made = place.seal()
    assert made is not None
    assert (made.seq, made.key) == (3, KEY.hex())
    assert genuine(made)
    assert place.kept == [made]
    assert place.table.unsealed() == 0
    assert place.seal() is None
    place.write()
    assert place.table.unsealed() == 1
    assert place.table.state().sealed == made
    assert place.flaw() is None


def test_the_newest_checkpoint_is_known_after_a_restart(place: Place, tmp_path: Path) -> None:
    place.write(3)
    made = place.seal()
    place.write()
    place.ledger.close()
    again = opened(tmp_path)
    assert again.table.state().sealed == made
    assert again.table.unsealed() == 1
    again.ledger.close()


def test_a_clock_that_goes_back_changes_times_and_not_the_order(tmp_path: Path) -> None:
    first = opened(tmp_path)
    first.write(2)
    first.ledger.close()
    earlier = opened(tmp_path, ManualClock(1_600_000_000.0))
    earlier.write()
    assert [record.at_ms for record in earlier.records()] == [
        1_700_000_000_000,
        1_700_000_000_000,
        1_600_000_000_000,
    ]
    assert earlier.flaw() is None
    earlier.ledger.close()


def test_a_call_is_found_by_its_id_or_its_request(place: Place) -> None:
    place.write(call_id="c-1", request_id="rq_1")
    place.write(request_id="rq_2")
    place.write(call_id="c-1", request_id="rq_3")
    found = place.table.of_call("c-1")
    assert [link.seq for link in found] == [1, 3]
    assert found[1].prev == next(iter(place.table.read(2))).hash
    assert [link.seq for link in place.table.of_call("rq_2")] == [2]
    assert list(place.table.of_call("rq_1")) == []


def test_a_time_and_a_record_lead_to_the_checkpoint_before_them(place: Place) -> None:
    start = int(place.clock() * 1000)
    place.write(2)
    place.seal()
    place.clock.advance(10)
    place.write(2)
    assert place.table.since(start + 1) == 4
    assert place.table.since(start + 60_000) == 6
    assert place.table.anchor(2) == 1
    assert place.table.anchor(5) == 3
    reader = sqlite3.connect(place.path)
    assert first_of(reader, None, start + 1) == 3
    assert first_of(reader, 2, None) == 1
    reader.close()


def test_only_what_is_exported_and_old_is_dropped_up_to_a_checkpoint(place: Place) -> None:
    for _ in range(3):
        place.write(4)
        place.seal()
        place.clock.advance(100)
    now = int(place.clock() * 1000)
    assert place.table.drop(now, now) == 0  # nothing is exported
    place.table.exported(12, place.event(kind=AuditKind.AUDIT_EXPORTED))
    assert place.records()[-1].kind is AuditKind.AUDIT_EXPORTED
    assert place.table.drop(now - 1_000_000, now) == 0  # nothing is old
    assert place.table.drop(now - 250_000, now) == 4
    assert place.records()[0].seq == 5
    assert place.records()[-2].detail == {"through": 4, "records": 4}
    assert place.table.unsealed() == 0  # or it would say nothing
    assert place.kept[-1].seq == place.records()[-2].seq
    assert place.flaw() is None
    assert place.table.drop(now, now) == 5
    assert place.records()[0].seq == 10
    assert place.flaw() is None
    assert place.table.drop(now, now) == 0


def test_a_record_that_is_not_there_can_not_be_exported(place: Place) -> None:
    place.write()
    for through in (0, 2):
        with pytest.raises(Failure) as caught:
            place.table.exported(through, place.event())
        assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert place.table.state().exported == 0


def test_rows_from_the_middle_of_a_damaged_table_are_given_as_they_are(place: Place) -> None:
    place.write(3)
    other = sqlite3.connect(place.path)
    for name in ("audit_no_delete", "audit_no_update"):
        other.execute(f"DROP TRIGGER {name}")
    other.execute("DELETE FROM audit WHERE seq < 3")
    other.commit()
    assert [(link.seq, link.prev) for link in links(other, 1)] == [(3, GENESIS)]
    assert [(link.seq, link.prev) for link in links(other, 3)] == [(3, GENESIS)]
    other.close()
    assert place.flaw() is not None


def test_every_change_of_a_lease_is_recorded_with_who_did_it(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    try:
        with house.table.acting(Acting("uid 7", "rq_1", "sdk", "m-1")):
            record = house.leases.create(house.request()).record
            house.leases.renew(None, record.id, 5000)
            house.leases.reset(None, record.id)
            house.leases.create(house.request(take_over=True))
            house.leases.release(None, record.id)
        other = house.leases.create(house.request("run-2", ttl_s=10)).record
        house.clock.advance(20)
        house.sweeper.tick()
        found = [AuditRecord.model_validate_json(link.body) for link in house.table.read(1)]
        kinds = [(each.kind.value, each.lease_id, each.actor) for each in found]
        assert [each for each in kinds if each[0] != "checkpoint"] == [
            ("lease_created", record.id, "uid 7"),
            ("lease_renewed", record.id, "uid 7"),
            ("lease_reset", record.id, "uid 7"),
            ("lease_taken_over", record.id, "uid 7"),
            ("lease_released", record.id, "uid 7"),
            ("lease_created", other.id, None),
            ("lease_expired", other.id, None),
        ]
        assert (found[0].request_id, found[0].client, found[0].model) == ("rq_1", "sdk", "m-1")
        assert found[3].generation == 2
    finally:
        house.close()


def test_a_lease_and_its_record_are_written_together_or_not_at_all(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    try:
        record = house.leases.create(house.request()).record
        other = sqlite3.connect(os.path.join(tmp_path, "ledger.db"))
        other.execute("INSERT INTO audit VALUES (2, x'00', '{}')")  # the next record can't be
        other.commit()
        other.close()
        with pytest.raises(Failure):
            house.leases.renew(None, record.id, 5000)
        assert house.ledger.lease(record.id) == record
        assert house.ledger.leases() == [record]
        assert replace(record) == record
    finally:
        house.close()
