"""Approvals: exactly this call, once, and nothing used up by a call that does not start."""

from __future__ import annotations

import json
import threading

import pytest
from pydantic import JsonValue

from stockade.decide.blocks import narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.flow.approvals import MOST_ARGUMENT_BYTES, MOST_OPEN
from stockade.flow.sweeper import SWEEP_S
from stockade.terms.approval import ApprovalState
from stockade.terms.fault import Code, Fault, Retry, Status, failure
from stockade.terms.grant import ApprovalRule
from stockade.terms.result import ToolResult
from stockade.testing.fake_engine import Script
from stockade.testing.faults import raising
from stockade.testing.house import code_of
from tests.grants import NO_BUDGET
from tests.unit.flow.lines import Line, code

PUSH: dict[str, JsonValue] = {"command": "git push"}
RULE = ApprovalRule(tool="bash_execute", argument="command", pattern="git push.*")


@pytest.fixture
def token(line: Line) -> str:
    return line.narrowed(approve=(RULE,))


def asked(result: ToolResult) -> str:
    assert (result.status, code(result)) == (Status.APPROVAL_REQUIRED, Code.APPROVAL_NEEDED)
    assert result.error is not None
    assert result.error.retry is Retry.SAME_CALL
    assert result.error.details is not None
    approval = result.error.details["approval"]
    assert isinstance(approval, str)
    return approval


def grant(line: Line, approval: str) -> None:
    line.house.approvals.decide(approval, granted=True, by="uid 0", reason=None)


def test_only_calls_that_a_rule_fits_wait_for_a_person(line: Line, token: str) -> None:
    assert line.call(arguments={"command": "git status"}, token=token).status == "succeeded"
    assert line.call("file_view", {"path": "none"}, token=token).status == "rejected"
    assert line.house.approvals.list() == []
    asked(line.call(arguments=PUSH, token=token))


def test_a_yes_is_given_back_with_the_bill(line: Line, token: str) -> None:
    """Where nothing ran although the call was carried out: a shell that was not found, say."""
    grant(line, asked(line.call(arguments=PUSH, token=token)))
    permit = line.house.permit(token)
    [approval] = line.house.approvals.list()
    arguments = json.loads(approval.arguments)
    for ran, state in ((False, ApprovalState.GRANTED), (True, ApprovalState.USED)):
        gate = line.house.gate.open(permit, line.record, "bash_execute", arguments, command=True)
        with gate as bill:
            bill.began = bill.runs = True
            assert line.house.approvals.show(approval.id).state is ApprovalState.USED
            if ran:
                bill.end(0)
            else:
                bill.give_back()
        assert line.house.approvals.show(approval.id).state is state


def test_who_finds_a_yes_used_up_does_not_give_it_back(
    line: Line, token: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of two that have seen it granted one starts, and no third may start after the other."""
    grant(line, asked(line.call(arguments=PUSH, token=token)))
    approvals = line.house.approvals
    [approval] = approvals.list()
    approvals.use(approval.id)  # the first has started
    monkeypatch.setattr(approvals, "check", lambda *seen: approval.id)
    permit, arguments = line.house.permit(token), json.loads(approval.arguments)

    def second() -> None:
        with line.house.gate.open(permit, line.record, "bash_execute", arguments, command=True):
            raise AssertionError("started")

    assert code_of(second) is Code.APPROVAL_NEEDED
    assert approvals.show(approval.id).state is ApprovalState.USED


def test_a_yes_is_for_one_start_of_exactly_this_call(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    assert asked(line.call(arguments=PUSH, token=token)) == approval
    other = asked(line.call(arguments={"command": "git push -f"}, token=token))
    assert other != approval
    grant(line, approval)
    assert asked(line.call(arguments={"command": "git push -f"}, token=token)) == other
    assert line.call(arguments=PUSH, token=token).status is Status.SUCCEEDED
    assert asked(line.call(arguments=PUSH, token=token)) == approval
    assert line.house.approvals.show(approval).state is ApprovalState.ASKED


def test_spelling_and_defaults_make_no_other_call(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    spelled: dict[str, JsonValue] = {"timeout_ms": "30000", "command": "git push"}
    assert asked(line.call(arguments=spelled, token=token)) == approval
    shown = line.house.approvals.show(approval)
    assert '"command":"git push"' in shown.arguments
    assert (shown.tenant, shown.lease_id) == (line.record.tenant, line.record.id)


def test_another_lease_asks_for_itself(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    other = line.house.leases.create(line.house.request("run-2")).record
    narrower = attenuate(other.token, narrow(inspect(other.token).blocks[-1], approve=(RULE,)))
    assert asked(line.call(arguments=PUSH, token=narrower, lease=other.id)) != approval


def test_a_no_is_an_answer_until_the_lease_ends(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    line.house.approvals.decide(approval, granted=False, by="uid 0", reason="not on a Friday")
    result = line.call(arguments=PUSH, token=token)
    assert (result.status, code(result)) == (Status.DENIED, Code.APPROVAL_DENIED)
    assert result.error is not None
    assert "not on a Friday" in result.error.message
    line.house.leases.release(None, line.record.id)
    assert code_of(lambda: line.house.approvals.show(approval)) is Code.NOT_FOUND
    line.house.clock.advance(SWEEP_S)
    line.house.sweeper.tick()
    with line.house.ledger.transaction() as connection:
        assert connection.execute("SELECT count(*) FROM approval").fetchone() == (0,)


def test_a_call_that_does_not_start_uses_nothing_up(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    grant(line, approval)
    line.faults.arm("admitted", raising(RuntimeError("x")))
    assert line.call(arguments=PUSH, token=token).status is Status.UNAVAILABLE
    trouble = Script(refused=Fault(Code.SANDBOX_UNAVAILABLE, "none"))
    line.house.engine.scripts[b"git push"] = trouble
    assert line.call(arguments=PUSH, token=token).status is Status.UNAVAILABLE
    del line.house.engine.scripts[b"git push"]
    no_calls = NO_BUDGET.model_copy(update={"calls": 0})
    spent = attenuate(token, narrow(inspect(token).blocks[-1], total=no_calls))
    assert code(line.call(arguments=PUSH, token=spent)) is Code.BUDGET_EXHAUSTED
    one_call = NO_BUDGET.model_copy(update={"calls": 1})
    once = attenuate(token, narrow(inspect(token).blocks[-1], total=one_call))
    line.faults.arm("sandbox", raising(failure(Code.CANCELLED, "before its sandbox was there")))
    assert line.call(arguments=PUSH, token=once).status is Status.CANCELLED
    assert line.call(arguments=PUSH, token=once).status is Status.SUCCEEDED


def test_it_is_used_up_before_the_effect(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    grant(line, approval)
    seen: list[ApprovalState] = []
    line.faults.arm("sandbox", lambda: seen.append(line.house.approvals.show(approval).state))
    line.faults.arm("ran", raising(RuntimeError("x")))
    assert code(line.call(arguments=PUSH, token=token)) is Code.IN_DOUBT
    assert seen == [ApprovalState.USED]
    asked(line.call(arguments=PUSH, token=token))


def test_of_calls_at_once_one_starts(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    grant(line, approval)
    results: list[ToolResult] = []
    threads = [
        threading.Thread(target=lambda: results.append(line.call(arguments=PUSH, token=token)))
        for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    statuses = sorted(result.status for result in results)
    assert statuses == [Status.APPROVAL_REQUIRED] * 5 + [Status.SUCCEEDED]


def test_a_lease_has_so_many_requests_at_most(line: Line, token: str) -> None:
    for number in range(MOST_OPEN):
        asked(line.call(arguments={"command": f"git push {number}"}, token=token))
    result = line.call(arguments={"command": "git push more"}, token=token)
    assert (result.status, code(result)) == (Status.UNAVAILABLE, Code.BUSY)


def test_what_a_person_can_not_be_shown_is_refused(line: Line, token: str) -> None:
    large: dict[str, JsonValue] = {"command": "git push " + "x" * MOST_ARGUMENT_BYTES}
    assert code(line.call(arguments=large, token=token)) is Code.ARGUMENT_TOO_LARGE
    assert line.house.approvals.list() == []


def test_a_used_request_is_not_decided_again(line: Line, token: str) -> None:
    approval = asked(line.call(arguments=PUSH, token=token))
    grant(line, approval)
    line.call(arguments=PUSH, token=token)
    assert code_of(lambda: grant(line, approval)) is Code.KEY_REUSED
    assert code_of(lambda: grant(line, "ap_none")) is Code.NOT_FOUND


def test_whole_files_can_not_be_approved(line: Line) -> None:
    rule = ApprovalRule(tool="file_edit", argument=None, pattern=None)
    permit = line.house.permit(line.narrowed(approve=(rule,)))
    arguments = {"path": "/workspace/a"}

    def write() -> None:
        with line.house.gate.transfer(permit, line.record, "file_edit", arguments):
            pytest.fail("it was let in")

    assert code_of(write) is Code.RIGHT_NOT_GRANTED
    with line.house.gate.transfer(permit, line.record, "file_view", arguments):
        pass


def test_a_request_shows_and_keeps_no_secret_but_is_for_the_call_with_it(
    line: Line, token: str
) -> None:
    line.house.secrets.add(line.record, "KEY", b"the-secret-value", in_environment=True)
    real: dict[str, JsonValue] = {"command": "git push https://the-secret-value@host"}
    other: dict[str, JsonValue] = {"command": "git push https://[redacted:KEY]@host"}
    approval = asked(line.call(arguments=real, token=token))
    shown = line.house.approvals.show(approval).arguments
    assert "git push https://[redacted:KEY]@host" in shown
    assert "the-secret-value" not in shown
    assert asked(line.call(arguments=other, token=token)) != approval
    grant(line, approval)
    assert line.call(arguments=real, token=token).status is Status.SUCCEEDED


def test_what_only_looks_like_a_credential_is_shown_to_who_decides(line: Line, token: str) -> None:
    command = "git push ghp_" + "a1B2c3" * 6
    approval = asked(line.call(arguments={"command": command}, token=token))
    assert command in line.house.approvals.show(approval).arguments
