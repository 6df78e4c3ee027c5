"""What the SDK sends with a call that has an id, and about calls that were made."""

from __future__ import annotations

import pytest

from stockade.decide.idempotency import Place, canonical_arguments, idempotency_key
from stockade.edge.claim_wire import CallsQuery, SettleAs, SettleRequest
from stockade.edge.client.lease import Lease
from stockade.edge.client.link import Link
from stockade.edge.client.sdk import Stockade
from stockade.edge.wire import CallRequest, RunRequest
from stockade.terms.ids import CALL_ID_PATTERN
from tests.edge.conftest import CALL_RECORD, CALL_VIEW, LEASE, TOKEN, FakeService, Running


def test_the_sdk_sends_what_it_is_given(stockade: Stockade, service: FakeService) -> None:
    assert stockade.calls() == [CALL_VIEW]
    assert stockade.calls(lease="acme/run-1", in_doubt=True) == [CALL_VIEW]
    assert stockade.call_record("cl_1") == CALL_RECORD
    assert stockade.call_record("cl_1", TOKEN) == CALL_RECORD
    assert stockade.settle_call("cl_1", SettleAs.NOT_EXECUTED, "looked") == CALL_VIEW
    request = SettleRequest.model_validate({"as": "not-executed", "reason": "looked"})
    assert service.claims.seen == [
        ("calls", CallsQuery()),
        ("calls", CallsQuery(lease="acme/run-1", in_doubt="true")),
        ("call", (None, "cl_1")),
        ("call", (TOKEN, "cl_1")),
        ("settle", ("cl_1", request)),
    ]


@pytest.mark.parametrize(
    ("method", "target", "body", "code"),
    [
        ("GET", "/v1/calls?in_doubt=yes", None, "invalid_argument"),
        ("GET", "/v1/calls?what=1", None, "unknown_field"),
        ("POST", "/v1/calls/cl_1/settle", '{"as": "maybe", "reason": "x"}', "invalid_argument"),
        ("POST", "/v1/calls/cl_1/settle", '{"as": "completed", "reason": ""}', "invalid_argument"),
        ("POST", "/v1/calls/cl_1/settle", '{"as": "completed"}', "missing_field"),
    ],
)
def test_bad_questions(
    server: Running, service: FakeService, method: str, target: str, body: str | None, code: str
) -> None:
    status, reply = server.ask(method, target, body)
    assert (status, reply["error"]["code"]) == (400, code)
    assert service.claims.seen == []


def test_a_call_with_an_id_carries_its_key(stockade: Stockade, service: FakeService) -> None:
    link: Link = stockade._link
    lease = Lease(link.with_token(TOKEN), LEASE, TOKEN, ("acme", "t/1"))
    lease.call("bash_execute", {"command": "x", "timeout_ms": None}, turn=2, call_id="c")
    lease.run(["a"], turn=2, call_id="c", timeout_ms=5)
    lease.bash("x")
    Lease(link, LEASE, None).call("bash_execute", {"command": "x"}, call_id="c")
    sent = [value for verb, value in service.seen if verb in ("call", "run")]
    place = Place("acme", "t/1", 2, "c")
    bash = canonical_arguments({"command": "x"})
    run = canonical_arguments({"argv": ["a"], "timeout_ms": 5})
    keys = []
    for value in sent:
        assert isinstance(value, CallRequest | RunRequest)
        keys.append(value.idempotency_key)
    assert keys == [
        idempotency_key(place, "bash_execute", bash),
        idempotency_key(place, "run", run),
        None,
        None,
    ]


def test_no_caller_can_name_a_drawn_id() -> None:
    assert "!" not in CALL_ID_PATTERN
