from __future__ import annotations

import pytest

from stockade.edge.refusal import http_status, refusal
from stockade.terms.fault import REGISTRY, Code, Fault, Retry
from stockade.terms.result import ToolResult, error_of


@pytest.mark.parametrize("code", list(Code))
def test_every_code_has_a_result_and_an_http_status(code: Code) -> None:
    fault = Fault(code, "told", "a.rule", 5, {"n": 1, "names": ("a", "b"), "numbers": (1, 2)})
    made = refusal(fault, "rq_1", "1.2.3")
    again = ToolResult.model_validate_json(made.to_json())
    assert again == made
    row = REGISTRY[code]
    assert again.status is row.status
    assert again.error == error_of(fault)
    assert again.error is not None
    assert again.error.details == {"n": 1, "names": ["a", "b"], "numbers": [1, 2]}
    assert 400 <= http_status(code) < 600
    if again.retry_safe:
        assert row.retry is not Retry.RECONCILE


def test_only_what_certainly_did_nothing_is_safe_to_repeat() -> None:
    safe = {code for code in Code if refusal(Fault(code, ""), "r", "0").retry_safe}
    statuses = {REGISTRY[code].status for code in safe}
    assert statuses == {"invalid", "denied", "rejected", "approval_required", "unavailable"}
    assert Code.IN_FLIGHT not in safe  # the first is still at it


@pytest.mark.parametrize(
    ("code", "status"),
    [
        (Code.UNKNOWN_FIELD, 400),
        (Code.TOKEN_EXPIRED, 403),
        (Code.LEASE_NOT_GRANTED, 403),
        (Code.NOT_FOUND, 404),
        (Code.UNKNOWN_ROUTE, 404),
        (Code.BODY_TOO_LARGE, 413),
        (Code.INTERNAL, 500),
        (Code.BUSY, 503),
    ],
)
def test_the_http_status_of_an_error(code: Code, status: int) -> None:
    assert http_status(code) == status
