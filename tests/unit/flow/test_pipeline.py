"""The order of the stages and what each answers with, over the fake engine and real everything else."""

from __future__ import annotations

import pytest
from pydantic import JsonValue

from stockade.terms.fault import Code, Fault, Status
from stockade.testing.fake_engine import Script
from stockade.testing.faults import raising
from stockade.testing.house import TENANT
from tests.unit.flow.lines import Line, code


def test_stages_come_in_their_order(line: Line) -> None:
    assert line.call().status is Status.SUCCEEDED
    assert line.faults.seen == [
        "parsed",
        "compiled",
        "admitted",
        "sandbox",
        "starting",
        "ran",
        "shaped",
        "settled",
    ]


def test_every_key_of_the_provenance_is_filled(line: Line) -> None:
    result = line.call()
    said = result.provenance
    assert said.lease_id == line.record.id
    assert said.generation == 1
    assert said.plan_digest
    assert len(said.plan_digest) == 64
    assert said.capability_chain == list(line.record.chain)
    assert said.workspace_version == "1"
    assert result.call.trajectory_id == line.record.trajectory


@pytest.mark.parametrize("point", ["parsed", "compiled", "sandbox"])
def test_unexpected_fault_before_the_effect_is_unavailable(line: Line, point: str) -> None:
    line.faults.arm(point, raising(RuntimeError("secret detail")))
    result = line.call()
    assert (result.status, code(result)) == (Status.UNAVAILABLE, Code.INTERNAL)
    assert "secret" not in result.to_json().decode()
    assert line.call().status is Status.SUCCEEDED


@pytest.mark.parametrize("point", ["ran", "settled"])
def test_unexpected_fault_after_the_effect_is_in_doubt(line: Line, point: str) -> None:
    line.faults.arm(point, raising(RuntimeError("x")))
    result = line.call()
    assert (result.status, code(result)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert not result.retry_safe


def test_nothing_runs_without_a_verified_capability(line: Line) -> None:
    token = line.record.token
    flipped = token[:-2] + ("A" if token[-2] != "A" else "B") + token[-1]
    assert code(line.call(token=flipped)) is Code.BAD_SIGNATURE
    assert code(line.call(token="nonsense")) is Code.TOKEN_MALFORMED
    line.house.clock.advance(10 * 24 * 3600)
    assert line.call().status is Status.DENIED
    assert line.house.engine.created == []


def test_capability_is_asked_for_tool_and_right(line: Line) -> None:
    no_shell = line.narrowed(tools=("file_view",))
    assert code(line.call(token=no_shell)) is Code.TOOL_NOT_GRANTED
    scope = line.record.grant.scope.model_copy(update={"execute": ()})
    assert code(line.call(token=line.narrowed(scope=scope))) is Code.RIGHT_NOT_GRANTED
    assert line.house.engine.created == []


def test_narrower_capability_never_runs_in_a_wider_sandbox(line: Line) -> None:
    scope = line.record.grant.scope.model_copy(update={"write": ("/tmp",)})
    wide, narrow_result = line.call(), line.call(token=line.narrowed(scope=scope))
    assert wide.provenance.plan_digest != narrow_result.provenance.plan_digest
    assert len(line.house.engine.created) == 2


def test_same_effect_shares_one_sandbox(line: Line) -> None:
    line.call()
    line.call(token=line.narrowed(not_after_s=int(line.house.clock()) + 60))
    assert len(line.house.engine.created) == 1


@pytest.mark.parametrize(
    ("tenant", "lease"), [("other", None), (TENANT, "ls_0000000000000000"), (TENANT, "acme/none")]
)
def test_not_there_and_not_yours_are_one_answer(line: Line, tenant: str, lease: str | None) -> None:
    result = line.call(tenant=tenant, lease=lease)
    assert (result.status, code(result)) == (Status.DENIED, Code.LEASE_NOT_GRANTED)


def test_stale_generation_is_fenced_off(line: Line) -> None:
    line.house.leases.create(line.house.request(take_over=True))
    assert code(line.call()) is Code.STALE_GENERATION


@pytest.mark.parametrize(
    ("tool", "arguments", "expected"),
    [
        ("nothing", {}, Code.UNKNOWN_TOOL),
        ("bash_execute", {}, Code.MISSING_FIELD),
        ("bash_execute", {"command": "x", "sudo": True}, Code.UNKNOWN_FIELD),
        ("bash_execute", {"command": "x", "timeout_ms": 1}, Code.INVALID_ARGUMENT),
        ("file_view", {"path": "/etc/passwd"}, Code.OUTSIDE_WORKSPACE),
        ("file_view", {"path": "absent"}, Code.NOT_FOUND),
    ],
)
def test_bad_input_never_reaches_a_sandbox(
    line: Line, tool: str, arguments: dict[str, JsonValue], expected: Code
) -> None:
    assert code(line.call(tool, arguments)) is expected
    assert line.house.engine.created == []


def test_lost_sandbox_is_unknown_and_replaced(line: Line) -> None:
    line.house.engine.scripts[b"die"] = Script(lost=True)
    result = line.call(arguments={"command": "die"})
    assert (result.status, code(result)) == (Status.UNKNOWN, Code.SANDBOX_LOST)
    assert line.call().status is Status.SUCCEEDED
    assert len(line.house.engine.created) == 2


def test_refusal_of_the_engine_says_that_nothing_ran(line: Line) -> None:
    line.house.engine.scripts[b"no"] = Script(refused=Fault(Code.SANDBOX_UNAVAILABLE, "not now"))
    result = line.call(arguments={"command": "no"})
    assert result.status is Status.UNAVAILABLE
    assert result.retry_safe


def test_places_are_given_back_whatever_happens(line: Line) -> None:
    parallel = line.record.grant.per_lease.parallel
    for point in ["compiled", "sandbox", "ran"] * parallel:
        line.faults.arm(point, raising(ValueError()))
        line.call()
    assert line.call().status is Status.SUCCEEDED


def test_file_tools_need_no_sandbox(line: Line) -> None:
    (line.house.workspace(line.record) / "f").write_text("one\ntwo\n")
    assert line.call("file_view", {"path": "f"}).status is Status.SUCCEEDED
    edit: dict[str, JsonValue] = {"path": "f", "old_str": "two", "new_str": "2"}
    assert line.call("file_edit", edit).status is Status.SUCCEEDED
    assert line.house.engine.created == []


@pytest.mark.parametrize("without", ["limits", "denial"])
def test_file_tools_work_where_no_command_can_be_held(line: Line, without: str) -> None:
    (line.house.workspace(line.record) / "f").write_text("one\n")
    grant = line.record.grant
    if without == "limits":
        least = grant.per_lease.model_copy(update={"pids": 1, "memory_bytes": 1 << 20})
        token = line.narrowed(per_lease=least)
    else:
        # Of /tmp nothing is left, and a private one can be written to.
        only = grant.scope.model_copy(update={"read": ("/workspace",), "write": ("/workspace",)})
        token = line.narrowed(scope=only, deny=(*grant.deny, "/tmp/kept"))
    assert line.call("file_view", {"path": "f"}, token=token).status is Status.SUCCEEDED
    edit: dict[str, JsonValue] = {"path": "f", "old_str": "one", "new_str": "1"}
    assert line.call("file_edit", edit, token=token).status is Status.SUCCEEDED
    for tool, arguments in (("bash_execute", {"command": "true"}), ("run", {"argv": ["true"]})):
        assert code(line.call(tool, arguments, token=token)) is Code.UNENFORCEABLE  # type: ignore[arg-type]
