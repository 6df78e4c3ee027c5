"""A real daemon whose wall clock is set by an hour, forwards and back, while it works.

Only the daemon sees the other time: a library that is loaded before the C library adds what a file
says to the wall clock and leaves the clocks of the boot alone, as settimeofday(2) does.
"""

from __future__ import annotations

import mmap
import signal
import struct
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import pytest

from stockade.edge.client.lease import Lease
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import LeaseCreate
from stockade.terms.fault import Code
from tests.daemons import PROGRAM, Daemon, InCall, daemon, error, output, text, until

HOUR_S: Final = 3600
SKEW_S: Final = 200
SOURCE: Final = Path(__file__).with_name("stepped.c")


class Wall:
    """The daemon's wall clock, by how many seconds it differs from the host's."""

    def __init__(self, path: Path) -> None:
        path.write_bytes(bytes(8))
        with path.open("r+b") as file:
            self._map = mmap.mmap(file.fileno(), 8)

    def set(self, seconds: int) -> None:
        self._map[:] = struct.pack("=q", seconds)

    def close(self) -> None:
        self._map.close()


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    made = tmp_path_factory.mktemp("clock") / "stepped.so"
    subprocess.run(
        ["gcc", "-O1", "-Wall", "-Werror", "-shared", "-fPIC", "-o", str(made), str(SOURCE)],
        check=True,
    )
    return made


@pytest.fixture
def wall(tmp_path: Path) -> Iterator[Wall]:
    made = Wall(tmp_path / "step")
    yield made
    made.close()


@pytest.fixture
def server(library: Path, wall: Wall, tmp_path: Path) -> Iterator[Daemon]:
    with daemon(f"[tokens]\nskew_s = {SKEW_S}\n", start=False) as made:
        variables = (f"LD_PRELOAD={library}", f"STEP_FILE={tmp_path / 'step'}")
        made.program = ("env", *variables, PROGRAM)
        made.start()
        yield made


@pytest.fixture
def stockade(server: Daemon) -> Iterator[Stockade]:
    with server.connect() as made:
        yield made


def living(stockade: Stockade, lease: Lease) -> bool:
    return lease.id in {view.lease_id for view in stockade.leases() if view.state == "ready"}


def test_a_lease_and_its_call_go_on_over_steps_and_a_restart(
    server: Daemon, stockade: Stockade, wall: Wall
) -> None:
    lease = stockade.lease(None, trajectory="t", ttl_s=HOUR_S // 2)
    lease.bash("echo kept > kept; sleep 600 &").check()
    call = InCall(lease, "until [ -e go ]; do sleep 0.02; done; echo done")
    for step_s in (HOUR_S, -HOUR_S, 0):
        wall.set(step_s)
        assert lease.show().state == "ready"
        assert call.running
        result = lease.bash("cat kept")
        if step_s < 0:
            # The lease's token begins later than now.
            assert error(result).code is Code.TOKEN_NOT_YET_VALID
        else:
            assert text(result) == "kept\n"
    lease.bash("touch go").check()
    assert text(call.result()) == "started\ndone\n"
    for step_s in (HOUR_S, -HOUR_S):
        wall.set(step_s)
        assert server.end(signal.SIGTERM) == 0
        server.start()
        assert living(stockade, lease)
    wall.set(0)
    assert output(lease, "cat kept; pgrep -c sleep") == "kept\n1\n"
    assert stockade.audit.verify().flaw is None


@pytest.mark.parametrize("step_s", [HOUR_S, -HOUR_S])
def test_a_lease_ends_when_its_time_is_over_whatever_the_wall_clock_says(
    stockade: Stockade, wall: Wall, step_s: int
) -> None:
    lease = stockade.lease(None, trajectory="short", ttl_s=2)
    long = stockade.lease(None, trajectory="long", ttl_s=600)
    call = InCall(lease, "sleep 600")
    wall.set(step_s)
    assert error(call.result()).code is Code.LEASE_EXPIRED_IN_CALL
    until(lambda: not living(stockade, lease), "it is taken down")
    assert living(stockade, long)
    # Its token runs on the wall clock: it lasts longer than an hour, and began a moment ago.
    result = long.bash("echo on")
    if step_s > 0:
        assert text(result) == "on\n"
    else:
        assert error(result).code is Code.TOKEN_NOT_YET_VALID
    wall.set(0)
    assert output(long, "echo on") == "on\n"


def test_tokens_follow_the_wall_clock_with_the_stated_skew(stockade: Stockade, wall: Wall) -> None:
    token = stockade.mint("local", "run-1", "agent", HOUR_S)
    wanted = LeaseCreate(tenant="local", trajectory="run-1")
    half = SKEW_S // 2  # the host's time goes on meanwhile
    for step_s, code in (
        (HOUR_S + half, None),
        (HOUR_S + SKEW_S + half, Code.TOKEN_EXPIRED),
        (-half, None),
        (-SKEW_S - half, Code.TOKEN_NOT_YET_VALID),
        (0, None),
    ):
        wall.set(step_s)
        result, lease = stockade.create_lease(wanted, token)
        assert (result.error and result.error.code) == code, step_s
        assert (lease is None) == (code is not None)
