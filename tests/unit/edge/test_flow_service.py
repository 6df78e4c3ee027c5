"""What a request for a lease says reaches the flow, and what it leaves out is the daemon's default."""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.edge.client.results import StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.server.config import Defaults
from stockade.edge.wire import LeaseCreate
from stockade.runtime import Options, Runtime, open_runtime
from stockade.terms.fault import Code, Status

OPERATOR = Peer(0, None, Role.OPERATOR, own=True)
TENANT = Peer(1000, "acme", Role.TENANT, own=False)


def _connection(runtime: Runtime, peer: Peer = OPERATOR) -> Stockade:
    return Stockade(InProcessTransport(runtime.api, peer, lambda: None))


@pytest.fixture(scope="module")
def place() -> Path:
    # Disk images are sparse files: not below /tmp, which may be memory.
    return Path(tempfile.mkdtemp(prefix="stockade-test-", dir="/var/tmp"))


@pytest.fixture(scope="module")
def runtime(place: Path) -> Iterator[Runtime]:
    made = open_runtime(place, Options(defaults=Defaults(grant="read-only", ttl_s=120)))
    try:
        yield made
        for record in made.leases.list(None):
            made.leases.release(None, record.id)
    finally:
        made.close()
        shutil.rmtree(place)


def test_take_over_raises_the_generation_and_refuses_the_former_holder(runtime: Runtime) -> None:
    stockade = _connection(runtime)
    asked = LeaseCreate(tenant="acme", trajectory="take", grant="edit")
    _, first = stockade.create_lease(asked)
    _, second = stockade.create_lease(asked.model_copy(update={"take_over": True}))
    assert first is not None
    assert second is not None
    assert second.id == first.id
    assert (first.generation, second.generation) == (1, 2)
    refused = first.view("a")
    assert refused.error is not None
    assert refused.error.code is Code.STALE_GENERATION
    allowed = second.view("a")
    assert allowed.error is not None
    assert allowed.error.code is Code.NOT_FOUND


def test_a_lease_gets_the_daemons_defaults_where_its_request_is_silent(runtime: Runtime) -> None:
    stockade = _connection(runtime)
    before = runtime.leases._clock()
    lease = stockade.lease(tenant="acme", trajectory="silent")
    record = runtime.leases.show(None, lease.id)
    assert record.grant.tools == ("file_view", "grep_search")
    assert 100 < record.expires_at_s - before <= 130


def test_a_capability_decides_instead_of_the_default_grant(runtime: Runtime) -> None:
    stockade = _connection(runtime)
    token = stockade.mint("acme", "capable", "edit", 600)
    lease = stockade.lease(tenant="acme", trajectory="capable", capability=token)
    record = runtime.leases.show(None, lease.id)
    assert record.grant.tools == ("file_edit", "file_view", "grep_search")


def test_what_fails_on_the_host_names_no_path_of_the_state_directory(
    runtime: Runtime, place: Path, caplog: pytest.LogCaptureFixture
) -> None:
    stockade = _connection(runtime)
    lease = stockade.lease(tenant="acme", trajectory="paths", grant="agent")
    for part in ("sandboxes", "leases", "disks"):
        (place / part).rename(place / "away")
        try:
            if part == "sandboxes":
                result = lease.bash("true")
            else:
                asked = LeaseCreate(tenant="acme", trajectory=f"no-{part}", grant="edit")
                result = stockade.create_lease(asked)[0]
        finally:
            (place / "away").rename(place / part)
        assert result.status is Status.UNAVAILABLE
        assert str(place) not in result.to_text(), part
    assert f"{place}/sandboxes" in caplog.text


def test_where_the_state_directory_is_only_an_operator_learns(
    runtime: Runtime, place: Path
) -> None:
    """Both get the same findings."""
    told = _connection(runtime).doctor()
    assert str(place) in told.model_dump_json()
    hidden = _connection(runtime, TENANT).doctor()
    assert str(place) not in hidden.model_dump_json()
    assert "on (state directory), /usr, /etc" in hidden.model_dump_json()
    assert [check.name for check in hidden.checks] == [check.name for check in told.checks]


def test_a_lease_that_is_over_says_so_also_to_who_needs_no_token(runtime: Runtime) -> None:
    """Its record keeps no token, and none is not one that is malformed."""
    stockade = _connection(runtime)
    lease = stockade.lease(tenant="acme", trajectory="over")
    lease.release().check()
    again = stockade.attach(lease.id)
    viewed = again.view("a")
    assert viewed.error is not None
    assert viewed.error.code is Code.LEASE_EXPIRED
    for ask in (lambda: again.cancel("c"), lambda: stockade.spend(lease=lease.id)):
        with pytest.raises(StockadeError, match="lease_expired: the lease has been released"):
            ask()
