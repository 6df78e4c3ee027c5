"""A process is killed with SIGKILL between each two steps of each lease operation.

The steps are the points of the ledger (before and after each write), of the workspaces (before and
in the middle) and of the engine. A child process carries the operation out and dies at its n-th
point, for every n until it gets through. Then the state is opened again and recovered: nothing is
left that no lease claims, and nothing is lost that was answered for.
"""

from __future__ import annotations

import os
import signal
import traceback
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.terms.fault import Code, Failure
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.testing.faults import die
from stockade.testing.house import TENANT, House, open_house

Operation = Callable[[House], object]
ADDRESS = f"{TENANT}/run-1"


class Step:
    """Dies at point number `last`; counts from when it is armed."""

    def __init__(self, last: int) -> None:
        self._left = last
        self.armed = False

    def point(self, name: str) -> None:
        if self.armed:
            if self._left == 0:
                die()
            self._left -= 1


def killed(state: Path, operation: Operation, last: int) -> bool:
    """Carry `operation` out in a child that dies at point `last`; False if it got through."""
    child = os.fork()
    if child == 0:
        status = 1
        try:
            step = Step(last)
            house = open_house(str(state), point=step.point)
            step.armed = True
            operation(house)
            status = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(status)
    _, status = os.waitpid(child, 0)
    if os.WIFSIGNALED(status):
        assert os.WTERMSIG(status) == signal.SIGKILL
        return True
    assert os.WEXITSTATUS(status) == 0
    return False


def sweep_through(
    tmp_path: Path,
    prepare: Callable[[House, Path], None],
    operation: Callable[[House, Path], object],
    check: Callable[[House, bool], None],
) -> int:
    """Every point once, each on a state of its own. Gives how many points there were."""
    for last in range(100):
        state, source = tmp_path / f"state-{last}", tmp_path / f"source-{last}"
        source.mkdir()
        (source / "a").write_text("from the source")
        house = open_house(str(state))
        prepare(house, source)
        house.close()
        died = killed(state, lambda child, given=source: operation(child, given), last)  # type: ignore[misc]
        again = open_house(str(state))
        assert again.sweeper.recover() == ()
        check(again, died)
        check_nothing_left_behind(again)
        again.close()
        if not died:
            return last
    raise AssertionError("the operation has no end")


def check_nothing_left_behind(house: House) -> None:
    live = house.ledger.leases()
    assert all(record.state is LeaseState.READY for record in live)
    ids = {record.id for record in live}
    for place in (house.workspaces.directory, house.engine.directory, house.artifacts.directory):
        assert set(os.listdir(place) if os.path.isdir(place) else ()) <= ids, place
    assert set(os.listdir(house.workspaces.directory)) == ids


def create(house: House, source: Path) -> LeaseRecord:
    return house.leases.create(house.request(source=str(source))).record


def create_used(house: House, source: Path) -> None:
    """A lease with work in it, a sandbox's shared things and an artifact."""
    record = create(house, source)
    (house.workspace(record) / "work").write_text("done")
    os.mkdir(os.path.join(house.engine.directory, record.id))
    sink = house.artifacts.open(record.id, "stdout", 0, 100)
    sink.write(b"hello")
    sink.finish()


def check_usable(house: House, record: LeaseRecord) -> None:
    admitted = house.leases.admit(record.id, house.permit(record.token))
    assert (house.workspace(admitted) / "a").read_text() == "from the source"


def only(house: House) -> LeaseRecord:
    (record,) = house.ledger.leases()
    return record


def test_create_killed_between_any_two_steps(tmp_path: Path) -> None:
    def check(house: House, died: bool) -> None:
        found = house.ledger.leases()
        if not died:
            assert len(found) == 1
        for record in found:
            check_usable(house, record)
        # Whatever happened, repeating it gives a lease that works.
        source = next(tmp_path.glob("source-*"))
        if not found:
            check_usable(house, create(house, source))

    points = sweep_through(tmp_path, lambda house, source: None, create, check)
    assert points >= 6  # add, added, copy, half a copy, ready, readied


def test_reset_killed_between_any_two_steps(tmp_path: Path) -> None:
    versions = set()

    def check(house: House, died: bool) -> None:
        record = only(house)
        check_usable(house, record)
        versions.add(record.workspace_version)
        # Either it had not begun and nothing is lost, or it is complete.
        assert (house.workspace(record) / "work").exists() == (record.workspace_version == 1)
        assert died or record.workspace_version == 2

    points = sweep_through(
        tmp_path, create_used, lambda house, source: house.leases.reset(TENANT, ADDRESS), check
    )
    assert points >= 6
    assert versions == {1, 2}


def test_release_killed_between_any_two_steps(tmp_path: Path) -> None:
    kept = 0

    def check(house: House, died: bool) -> None:
        nonlocal kept
        if house.ledger.leases():
            record = only(house)
            assert died
            check_usable(house, record)
            assert (house.workspace(record) / "work").read_text() == "done"
            kept += 1
        else:
            with pytest.raises(Failure) as caught:
                house.leases.show(TENANT, ADDRESS)
            assert caught.value.fault.code is Code.LEASE_NOT_GRANTED

    points = sweep_through(
        tmp_path, create_used, lambda house, source: house.leases.release(TENANT, ADDRESS), check
    )
    assert points >= 6
    assert kept == 1  # only before the very first write


def test_take_over_killed_between_any_two_steps(tmp_path: Path) -> None:
    tokens: dict[Path, str] = {}
    generations = set()

    def prepare(house: House, source: Path) -> None:
        create_used(house, source)
        tokens[source] = only(house).token

    def take_over(house: House, source: Path) -> object:
        return house.leases.create(house.request(source=str(source), take_over=True))

    def check(house: House, died: bool) -> None:
        record = only(house)
        generations.add(record.generation)
        check_usable(house, record)
        assert (house.workspace(record) / "work").read_text() == "done"
        old = house.permit(tokens[Path(record.source or "")])
        if record.generation == 1:
            assert house.leases.admit(record.id, old) == record
        else:
            with pytest.raises(Failure) as caught:
                house.leases.admit(record.id, old)
            assert caught.value.fault.code is Code.STALE_GENERATION

    points = sweep_through(tmp_path, prepare, take_over, check)
    assert points >= 2
    assert generations == {1, 2}


def test_expiry_killed_between_any_two_steps(tmp_path: Path) -> None:
    def expire(house: House, source: Path) -> None:
        house.clock.advance(only(house).expires_at_s - house.clock())
        house.sweeper.tick()

    def check(house: House, died: bool) -> None:
        house.clock.advance(10_000)
        house.sweeper.tick()
        assert house.ledger.leases() == []

    assert sweep_through(tmp_path, create_used, expire, check) >= 6


def test_recovery_itself_killed_between_any_two_steps(tmp_path: Path) -> None:
    """One lease in each state that a crash can leave, then crashes in the middle of recovering."""

    def prepare(house: House, source: Path) -> None:
        create_used(house, source)
        house.ledger.put_lease(replace(only(house), state=LeaseState.RESETTING))
        half = house.leases.create(house.request("run-2", source=str(source))).record
        house.ledger.put_lease(replace(half, state=LeaseState.CREATING))
        gone = house.leases.create(house.request("run-3", source=str(source))).record
        house.ledger.put_lease(replace(gone, state=LeaseState.DIRTY))
        os.mkdir(os.path.join(house.workspaces.directory, "ls_00000000000000aa"))

    def check(house: House, died: bool) -> None:
        record = only(house)
        assert record.trajectory == "run-1"
        assert record.workspace_version == 2
        check_usable(house, record)
        assert os.listdir(house.workspace(record)) == ["a"]

    points = sweep_through(tmp_path, prepare, lambda house, source: house.sweeper.recover(), check)
    assert points >= 15


def test_a_recovery_that_can_not_remove_goes_on_and_says_so(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    state, source = tmp_path / "state", tmp_path / "source"
    source.mkdir()
    house = open_house(str(state))
    create_used(house, source)
    house.ledger.put_lease(replace(only(house), state=LeaseState.DIRTY))
    healthy = house.leases.create(house.request("run-2", source=str(source))).record
    house.close()

    def stubborn(name: str) -> None:
        if name == "workspaces.remove":
            raise OSError("immutable")

    again = open_house(str(state), point=stubborn)
    again.sweeper.recover()
    assert "immutable" in caplog.text
    states = {record.trajectory: record.state for record in again.ledger.leases()}
    assert states == {"run-1": LeaseState.DIRTY, "run-2": LeaseState.READY}
    again.leases.admit(healthy.id, again.permit(healthy.token))
    again.close()
