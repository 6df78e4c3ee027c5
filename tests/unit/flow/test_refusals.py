"""How many refusals become records."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from stockade.flow.refusals import BURST, COUNTED_S, EVERY_S, Counted, Refusals


def test_a_burst_gets_through_and_the_rest_is_counted_by_code() -> None:
    refusals = Refusals()
    assert all(refusals.admit("acme", "check_failed", 1000.0) for _ in range(BURST))
    assert not refusals.admit("acme", "check_failed", 1001.0)
    assert not refusals.admit("acme", "token_expired", 1002.0)
    assert not refusals.admit("acme", "check_failed", 1003.0)
    assert refusals.take(1003.0) == [
        Counted("acme", (("check_failed", 2), ("token_expired", 1)), 1001.0, 1003.0)
    ]
    assert refusals.take(1003.0, all_=True) == []


def test_one_tenant_does_not_use_up_what_another_has() -> None:
    refusals = Refusals()
    for _ in range(BURST + 1):
        refusals.admit("loud", "x", 1000.0)
    assert not refusals.admit("loud", "x", 1000.0)
    assert refusals.admit("quiet", "x", 1000.0)
    assert refusals.admit(None, "x", 1000.0)


def test_counts_are_taken_once_a_minute_or_at_the_end() -> None:
    refusals = Refusals()
    refusals.take(1000.0)
    for _ in range(BURST + 1):
        refusals.admit("acme", "x", 1000.0)
    assert refusals.take(1000.0 + COUNTED_S - 1) == ()
    assert len(refusals.take(1000.0 + COUNTED_S)) == 1
    refusals.admit("acme", "x", 1000.0)
    assert len(refusals.take(1000.0 + COUNTED_S, all_=True)) == 1


@given(st.lists(st.floats(min_value=-100, max_value=100), max_size=300))
def test_no_run_of_the_clock_gives_more_than_time_allows(steps: list[float]) -> None:
    refusals = Refusals()
    now, forward = 10_000.0, 0.0
    admitted = 0
    for step in steps:
        now += step
        forward += max(0.0, step)
        admitted += sum(refusals.admit("acme", "x", now) for _ in range(2))
    assert admitted <= BURST + forward / EVERY_S + 1
