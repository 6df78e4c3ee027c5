"""SIGKILL between each two steps of what concerns several leases of one workspace.

After each crash the state is opened again and recovered: no lease works in a workspace that isn't
there, nothing is left that no lease claims, and what was answered for is there.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.testing.house import TENANT, House, open_house
from tests.faults.test_lease_recovery import killed

PARENT = f"{TENANT}/run-1"
CHILD = f"{TENANT}/run-1/a"


def prepare(house: House, source: Path, all_of_it: bool = True) -> None:
    """A lease and one that shares it, and, in all, one that shares that and a fork; with work in
    each."""
    parent = house.leases.create(house.request(source=str(source))).record
    child = make(house, "run-1/a", share=parent.id)
    if all_of_it:
        make(house, "run-1/a/x", share=child.id)
        make(house, "run-1/f", fork=parent.id)
    for record in house.ledger.leases():
        (house.workspace(record) / f"by-{record.trajectory.replace('/', '-')}").touch()
        os.makedirs(os.path.join(house.engine.directory, record.id))
        sink = house.artifacts.open(record.id, "stdout", 0, 100)
        sink.write(b"hello")
        sink.finish()


def make(house: House, trajectory: str, **changes: object) -> LeaseRecord:
    return house.leases.create(house.request(trajectory, **changes)).record


def found(house: House) -> dict[str, LeaseRecord]:
    return {record.trajectory: record for record in house.ledger.leases()}


def each_point(
    tmp_path: Path,
    operation: Callable[[House], object],
    check: Callable[[House, bool], None],
    arrange: Callable[[House, Path], None] = prepare,
) -> int:
    for last in range(100):
        state, source = tmp_path / f"state-{last}", tmp_path / f"source-{last}"
        source.mkdir()
        (source / "a").write_text("from the source")
        house = open_house(str(state))
        arrange(house, source)
        house.close()
        died = killed(state, operation, last)
        again = open_house(str(state))
        assert again.sweeper.recover() == ()
        consistent(again)
        check(again, died)
        again.close()
        if not died:
            return last
    raise AssertionError("the operation has no end")


def consistent(house: House) -> None:
    live = {record.id: record for record in house.ledger.leases()}
    for record in live.values():
        assert record.state is LeaseState.READY
        assert record.shares is None or record.shares in live
        admitted = house.leases.admit(record.id, house.permit(record.token))
        assert (house.workspace(admitted) / "a").read_text() == "from the source"
        owner = house.steps.families.owner(record)
        assert (owner.uid_base, owner.workspace_version) == (
            record.uid_base,
            record.workspace_version,
        )
    for place in (house.engine.directory, house.artifacts.directory):
        assert set(os.listdir(place)) <= set(live), place
    owners = {record.id for record in live.values() if record.shares is None}
    assert set(os.listdir(house.workspaces.directory)) == owners


@pytest.mark.parametrize("how", ["share", "fork"])
def test_making_one(tmp_path: Path, how: str) -> None:
    def create(house: House) -> LeaseRecord:
        return make(house, "run-1/new", **{how: PARENT})

    def check(house: House, died: bool) -> None:
        assert died or "run-1/new" in found(house)
        made = create(house)  # repeating it gives one that works
        assert (house.workspace(made) / "by-run-1").exists()
        assert len(found(house)) == 5

    assert each_point(tmp_path, create, check) >= 4


def test_release_of_the_owner(tmp_path: Path) -> None:
    left = set()

    def check(house: House, died: bool) -> None:
        now = frozenset(found(house))
        left.add(now)
        assert died or now == {"run-1/f"}

    points = each_point(tmp_path, lambda house: house.leases.release(TENANT, PARENT), check)
    assert points >= 15
    # All or nothing: before the first write nothing has happened, after it all of it does.
    assert left == {
        frozenset({"run-1", "run-1/a", "run-1/a/x", "run-1/f"}),
        frozenset({"run-1/f"}),
    }


def test_release_of_one_in_the_middle(tmp_path: Path) -> None:
    def check(house: House, died: bool) -> None:
        now = set(found(house))
        assert {"run-1", "run-1/f"} <= now
        assert now - {"run-1", "run-1/f"} in (set(), {"run-1/a", "run-1/a/x"})
        assert (house.workspace(found(house)["run-1"]) / "by-run-1-a").exists()

    points = each_point(tmp_path, lambda house: house.leases.release(TENANT, CHILD), check)
    assert points >= 8


def test_reset_of_the_owner(tmp_path: Path) -> None:
    versions = set()

    def check(house: House, died: bool) -> None:
        now = found(house)
        assert len(now) == 4
        parent = now["run-1"]
        versions.add(parent.workspace_version)
        there = (house.workspace(parent) / "by-run-1").exists()
        assert there == (parent.workspace_version == 1)
        assert died or not there
        assert (house.workspace(now["run-1/f"]) / "by-run-1-f").exists()

    points = each_point(tmp_path, lambda house: house.leases.reset(TENANT, PARENT), check)
    assert points >= 8
    assert versions >= {1, 2}


def test_taking_the_owner_over(tmp_path: Path) -> None:
    def take_over(house: House) -> object:
        parent = found(house)["run-1"]
        return house.leases.create(house.request(source=parent.source, take_over=True))

    def check(house: House, died: bool) -> None:
        now = found(house)
        # No new owner beside those who work under the old one.
        assert now["run-1"].generation == 1 or set(now) == {"run-1", "run-1/f"}
        assert died or now["run-1"].generation == 2

    assert each_point(tmp_path, take_over, check) >= 8


def test_expiry_of_the_owner(tmp_path: Path) -> None:
    def expire(house: House) -> None:
        house.clock.advance(found(house)["run-1"].expires_at_s - house.clock())
        house.sweeper.tick()

    def arrange(house: House, source: Path) -> None:
        prepare(house, source)
        house.leases.renew(TENANT, f"{TENANT}/run-1/f", 100_000)

    def check(house: House, died: bool) -> None:
        house.clock.advance(10_000)
        house.sweeper.tick()
        assert set(found(house)) == {"run-1/f"}

    assert each_point(tmp_path, expire, check, arrange) >= 15


def test_recovery_itself(tmp_path: Path) -> None:
    """The owner is in a state that a crash can leave, and recovering dies as well."""
    for number, above in enumerate((LeaseState.RESETTING, LeaseState.DIRTY)):

        def arrange(house: House, source: Path, above: LeaseState = above) -> None:
            prepare(house, source, all_of_it=False)
            house.ledger.put_lease(replace(found(house)["run-1"], state=above))

        def check(house: House, died: bool, above: LeaseState = above) -> None:
            lives = above is LeaseState.RESETTING
            assert len(found(house)) == (2 if lives else 0)

        place = tmp_path / str(number)
        place.mkdir()
        points = each_point(place, lambda house: house.sweeper.recover(), check, arrange)
        assert points >= 8
