"""One start for each call's name: repeats are answered with the result, and nothing is spent twice."""

from __future__ import annotations

import sqlite3
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.decide.idempotency import Place, canonical_arguments, idempotency_key
from stockade.flow.claims import CALLER_S, SKEW_S
from stockade.ledger import commits
from stockade.terms.claim import ClaimRecord, ClaimState
from stockade.terms.fault import Code, Fault, Retry, Status
from stockade.terms.grant import ApprovalRule
from stockade.terms.result import EditData, ToolResult
from stockade.testing.fake_engine import Script
from stockade.testing.faults import raising
from stockade.testing.house import TENANT, open_house
from tests.unit.flow.lines import Line, code, make_line

ECHO: dict[str, JsonValue] = {"command": "echo"}
EDIT: dict[str, JsonValue] = {"path": "f", "old_str": "one", "new_str": "two"}


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    house = open_house(str(tmp_path))
    made = make_line(house)
    (house.workspace(made.record) / "f").write_text("one\n")
    house.engine.scripts[b"echo"] = Script(stdout=b"said\n")
    yield made
    house.close()


def started(line: Line) -> list[bytes]:
    return [command for sandbox in line.house.engine.created for command in sandbox.started]


def only(line: Line) -> ClaimRecord:
    [found] = line.house.claims.book.list(None, None, tuple(ClaimState), 99)
    claim = line.house.claims.book.get(found.id)
    assert claim is not None
    return claim


def key(line: Line, call_id: str, arguments: dict[str, JsonValue]) -> str:
    place = Place(TENANT, line.record.trajectory, 1, call_id)
    return idempotency_key(place, "bash_execute", canonical_arguments(arguments))


def test_a_repeat_is_given_the_same_result(line: Line) -> None:
    first = line.call(arguments=ECHO, call_id="c")
    line.house.clock.advance(60)
    again = line.call(arguments=ECHO, call_id="c")
    assert not first.replayed
    assert again == first.model_copy(update={"request_id": again.request_id, "replayed": True})
    assert again.request_id != first.request_id
    assert started(line) == [b"echo"]


@pytest.mark.parametrize(
    "script",
    [Script(code=3), Script(signal=9), Script(stdout=b"x" * 200_000)],
    ids=["failed", "killed", "long"],
)
def test_every_verdict_is_repeated(line: Line, script: Script) -> None:
    line.house.engine.scripts[b"s"] = script
    first, again = (line.call(arguments={"command": "s"}, call_id="c") for _ in range(2))
    assert again.model_dump(exclude={"request_id", "replayed"}) == first.model_dump(
        exclude={"request_id", "replayed"}
    )
    assert started(line) == [b"s"]


def test_the_name_is_that_of_turn_and_call(line: Line) -> None:
    for turn, call_id in ((1, "c"), (2, "c"), (None, "c"), (1, "d")):
        assert not line.call(arguments=ECHO, call_id=call_id, turn=turn).replayed
    assert len(started(line)) == 4


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [("bash_execute", {"command": "other"}), ("bash_execute", {**ECHO, "timeout_ms": 5000}),
     ("file_edit", EDIT)],
)  # fmt: skip
def test_the_same_name_for_another_call(
    line: Line, tool: str, arguments: dict[str, JsonValue]
) -> None:
    line.call(arguments=ECHO, call_id="c")
    result = line.call(tool, arguments, call_id="c")
    assert (result.status, code(result)) == (Status.REJECTED, Code.KEY_REUSED)
    assert started(line) == [b"echo"]
    assert line.call(arguments=ECHO, call_id="c").replayed


def test_the_key_that_comes_is_checked(line: Line) -> None:
    assert line.call(arguments=ECHO, call_id="c", key=key(line, "c", ECHO)).error is None
    for wrong in (key(line, "d", ECHO), key(line, "c", {"command": "other"})):
        result = line.call(arguments=ECHO, call_id="c", key=wrong)
        assert (result.status, code(result)) == (Status.INVALID, Code.INVALID_ARGUMENT)
    assert started(line) == [b"echo"]


def test_without_a_call_id_nothing_is_deduplicated_and_all_is_listed(line: Line) -> None:
    for _ in range(2):
        result = line.call(arguments=ECHO, call_id=None)
        assert (result.replayed, result.call.call_id) == (False, None)
    assert started(line) == [b"echo", b"echo"]
    assert len(line.house.claims.book.list(None, None, (ClaimState.COMPLETED,), 9)) == 2


def test_reads_need_no_claim_and_are_recorded(line: Line) -> None:
    for _ in range(2):
        result = line.call("file_view", {"path": "f"}, call_id="c")
        assert (result.status, result.replayed) == (Status.SUCCEEDED, False)
    line.house.ledger.tidy()
    first, _ = line.house.claims.book.list(None, None, tuple(ClaimState), 9)
    record = line.house.claims.book.get(first.id)
    assert record is not None
    assert (record.call_id, record.arguments) == ("c", '{"path":"f"}')
    assert record.result is not None
    assert "one" in record.result


def test_a_read_whose_record_can_not_be_kept_has_been_done(
    line: Line, caplog: pytest.LogCaptureFixture
) -> None:
    ledger = line.house.ledger
    ledger._writer.execute("PRAGMA busy_timeout = 0")
    other = sqlite3.connect(ledger._path, isolation_level=None)
    other.execute("BEGIN IMMEDIATE")
    for _ in range(commits._MOST_WAITING):
        ledger.commit_later(lambda connection: None)
    assert line.call("file_view", {"path": "f"}).status is Status.SUCCEEDED
    assert "a read can't be recorded" in caplog.text
    other.close()


def test_the_claim_says_what_a_replay_needs(line: Line) -> None:
    result = line.call(arguments=ECHO, call_id="c")
    claim = only(line)
    assert (claim.tenant, claim.trajectory, claim.turn) == (TENANT, line.record.trajectory, 1)
    assert (claim.lease_id, claim.generation, claim.image) == (line.record.id, 1, "host")
    assert claim.key == key(line, "c", ECHO)
    assert claim.arguments == '{"command":"echo"}'
    assert claim.plan_digest == result.provenance.plan_digest
    assert list(claim.chain) == result.provenance.capability_chain
    assert (claim.sandbox, claim.guest_call) == ("sandbox-0", "0")
    assert claim.until_boot_s > line.house.claims.boottime() + 30 + 60


def test_authority_comes_before_a_stored_result(line: Line) -> None:
    line.call(arguments=ECHO, call_id="c")
    no_shell = line.narrowed(tools=("file_view",))
    assert code(line.call(arguments=ECHO, call_id="c", token=no_shell)) is Code.TOOL_NOT_GRANTED
    line.house.authority.revoke_token(line.record.token, TENANT, "uid 0", "test", 0)
    assert code(line.call(arguments=ECHO, call_id="c")) is Code.TOKEN_REVOKED


def test_a_narrower_holder_is_not_given_what_a_wider_one_could_read(line: Line) -> None:
    line.call(arguments=ECHO, call_id="c")
    line.call("file_edit", EDIT, call_id="e")
    scope = line.record.grant.scope.model_copy(
        update={"read": ("/workspace/part",), "write": ("/workspace/part",)}
    )
    narrow = line.narrowed(scope=scope)
    result = line.call(arguments=ECHO, call_id="c", token=narrow)
    assert (result.status, code(result)) == (Status.DENIED, Code.RIGHT_NOT_GRANTED)
    same_walls = line.narrowed(not_after_s=int(line.house.clock()) + 60)
    assert line.call(arguments=ECHO, call_id="c", token=same_walls).replayed
    assert line.call("file_edit", EDIT, call_id="e", token=same_walls).replayed
    # What the narrower one has run its parent may see, with other walls or not.
    line.call(arguments=ECHO, call_id="n", token=narrow)
    assert line.call(arguments=ECHO, call_id="n").replayed


def test_an_edit_through_a_link_is_not_shown_to_who_may_not_read_its_target(line: Line) -> None:
    top = line.house.workspace(line.record)
    (top / "part").mkdir()
    (top / "part" / "link").symlink_to("../f")
    through: dict[str, JsonValue] = {**EDIT, "path": "part/link"}
    assert line.call("file_edit", through, call_id="e").error is None
    scope = line.record.grant.scope.model_copy(
        update={"read": ("/workspace/part",), "write": ("/workspace/part",)}
    )
    result = line.call("file_edit", through, call_id="e", token=line.narrowed(scope=scope))
    assert (result.status, code(result)) == (Status.DENIED, Code.RIGHT_NOT_GRANTED)


def test_a_new_owner_is_given_the_results_of_the_old_one(line: Line) -> None:
    line.call(arguments=ECHO, call_id="c")
    line.record = line.house.leases.create(line.house.request(take_over=True)).record
    assert line.call(arguments=ECHO, call_id="c").replayed


def test_a_result_is_not_given_to_another_lease_of_the_trajectory(line: Line) -> None:
    line.call(arguments=ECHO, call_id="c")
    line.house.leases.release(TENANT, line.record.id)
    line.record = line.house.leases.create(line.house.request()).record
    result = line.call(arguments=ECHO, call_id="c")
    assert (result.status, code(result)) == (Status.REJECTED, Code.KEY_REUSED)
    assert started(line) == [b"echo"]


def test_budgets_and_approvals_are_spent_once(line: Line) -> None:
    total = line.record.grant.total.model_copy(update={"calls": 1})
    rule = ApprovalRule(tool="bash_execute", argument=None, pattern=None)
    token = line.narrowed(total=total, approve=(rule,))
    asked = line.call(arguments=ECHO, call_id="c", token=token)
    assert asked.status is Status.APPROVAL_REQUIRED
    assert asked.error is not None
    assert asked.error.details is not None
    line.house.approvals.decide(
        str(asked.error.details["approval"]), granted=True, by="uid 0", reason=None
    )
    first, again = (line.call(arguments=ECHO, call_id="c", token=token) for _ in range(2))
    assert (first.status, first.replayed) == (Status.SUCCEEDED, False)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert code(line.call(arguments=ECHO, call_id="d", token=token)) is Code.APPROVAL_NEEDED


@pytest.mark.parametrize("refused", [Code.SANDBOX_UNAVAILABLE, Code.UNENFORCEABLE])
def test_what_no_process_was_found_for_is_not_claimed(line: Line, refused: Code) -> None:
    scripts = line.house.engine.scripts
    scripts[b"echo"] = Script(refused=Fault(refused, "not now"))
    assert code(line.call(arguments=ECHO, call_id="c")) is refused
    assert line.house.claims.book.list(None, None, tuple(ClaimState), 9) == []
    scripts[b"echo"] = Script(stdout=b"now\n")
    again = line.call(arguments=ECHO, call_id="c")
    assert (again.status, again.replayed) == (Status.SUCCEEDED, False)


def test_what_has_not_run_may_be_repeated(line: Line) -> None:
    scripts = line.house.engine.scripts
    scripts[b"echo"] = Script(unread=Fault(Code.SANDBOX_UNAVAILABLE, "not now"))
    assert code(line.call(arguments=ECHO, call_id="c")) is Code.SANDBOX_UNAVAILABLE
    assert only(line).state is ClaimState.NOT_EXECUTED
    scripts[b"echo"] = Script(stdout=b"now\n")
    again = line.call(arguments=ECHO, call_id="c")
    assert (again.status, again.replayed) == (Status.SUCCEEDED, False)
    assert only(line).state is ClaimState.COMPLETED


def test_other_arguments_are_possible_where_nothing_was_executed(line: Line) -> None:
    line.house.engine.scripts[b"no"] = Script(refused=Fault(Code.SANDBOX_UNAVAILABLE, "not now"))
    line.call(arguments={"command": "no"}, call_id="c")
    assert line.call(arguments=ECHO, call_id="c").status is Status.SUCCEEDED


def test_an_edit_that_is_refused_is_refused_again(line: Line) -> None:
    wrong: dict[str, JsonValue] = {**EDIT, "old_str": "absent"}
    assert code(line.call("file_edit", wrong, call_id="e")) is Code.NO_MATCH
    (line.house.workspace(line.record) / "f").write_text("absent\n")
    again = line.call("file_edit", wrong, call_id="e")
    assert (code(again), again.replayed) == (Code.NO_MATCH, True)


def test_an_edit_happens_once(line: Line) -> None:
    file = line.house.workspace(line.record) / "f"
    first = line.call("file_edit", EDIT, call_id="e")
    file.write_text("one\n")
    again = line.call("file_edit", EDIT, call_id="e")
    assert again.replayed
    assert again.data == first.data
    assert isinstance(again.data, EditData)
    assert file.read_text() == "one\n"


def test_a_lost_sandbox_leaves_the_call_in_doubt(line: Line) -> None:
    line.house.engine.scripts[b"die"] = Script(stdout=b"begun", lost=True)
    told = line.call(arguments={"command": "die"}, call_id="c")
    assert code(told) is Code.SANDBOX_LOST
    again = line.call(arguments={"command": "die"}, call_id="c")
    assert (again.status, code(again)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert again.error is not None
    assert again.error.retry is Retry.RECONCILE
    assert again.error.details == {"claim": only(line).id}
    assert started(line) == [b"die"]
    assert '"begun"' in (only(line).result or "")


class Repeat:
    """A call on a thread of its own."""

    def __init__(self, line: Line, arguments: dict[str, JsonValue], call_id: str = "c") -> None:
        self.results: list[ToolResult] = []
        self._thread = threading.Thread(
            target=lambda: self.results.append(line.call(arguments=arguments, call_id=call_id))
        )
        self._thread.start()

    def result(self) -> ToolResult:
        self._thread.join(30)
        return self.results[0]


def until_waiting(line: Line) -> None:
    while not line.house.clock.waiting():
        pass


def test_repeats_join_the_call_that_runs(line: Line) -> None:
    line.house.engine.scripts[b"slow"] = Script(stdout=b"once\n", takes_s=10)
    slow: dict[str, JsonValue] = {"command": "slow"}
    first = Repeat(line, slow)
    until_waiting(line)
    others = [Repeat(line, slow) for _ in range(12)]  # more than the lease may have at once
    reused = line.call(arguments=ECHO, call_id="c")
    assert code(reused) is Code.KEY_REUSED
    line.house.clock.advance(10)
    results = [first.result(), *(other.result() for other in others)]
    assert [result.status for result in results] == [Status.SUCCEEDED] * 13
    assert [result.replayed for result in results] == [False] + [True] * 12
    assert started(line) == [b"slow"]


def test_a_repeat_waits_as_long_as_it_may_run_itself(line: Line) -> None:
    line.house.engine.scripts[b"slow"] = Script(takes_s=10)
    slow: dict[str, JsonValue] = {"command": "slow", "timeout_ms": 1000}
    first = Repeat(line, slow)
    until_waiting(line)
    joined = line.call(arguments=slow, call_id="c")
    assert (joined.status, code(joined)) == (Status.UNAVAILABLE, Code.IN_FLIGHT)
    assert joined.error is not None
    assert joined.error.retry_after_ms
    assert not joined.retry_safe
    line.house.clock.advance(1)
    assert code(first.result()) is Code.DEADLINE_EXCEEDED
    assert code(line.call(arguments=slow, call_id="c")) is Code.DEADLINE_EXCEEDED


def test_a_call_that_runs_is_not_looked_at_as_one_that_was_cut_off(line: Line) -> None:
    line.house.engine.scripts[b"slow"] = Script(stdout=b"once\n", takes_s=10)
    slow: dict[str, JsonValue] = {"command": "slow"}
    first = Repeat(line, slow)
    until_waiting(line)
    line.house.sweeper.tick()
    assert only(line).state is ClaimState.IN_FLIGHT
    line.house.clock.advance(10)
    assert first.result().status is Status.SUCCEEDED
    assert line.call(arguments=slow, call_id="c").replayed


def test_what_a_call_waited_is_not_taken_from_its_command(line: Line) -> None:
    """The next daemon knows from the claim how long a command may go on."""
    claims, times = line.house.claims, [100.0]
    claims.boottime = lambda: times[0]
    line.faults.arm("sandbox", lambda: times.append(times.pop() + 25))
    line.call(arguments={"command": "echo", "timeout_ms": 30_000})
    assert only(line).until_boot_s == 125 + 30 + CALLER_S + SKEW_S


def test_a_cancelled_call_is_completed_as_cancelled(line: Line) -> None:
    line.house.engine.scripts[b"slow"] = Script(stdout=b"so far", takes_s=10)
    first = Repeat(line, {"command": "slow"})
    until_waiting(line)
    joined = Repeat(line, {"command": "slow"})
    assert line.house.running.cancel(line.record.id, "c", 1) == 1
    for result in (first.result(), joined.result()):
        assert result.status is Status.CANCELLED
    again = line.call(arguments={"command": "slow"}, call_id="c")
    assert (again.status, again.replayed) == (Status.CANCELLED, True)
    assert again.error is not None
    assert again.error.retry is Retry.CHANGED_CALL
    assert only(line).state is ClaimState.COMPLETED


def test_no_result_is_given_out_that_is_not_recorded(line: Line) -> None:
    ledger = line.house.ledger

    def break_ledger() -> None:
        ledger._writer.execute("PRAGMA query_only = ON")

    line.faults.arm("ran", break_ledger)
    told = line.call(arguments=ECHO, call_id="c")
    assert (told.status, code(told)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert only(line).state is ClaimState.IN_FLIGHT
    line.house.settlement.tick()  # in vain
    ledger._writer.execute("PRAGMA query_only = OFF")
    line.house.settlement.recover()  # this one's end is known, so nobody looks for it
    assert only(line).state is ClaimState.IN_FLIGHT
    for _ in range(2):
        line.house.settlement.tick()
    again = line.call(arguments=ECHO, call_id="c")
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert started(line) == [b"echo"]


@pytest.mark.parametrize(("tool", "arguments"), [("bash_execute", ECHO), ("file_edit", EDIT)])
def test_a_ledger_that_can_not_be_written_refuses_before_anything_runs(
    line: Line, tool: str, arguments: dict[str, JsonValue]
) -> None:
    line.house.ledger._writer.execute("PRAGMA query_only = ON")
    refused = line.call(tool, arguments, call_id="c")
    assert (refused.status, code(refused)) == (Status.UNAVAILABLE, Code.STORAGE_UNAVAILABLE)
    assert refused.retry_safe
    assert started(line) == []
    assert (line.house.workspace(line.record) / "f").read_text() == "one\n"
    line.house.ledger._writer.execute("PRAGMA query_only = OFF")
    assert line.call(tool, arguments, call_id="c").status is Status.SUCCEEDED


def test_a_fault_before_the_command_is_given_out_lets_it_run_again(line: Line) -> None:
    for point in ("compiled", "admitted", "sandbox"):
        line.faults.arm(point, raising(RuntimeError()))
        assert code(line.call(arguments=ECHO, call_id=point)) is Code.INTERNAL
        again = line.call(arguments=ECHO, call_id=point)
        assert (again.status, again.replayed) == (Status.SUCCEEDED, False)
    assert len(started(line)) == 3


def test_a_fault_after_an_edit_is_settled_by_the_file(line: Line) -> None:
    line.faults.arm("ran", raising(RuntimeError()))
    told = line.call("file_edit", EDIT, call_id="e")
    assert (told.status, code(told)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert code(line.call("file_edit", EDIT, call_id="e")) is Code.IN_FLIGHT
    line.house.sweeper.tick()
    again = line.call("file_edit", EDIT, call_id="e")
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)


def test_a_fault_before_an_edit_is_settled_by_the_file(line: Line) -> None:
    line.faults.arm("foreseen", raising(RuntimeError()))
    assert code(line.call("file_edit", EDIT, call_id="e")) is Code.IN_DOUBT
    line.house.sweeper.tick()
    again = line.call("file_edit", EDIT, call_id="e")
    assert (again.status, again.replayed) == (Status.SUCCEEDED, False)


def test_a_reset_cancels_and_the_cancelled_result_stays(line: Line) -> None:
    line.house.engine.scripts[b"slow"] = Script(takes_s=10)
    first = Repeat(line, {"command": "slow"})
    until_waiting(line)
    line.house.leases.reset(TENANT, line.record.id)
    assert first.result().status is Status.CANCELLED
    assert line.call(arguments={"command": "slow"}, call_id="c").replayed


def test_a_stored_result_that_can_not_be_read_is_no_result(line: Line) -> None:
    line.call(arguments=ECHO, call_id="c")
    with line.house.ledger.transaction() as connection:
        connection.execute("UPDATE claim SET result = '{}'")
    result = line.call(arguments=ECHO, call_id="c")
    assert (result.status, code(result)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert started(line) == [b"echo"]
