"""Requests for approval: one use for each yes, bounds, and an end with the lease."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.ledger.approval_table import ApprovalTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.approval import ApprovalRecord, ApprovalState
from stockade.terms.books import ApprovalBook
from stockade.terms.fault import Code
from stockade.terms.lease import LeaseState
from stockade.terms.moment import Moment
from stockade.testing.fake_books import FakeApprovalBook
from stockade.testing.house import code_of
from tests.unit.ledger.test_store import RECORD

ASKED = ApprovalRecord(
    id="ap_1",
    tenant=RECORD.tenant,
    lease_id=RECORD.id,
    tool="run",
    arguments="{}",
    state=ApprovalState.ASKED,
    asked_at_s=1.0,
)


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[SqliteLedger]:
    made = SqliteLedger(str(tmp_path / "ledger.db"))
    made.add_lease(RECORD)
    yield made
    made.close()


@pytest.fixture(params=["table", "fake"])
def book(request: pytest.FixtureRequest, ledger: SqliteLedger) -> ApprovalBook:
    return ApprovalTable(ledger) if request.param == "table" else FakeApprovalBook()


def grant(book: ApprovalBook, approval_id: str = "ap_1") -> ApprovalRecord | None:
    return book.decide(approval_id, ApprovalState.GRANTED, 2.0, "uid:0", "fine")


def test_asking_twice_is_one_request(book: ApprovalBook) -> None:
    assert book.ask(ASKED, 8) == ASKED
    assert book.ask(replace(ASKED, asked_at_s=9.0), 8) == ASKED
    assert book.list() == [ASKED]
    assert book.get("ap_1") == ASKED
    assert book.get("ap_2") is None


def test_a_yes_is_used_once_and_the_next_call_asks_again(book: ApprovalBook) -> None:
    book.ask(ASKED, 8)
    assert not book.use("ap_1")
    granted = grant(book)
    assert granted == replace(
        ASKED,
        state=ApprovalState.GRANTED,
        decided_at_s=2.0,
        decided_by="uid:0",
        reason="fine",
    )
    assert book.ask(ASKED, 8) == granted
    assert book.use("ap_1")
    assert not book.use("ap_1")
    again = grant(book)
    assert again is not None
    assert again.state is ApprovalState.USED
    assert book.ask(replace(ASKED, asked_at_s=3.0), 8) == replace(ASKED, asked_at_s=3.0)


def test_a_yes_whose_call_did_not_start_is_there_again(book: ApprovalBook) -> None:
    book.ask(ASKED, 8)
    grant(book)
    book.use("ap_1")
    book.give_back("ap_1")
    assert book.use("ap_1")


def test_a_no_stays_until_somebody_thinks_otherwise(book: ApprovalBook) -> None:
    book.ask(ASKED, 8)
    book.decide("ap_1", ApprovalState.DENIED, 2.0, "uid:0", None)
    assert book.ask(ASKED, 8).state is ApprovalState.DENIED
    assert not book.use("ap_1")
    grant(book)
    assert book.use("ap_1")


def test_only_so_many_may_wait(book: ApprovalBook) -> None:
    for number in range(3):
        book.ask(replace(ASKED, id=f"ap_{number}"), 3)
    assert code_of(lambda: book.ask(replace(ASKED, id="ap_9"), 3)) is Code.BUSY
    assert book.ask(replace(ASKED, id="ap_2"), 3).state is ApprovalState.ASKED
    grant(book, "ap_0")
    assert book.ask(replace(ASKED, id="ap_9"), 3).id == "ap_9"


def test_of_many_calls_at_once_one_gets_it(ledger: SqliteLedger) -> None:
    book = ApprovalTable(ledger)
    book.ask(ASKED, 8)
    grant(book)
    got: list[bool] = []
    threads = [threading.Thread(target=lambda: got.append(book.use("ap_1"))) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(got) == [False] * 7 + [True]


def test_requests_end_with_their_lease(ledger: SqliteLedger) -> None:
    book = ApprovalTable(ledger)
    book.ask(ASKED, 8)
    ledger.put_lease(replace(RECORD, state=LeaseState.RELEASED))
    assert book.list() == []
    assert book.get("ap_1") is None
    assert grant(book) is None
    ledger.sweep(Moment(5.0, 1.0, "b"))
    with ledger.transaction() as connection:
        assert connection.execute("SELECT count(*) FROM approval").fetchone() == (0,)
