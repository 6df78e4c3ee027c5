"""Readiness: each probe by its name, asked rarely, told once."""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Callable

import pytest

from stockade.flow.readiness import PROBE_S, Readiness
from stockade.terms.fault import Code, failure
from stockade.testing.clock import ManualClock
from stockade.testing.house import House


def test_probes_that_fail_are_named_and_asked_now_and_then(
    caplog: pytest.LogCaptureFixture,
) -> None:
    broken, asked, clock = {"b"}, Counter[str](), ManualClock()

    def probe(name: str) -> Callable[[], None]:
        def look() -> None:
            asked[name] += 1
            if name in broken:
                raise failure(Code.STORAGE_UNAVAILABLE, f"{name} is broken")

        return look

    readiness = Readiness({name: probe(name) for name in "abc"}, clock)
    with caplog.at_level(logging.INFO, "stockade"):
        assert readiness.reasons() == readiness.reasons() == ("b",)
        assert asked == {"a": 1, "b": 1, "c": 1}
        clock.advance(PROBE_S)
        clock.step(-3600)
        assert readiness.reasons() == ("b",)
        broken |= {"c"}
        clock.advance(PROBE_S / 2)
        assert readiness.reasons() == ("b",)
        clock.advance(PROBE_S / 2)
        assert readiness.reasons() == ("b", "c")
        broken.clear()
        clock.advance(PROBE_S)
        assert readiness.reasons() == ()
    lines = [record.getMessage() for record in caplog.records]
    assert len(lines) == 3
    assert "b is broken" in lines[0]
    assert lines[2] == "ready again"


def test_the_ledgers_probe_writes(house: House) -> None:
    house.ledger.probe()
    house.ledger.probe()
    assert house.ledger.rows("SELECT value FROM counter WHERE name = 'probe'", ()) == [(2,)]
    assert house.ledger.next_uid_slot() == 0
