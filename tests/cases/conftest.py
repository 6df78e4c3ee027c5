"""Fixtures of the cases: one real daemon for all of them, leases of it, and a last look around."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import pytest

from stockade.edge.client.lease import Lease
from tests.cases.real import Daemon

LeaseFactory = Callable[..., Lease]


@pytest.fixture(scope="session")
def daemon() -> Iterator[Daemon]:
    """A `stockade serve` process: .socket, .pid, .state_dir, .stockade (a connected SDK), .log,
    .secret (SECRET_X of its environment). When it has ended nothing of it may be left, and it
    must never have logged a fault of its own."""
    made = Daemon.start()
    yield made
    log = made.log.read_text(errors="replace")
    left = made.stop()
    assert left == []
    assert "Traceback" not in log, log[-4000:]


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
