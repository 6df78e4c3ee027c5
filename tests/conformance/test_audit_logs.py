"""The table of the ledger and the audit in memory do the same."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.decide import signatures
from stockade.decide.chain_verifier import Verifier
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.audit import AuditEvent, AuditKind, AuditLog
from stockade.terms.fault import Code, Failure
from stockade.testing.fake_audit import FakeAuditLog

SEED = bytes(range(32))
KEY = signatures.public_key(SEED)


def sign(data: bytes) -> bytes:
    return signatures.sign(SEED, data)


@pytest.fixture(params=["table", "memory"])
def log(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[AuditLog]:
    if request.param == "memory":
        yield FakeAuditLog(KEY, sign)
        return
    ledger = SqliteLedger(str(tmp_path / "ledger.db"))
    yield AuditTable(ledger, lambda: 0.0, KEY, sign)
    ledger.close()


def event(at_ms: int = 0, **values: object) -> AuditEvent:
    return AuditEvent(**{"kind": AuditKind.CALL_OUTCOME, "at_ms": at_ms, **values})  # type: ignore[arg-type]


def sound(log: AuditLog) -> bool:
    verifier = Verifier(keys=frozenset({KEY.hex()}), whole=True)
    return all(verifier.add(link) is None for link in log.read(1)) and verifier.end() is None


def test_records_follow_each_other(log: AuditLog) -> None:
    assert log.state().first == 0
    places = [log.write(event(turn=number)) for number in range(3)]
    assert [place.seq for place in places] == [1, 2, 3]
    assert log.state().head == places[-1]
    assert [link.hash for link in log.read(2)] == [place.hash for place in places[1:]]
    assert sound(log)


def test_checkpoints_sign_what_there_is_once(log: AuditLog) -> None:
    assert log.seal(1) is None
    log.write(event())
    assert log.unsealed() == 1
    made = log.seal(2)
    assert made is not None
    assert (made.seq, log.unsealed(), log.seal(3)) == (1, 0, None)
    assert log.state().sealed == made
    assert sound(log)


def test_the_last_record_is_signed_and_nothing_comes_behind_it(log: AuditLog) -> None:
    first = log.write_signed(event(), 1)
    assert (first.seq, log.unsealed()) == (1, 0)
    log.write(event())
    last = log.write_signed(event(), 2, last=True)
    assert (last.seq, log.state().sealed) == (4, last)
    with pytest.raises(Failure) as caught:
        log.write(event())
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert log.state().head.seq == 5
    assert sound(log)


def test_places_are_found_by_time_by_checkpoint_and_by_call(log: AuditLog) -> None:
    log.write(event(10, request_id="rq_1", call_id="c"))
    log.seal(20)
    log.write(event(30, request_id="rq_2"))
    assert (log.since(5), log.since(25), log.since(99)) == (1, 3, 4)
    assert (log.anchor(1), log.anchor(3)) == (1, 2)
    assert [link.seq for link in log.of_call("c")] == [1]
    assert [link.seq for link in log.of_call("rq_2")] == [3]
    assert list(log.of_call("rq_1")) == []


def test_records_of_a_call_are_not_crowded_out_by_another_tenants(log: AuditLog) -> None:
    log.write(event(call_id="c", request_id="rq", tenant="acme"))
    for _ in range(1001):
        log.write(event(call_id="c", request_id="rq", tenant="other"))
    assert [link.seq for link in log.of_call("c", "acme")] == [1]
    assert list(log.of_call("c", "nobody")) == []
    assert [link.seq for link in log.of_call("c")] == list(range(3, 1003))


def test_what_is_exported_and_old_goes_up_to_a_checkpoint(log: AuditLog) -> None:
    for at_ms in (10, 20):
        log.write(event(at_ms))
        log.seal(at_ms)
    assert log.drop(100, 30) == 0
    log.exported(3, event(25, kind=AuditKind.AUDIT_EXPORTED))
    assert log.drop(10, 30) == 0
    assert log.drop(100, 30) == 3
    assert log.state().first == 4
    assert log.drop(100, 30) == 0
    assert sound(log)


@pytest.mark.parametrize("through", [0, 2])
def test_what_is_not_there_is_not_exported(log: AuditLog, through: int) -> None:
    log.write(event())
    with pytest.raises(Failure) as caught:
        log.exported(through, event())
    assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert log.state().exported == 0
