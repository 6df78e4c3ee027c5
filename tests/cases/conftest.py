"""Fixtures of the cases: one real daemon for all of them, leases of it, and a last look around."""

from __future__ import annotations

import secrets
import signal
from collections.abc import Callable, Iterator

import pytest

from stockade.edge.client.lease import Lease
from tests import daemons, kernel
from tests.daemons import PROGRAM, Daemon, until

LeaseFactory = Callable[..., Lease]


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """With SECRET_X in its environment. When it has ended nothing of it may be left, and it must
    never have logged a fault of its own."""
    # So that a token is over at its end.
    with daemons.daemon("[tokens]\nskew_s = 0\n", start=False) as made:
        # It ends with the tests, also where they are killed.
        made.program = ("setpriv", "--pdeathsig", "INT", PROGRAM)
        made.environment = {"SECRET_X": f"secret-{secrets.token_hex(16)}"}
        made.start()
        yield made
        made.stockade.close()
        family = kernel.descendants(made.pid)
        assert made.end(signal.SIGINT) == 0, made.log.lines[-40:]
        made.nothing_runs()
        assert not made.tops()
        alive = [pid for pid, start in family.items() if kernel.start_time(pid) == start]
        assert not alive
        # The kernel takes a dead namespace's mounts down a little after its last process.
        state = str(made.state)
        until(lambda: not kernel.mounts(state), f"mounts are removed: {kernel.mounts(state)}")
        assert not [line for line in made.log.lines if "Traceback" in line]


@pytest.fixture(scope="module")
def lease(daemon: Daemon) -> Iterator[Lease]:
    """A lease under the default grant, shared by a module's tests."""
    made = daemon.stockade.lease()
    yield made
    made.release().check()


@pytest.fixture
def fresh_lease(daemon: Daemon) -> Iterator[LeaseFactory]:
    """fresh_lease(source=None, **options of Stockade.lease): a lease that nobody used before,
    released after the test."""
    made: list[Lease] = []

    def make(source: str | None = None, **options: object) -> Lease:
        new = daemon.stockade.lease(source, **options)  # type: ignore[arg-type]
        made.append(new)
        return new

    yield make
    for each in made:
        # `not granted`: the test released it itself.
        released = each.release()
        assert released.error is None or released.error.code == "lease_not_granted", released
