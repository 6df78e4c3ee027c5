"""Places of requests that are no calls, and who may have how many of them."""

from __future__ import annotations

import threading

import pytest

from stockade.edge.routing import Lane
from stockade.edge.server import lanes
from stockade.edge.server.lanes import BULK_PLACES, CONTROL_PLACES, TRANSFER_PLACES, Lanes
from stockade.terms.fault import Code, Failure
from tests.daemons import WAIT_S, until

BOUNDED = [
    (Lane.BULK, BULK_PLACES),
    (Lane.TRANSFER, TRANSFER_PLACES),
    (Lane.CONTROL, CONTROL_PLACES),
]


def _waiting(made: Lanes, lane: Lane, party: str | None) -> threading.Thread:
    before = made._waiting[lane]
    thread = threading.Thread(target=made.take, args=(lane, party))
    thread.start()
    until(lambda: made._waiting[lane] == before + 1, "it waits")
    return thread


@pytest.mark.parametrize(("lane", "places"), BOUNDED)
def test_one_party_has_seven_eighths_and_another_the_rest(lane: Lane, places: int) -> None:
    made = Lanes()
    share = places - places // 8
    for _ in range(share):
        made.take(lane, "acme")
    late = _waiting(made, lane, "acme")
    for _ in range(places - share):
        made.take(lane, "beta")
    last = _waiting(made, lane, "beta")  # of all places none is left
    made.give(lane, "beta")
    last.join(WAIT_S)
    assert not last.is_alive()
    assert late.is_alive()
    made.give(lane, "acme")
    late.join(WAIT_S)
    assert not late.is_alive()


def test_who_waits_most_leaves_room_in_the_queue(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lanes, "_QUEUE", 8)
    made = Lanes()
    for party in ("acme", "beta"):
        for _ in range({"acme": 14, "beta": 2}[party]):
            made.take(Lane.TRANSFER, party)
    waiting = [_waiting(made, Lane.TRANSFER, "acme") for _ in range(7)]
    with pytest.raises(Failure) as refused:
        made.take(Lane.TRANSFER, "acme")
    assert refused.value.fault.code is Code.BUSY
    waiting.append(_waiting(made, Lane.TRANSFER, None))
    with pytest.raises(Failure) as refused:
        made.take(Lane.TRANSFER, "beta")
    assert refused.value.fault.code is Code.BUSY
    for party in ["acme"] * 14 + ["beta"] * 2:
        made.give(Lane.TRANSFER, party)
    for thread in waiting:
        thread.join(WAIT_S)
        assert not thread.is_alive()
    for then in (*["acme"] * 7, None):
        made.give(Lane.TRANSFER, then)
    assert made.idle(0)
    assert not made._running_of
    assert not made._waiting_of


def test_calls_are_only_counted() -> None:
    made = Lanes()
    for _ in range(2000):
        made.take(Lane.CALL, "acme")
    assert not made.idle(0)
    for _ in range(2000):
        made.give(Lane.CALL, "acme")
    assert made.idle(0)
