"""A real daemon that is killed between any two stages of a call, and what the call's repeat gets.

Each call adds a line to a file, so the file counts how often it ran.
"""

from __future__ import annotations

import select
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from stockade.edge.claim_wire import SettleAs
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from stockade.terms.claim import ClaimState
from stockade.terms.fault import Code, Status
from stockade.terms.result import EditData, Warn
from tests.daemons import WAIT_S, Daemon, daemon, error, output
from tests.faults.killed_under_load import under_fire

BEFORE = ("parsed", "compiled", "admitted", "sandbox")
AMID = ("starting", "ran", "shaped")


@contextmanager
def pointed(config: str = "") -> Iterator[Daemon]:
    with daemon(config, start=False) as made:
        made.program = (sys.executable, "-m", "tests.faults.pointed", str(made.state))
        made.start()
        yield made


@pytest.fixture(scope="module")
def server() -> Iterator[Daemon]:
    with pointed() as made:
        yield made


@pytest.fixture(scope="module")
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


@pytest.fixture
def lease(stockade: Stockade, request: pytest.FixtureRequest) -> Iterator[Lease]:
    name = "".join(c if c.isalnum() else "-" for c in request.node.name)[:60]
    with stockade.lease(None, trajectory=name) as made:
        made.bash("echo one > f; touch n").check()
        yield made


def killed_at(server: Daemon, point: str, lease: Lease) -> Result:
    """Make the call with the daemon dying at `point`; it is started again."""
    (server.state / "die-at").write_text(point)
    result = add(lease)
    assert server.process is not None
    assert server.process.wait(WAIT_S) == -9
    server.start()
    return result


def add(lease: Lease) -> Result:
    return lease.call("bash_execute", {"command": "echo x >> n"}, turn=1, call_id="c1")


def edit(lease: Lease) -> Result:
    arguments = {"path": "f", "old_str": "one", "new_str": "two"}
    return lease.call("file_edit", arguments, turn=1, call_id="e1")


def ran(lease: Lease) -> int:
    return output(lease, "cat n").count("x")


@pytest.mark.parametrize("point", BEFORE)
def test_killed_before_the_command_was_given_out(server: Daemon, lease: Lease, point: str) -> None:
    """It has not run, the daemon knows it, and a repeat runs it."""
    assert killed_at(server, point, lease).status is Status.UNKNOWN
    assert ran(lease) == 0
    again = add(lease).check()
    assert not again.replayed
    assert ran(lease) == 1
    assert add(lease).check().replayed
    assert ran(lease) == 1


@pytest.mark.parametrize("point", AMID)
def test_killed_where_the_command_may_have_run(
    server: Daemon, stockade: Stockade, lease: Lease, point: str
) -> None:
    """Either what is left of it says what became of it, or it is in doubt until it is settled."""
    assert killed_at(server, point, lease).status is Status.UNKNOWN
    before = ran(lease)
    assert before == (0 if point == "starting" else 1)
    again = add(lease)
    if again.error is not None:
        assert error(again).code is Code.IN_DOUBT
        assert ran(lease) == before
        [seen] = stockade.calls(lease=lease.id, in_doubt=True)
        assert seen.call.call_id == "c1"
        found = SettleAs.COMPLETED if before else SettleAs.NOT_EXECUTED
        stockade.settle_call(seen.id, found, "looked at the file")
        assert stockade.calls(lease=lease.id, in_doubt=True) == []
        again = add(lease).check()
        told = [warning for warning in again.warnings if warning.code is Warn.SETTLED]
        assert len(told) == before
    assert again.replayed == bool(before)
    assert ran(lease) == 1
    assert add(lease).check().replayed
    assert ran(lease) == 1


def test_killed_before_the_reply(server: Daemon, lease: Lease) -> None:
    """The result was recorded, so it is not lost."""
    assert killed_at(server, "settled", lease).status is Status.UNKNOWN
    again = add(lease).check()
    assert again.replayed
    assert again.exit is not None
    assert again.exit.code == 0
    assert ran(lease) == 1


@pytest.mark.parametrize("point", ["foreseen", "ran", "shaped", "settled"])
def test_an_edit_settles_itself(server: Daemon, lease: Lease, point: str) -> None:
    (server.state / "die-at").write_text(point)
    assert edit(lease).status is Status.UNKNOWN
    assert server.process is not None
    assert server.process.wait(WAIT_S) == -9
    server.start()
    done = point != "foreseen"
    assert output(lease, "cat f") == ("two\n" if done else "one\n")
    again = edit(lease).check()
    assert again.replayed == done
    assert isinstance(again.data, EditData)
    assert (again.data.replacements, "+two" in again.data.diff) == (1, True)
    assert output(lease, "cat f") == "two\n"
    assert edit(lease).check().replayed


def test_no_call_is_left_in_flight(stockade: Stockade, lease: Lease) -> None:
    add(lease).check()
    assert {seen.state for seen in stockade.calls()} <= {
        ClaimState.COMPLETED,
        ClaimState.NOT_EXECUTED,
        ClaimState.IN_DOUBT,
    }


def test_calls_under_a_daemon_that_is_killed_again_and_again() -> None:
    """The short form of what `make soak` does for long."""
    with daemon("[limits]\ncalls = 64\n") as server:
        tallies = under_fire(server, trajectories=6, kills=5, seed=20_240_601)
    assert [tally.faults() for tally in tallies] == [[]] * 6
    assert sum(len(tally.acknowledged) for tally in tallies) > 6


@pytest.mark.parametrize("moment", [0.0, 0.004, 0.012])
def test_b71_after_a_crash_the_name_is_not_taken(
    server: Daemon, stockade: Stockade, moment: float
) -> None:
    """The daemon dies while it makes a lease or its first sandbox: the same trajectory is given one
    lease that works."""

    def make() -> None:
        made = LeaseCreate(tenant="local", trajectory="b71")
        _, lease = stockade.create_lease(made, None)
        if lease is not None:
            lease.bash("echo ran")

    thread = threading.Thread(target=make, daemon=True)
    thread.start()
    select.select((), (), (), moment)
    server.kill()
    thread.join(WAIT_S)
    server.start()
    with stockade.lease(None, trajectory="b71") as again:
        assert output(again, "echo works") == "works\n"
        assert len([view for view in stockade.leases() if view.trajectory == "b71"]) == 1
