"""What the command line and the SDK send about budgets and approvals, and what they print."""

from __future__ import annotations

from stockade.edge.client.sdk import Stockade
from tests.edge.conftest import APPROVAL, SPEND, TOKEN, FakeService


def test_the_sdk_sends_what_it_is_given(stockade: Stockade, service: FakeService) -> None:
    assert stockade.spend(token=TOKEN) == SPEND
    assert stockade.spend(lease="acme/run-1/sub-2") == SPEND
    assert stockade.approvals() == [APPROVAL]
    assert stockade.approval("ap_1") == APPROVAL
    stockade.decide_approval("ap_1", granted=True)
    stockade.decide_approval("ap_1", granted=False, reason="no")
    assert service.budgets.seen == [
        ("spend", (TOKEN, None)),
        ("spend", (None, "acme/run-1/sub-2")),
        ("approval", "ap_1"),
        ("decide", ("ap_1", None, True)),
        ("decide", ("ap_1", "no", False)),
    ]
