"""The live set answers at the moment it is asked."""

from __future__ import annotations

from pathlib import Path

from stockade.testing.house import TENANT, open_house


def test_live_leases_is_a_set_that_follows_the_ledger(tmp_path: Path) -> None:
    house = open_house(str(tmp_path))
    live = house.steps.live
    assert len(live) == 0
    record = house.leases.create(house.request()).record
    assert record.id in live
    assert set(live) == {record.id}
    assert {record.id, "x"} - live == {"x"}
    assert frozenset({record.id, "x"}) & live == {record.id}
    house.leases.release(TENANT, record.id)
    assert record.id not in live
    assert len(live) == 0
    house.close()
