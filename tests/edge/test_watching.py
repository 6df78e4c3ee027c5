"""What watches the daemon: health, readiness, figures, and who may have them."""

from __future__ import annotations

import json
import os

import pytest

from stockade.edge.exchange import Peer, Role
from tests.edge.conftest import FakeService, Running, Start

CALL = json.dumps(
    {"tool": "bash_execute", "arguments": {"command": ":"}, "lease": "ls_0123456789abcdef"}
)
UID = os.geteuid()


def test_health_and_readiness_answer_whoever_can_connect(start: Start) -> None:
    server = start(peers={})
    assert server.ask("GET", "/v1/health")[0] == 403
    assert server.ask("GET", "/healthz") == (200, b"ok\n")
    assert server.ask("GET", "/readyz") == (200, {"ready": True, "reasons": []})
    assert server.ask("GET", "/metrics")[0] == 403


def test_what_does_not_work_is_named_with_503(server: Running, service: FakeService) -> None:
    service.watching.reasons = ["ledger", "space"]
    assert server.ask("GET", "/readyz") == (503, {"ready": False, "reasons": ["ledger", "space"]})
    assert server.ask("GET", "/healthz")[0] == 200
    assert server.ask("GET", "/v1/health")[1]["status"] == "ok"


def test_figures_are_for_operators(start: Start) -> None:
    tenant = start(peers={UID: Peer(UID, "acme", Role.TENANT, own=False)})
    status, reply = tenant.ask("GET", "/metrics")
    assert (status, reply["error"]["code"]) == (403, "peer_not_allowed")
    operator = start(peers={UID: Peer(UID, None, Role.OPERATOR, own=False)}, name="o")
    assert operator.ask("GET", "/metrics") == (200, b"stockade_leases 1.0\n")


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/metrics", 405),
        ("GET", "/v1/metrics", 404),
        ("GET", "/v1//metrics", 404),
        ("GET", "/metrics/", 404),
        ("GET", "/v1/readyz", 404),
        ("GET", "/", 404),
    ],
)
def test_there_is_one_place_for_each(server: Running, method: str, path: str, status: int) -> None:
    assert server.ask(method, path)[0] == status


def test_every_kind_of_refusal_and_call_is_counted_once(server: Running) -> None:
    watcher = server.server._api._watcher
    server.ask("POST", "/v1/calls", CALL)
    server.ask("POST", "/v1/calls", "{")
    server.ask("POST", "/v1/run", "[]")
    server.ask("POST", "/v1/calls", b"x" * (5 << 20))
    server.ask("GET", "/v1/leases/acme%2Funknown")
    server.ask("POST", "/v1/leases", "{")
    counts = watcher.tally.counts()
    assert dict(counts.calls) == {
        ("bash_execute", "succeeded", "none"): 1,
        ("other", "invalid", "caller"): 3,
    }
    assert sum(counts.malformed.values()) == 4
    assert counts.malformed["body_too_large"] == 1
    assert dict(counts.denied) == {"lease_not_granted": 1}
    assert sum(counts.stage_times["receive"].counts) == 4
    assert sum(counts.stage_times["reply"].counts) == 1
