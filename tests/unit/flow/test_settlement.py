"""Calls that a dead process left: what the file, the engine and a person say about them.

Two houses opened one after the other on one directory are the daemon before and after its end. The
first one ends at a point of the pipeline, by an exception that nothing in it catches.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.flow.settlement import Settlement
from stockade.host.file_replace import edit_name
from stockade.host.files import LeaseFiles
from stockade.terms.claim import (
    ClaimRecord,
    ClaimState,
    Completed,
    Evidence,
    NotExecuted,
    StillRunning,
    Unknown,
)
from stockade.terms.fault import Code, Status, failure
from stockade.terms.outcome import Captured, End, ExecOutcome
from stockade.terms.ports import ExecContext
from stockade.terms.result import EditData, ToolResult, Warn
from stockade.testing.clock import ManualClock
from stockade.testing.house import KEPT_S, TENANT, code_of, open_house
from tests.unit.flow.lines import Line, code, make_line

ECHO: dict[str, JsonValue] = {"command": "echo"}
EDIT: dict[str, JsonValue] = {"path": "f", "old_str": "one", "new_str": "two"}


class Dead(BaseException):
    """The end of the process."""


@dataclass
class Daemons:
    """One daemon after the other on one directory."""

    directory: str
    clock: ManualClock
    line: Line

    def dies_at(
        self, point: str, tool: str = "bash_execute", arguments: dict[str, JsonValue] = ECHO
    ) -> None:
        self.line.faults.arm(point, _die)
        with pytest.raises(Dead):
            self.line.call(tool, arguments, call_id="c")

    def again(
        self, evidence: Evidence | None = None, *, boot: str = "boot-1", recover: bool = True
    ) -> Line:
        """The next daemon; `evidence` is what is left of the command."""
        record = self.line.record
        self.line.house.close()
        house = open_house(self.directory, clock=self.clock, boot=boot)
        self.line = make_line(house)
        self.line.record = record
        if evidence is not None:
            house.engine.left[("sandbox-0", "0")] = evidence
        if recover:
            house.sweeper.recover()
            house.settlement.recover()
        return self.line


def _die() -> None:
    raise Dead


@pytest.fixture
def daemons(tmp_path: Path) -> Iterator[Daemons]:
    clock = ManualClock()
    house = open_house(str(tmp_path), clock=clock)
    made = Daemons(str(tmp_path), clock, make_line(house))
    file(made.line).write_text("one\n")
    yield made
    made.line.house.close()


def file(line: Line) -> Path:
    return line.house.workspace(line.record) / "f"


def claim(line: Line) -> ClaimRecord:
    found = line.house.claims.book.list(None, None, tuple(ClaimState), 99)[-1]
    record = line.house.claims.book.get(found.id)
    assert record is not None
    return record


def repeat(
    line: Line, tool: str = "bash_execute", arguments: dict[str, JsonValue] = ECHO
) -> ToolResult:
    return line.call(tool, arguments, call_id="c")


def started(line: Line) -> int:
    return sum(len(sandbox.started) for sandbox in line.house.engine.created)


def outcome(out: bytes = b"out\n", end: End = End.EXITED) -> ExecOutcome:
    value = 0 if end is End.EXITED else None
    return ExecOutcome(end, value, Captured(out, b"", len(out)), Captured(b"", b"", 0), wall_ms=7)


@pytest.mark.parametrize("point", ["parsed", "compiled", "admitted", "sandbox"])
def test_before_the_claim_nothing_is_left(daemons: Daemons, point: str) -> None:
    daemons.dies_at(point)
    line = daemons.again()
    assert not line.house.claims.book.list(None, None, tuple(ClaimState), 9)
    assert not repeat(line).replayed


def test_a_claim_that_names_no_sandbox_is_in_doubt(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    daemons.line.house.ledger._writer.execute("UPDATE claim SET sandbox = NULL")
    line = daemons.again(NotExecuted())
    assert code(repeat(line)) is Code.IN_DOUBT


def test_after_the_hosts_end_a_command_is_in_doubt(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    line = daemons.again(boot="boot-2")
    assert claim(line).state is ClaimState.IN_DOUBT
    assert line.house.engine.forgotten == [("sandbox-0", "0")]  # nobody asks for it again
    assert code(repeat(line)) is Code.IN_DOUBT
    assert started(line) == 0


@pytest.mark.parametrize("point", ["starting", "ran", "shaped"])
def test_a_command_whose_end_is_known_is_completed(daemons: Daemons, point: str) -> None:
    daemons.dies_at(point)
    line = daemons.again(Completed(outcome()))
    again = repeat(line)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert again.stdout is not None
    assert again.stdout.text == "out\n"
    assert again.usage is not None
    assert (again.usage.wall_ms, again.usage.wall_limit_ms) == (7, 30_000)
    assert again.call.call_id == "c"
    assert again.provenance.plan_digest == claim(line).plan_digest
    assert started(line) == 0


def test_a_command_that_was_not_read_has_not_run(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    line = daemons.again(NotExecuted())
    assert claim(line).state is ClaimState.NOT_EXECUTED
    assert not repeat(line).replayed
    assert started(line) == 1


@pytest.mark.parametrize("evidence", [Unknown(), Completed(outcome(end=End.LOST))])
def test_what_nobody_knows_is_in_doubt(daemons: Daemons, evidence: Evidence) -> None:
    daemons.dies_at("ran")
    line = daemons.again(evidence)
    again = repeat(line)
    assert (again.status, code(again)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert started(line) == 0
    [listed] = line.house.settlement.list(TENANT, line.record.id, in_doubt=True)
    assert listed.id == claim(line).id
    assert listed.reason


def test_a_command_that_still_runs_is_joined_and_can_be_cancelled(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    begun = threading.Event()
    given: list[int] = []

    def finish(context: ExecContext, timeout_ms: int) -> ExecOutcome:
        given.append(timeout_ms)
        begun.set()
        daemons.clock.wait_until(float("inf"), context.cancel.fileno())
        return outcome(b"so far", context.cancel.reason() or End.LOST)

    line = daemons.again(StillRunning(finish))
    assert begun.wait(10)
    assert 0 < given[0] <= 30_000
    results: list[ToolResult] = []
    joined = threading.Thread(target=lambda: results.append(repeat(line)))
    joined.start()
    line.house.settlement.tick()  # it is held: nobody looks at it again
    assert line.house.running.cancel(line.record.id, "c", 1) == 1
    joined.join(10)
    assert (results[0].status, results[0].replayed) == (Status.CANCELLED, True)
    assert results[0].stdout is not None
    assert results[0].stdout.text == "so far"
    assert claim(line).state is ClaimState.COMPLETED
    assert started(line) == 0


def test_a_recorded_result_is_there_after_the_end(daemons: Daemons) -> None:
    daemons.dies_at("settled")
    line = daemons.again()
    again = repeat(line)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert started(line) == 0


@pytest.mark.parametrize("point", ["ran", "shaped"])
def test_an_edit_that_was_made(daemons: Daemons, point: str) -> None:
    daemons.dies_at(point, "file_edit", EDIT)
    line = daemons.again(boot="boot-2")
    assert file(line).read_text() == "two\n"
    again = repeat(line, "file_edit", EDIT)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert isinstance(again.data, EditData)
    assert (again.data.changed_file, again.data.replacements) == ("/workspace/f", 1)
    assert "+two" in again.data.diff


def test_an_edit_that_was_not_made(daemons: Daemons) -> None:
    daemons.dies_at("foreseen", "file_edit", EDIT)
    line = daemons.again()
    assert file(line).read_text() == "one\n"
    assert claim(line).state is ClaimState.NOT_EXECUTED
    again = repeat(line, "file_edit", EDIT)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, False)
    assert file(line).read_text() == "two\n"


@pytest.mark.parametrize("point", ["foreseen", "ran"])
def test_the_temporary_name_of_an_edit_is_removed_and_no_other(
    daemons: Daemons, point: str
) -> None:
    daemons.dies_at(point, "file_edit", EDIT)
    edit = claim(daemons.line).foreseen
    assert edit is not None
    name = os.fsdecode(edit_name(edit))
    left, other = file(daemons.line).with_name(name), file(daemons.line).with_name(name[:-1] + "x")
    left.write_text("two\n")
    other.write_text("mine\n")
    line = daemons.again()
    assert claim(line).state is not ClaimState.IN_FLIGHT
    assert (left.exists(), file(line).exists(), other.exists()) == (False, True, True)


@pytest.mark.parametrize("after", ["three\n", None], ids=["another version", "gone"])
def test_an_edit_of_a_file_that_changed_since(daemons: Daemons, after: str | None) -> None:
    daemons.dies_at("ran", "file_edit", EDIT)
    if after is None:
        file(daemons.line).unlink()
    else:
        file(daemons.line).write_text(after)
    line = daemons.again()
    assert claim(line).state is ClaimState.IN_DOUBT
    assert code(repeat(line, "file_edit", EDIT)) is Code.IN_DOUBT


def test_edits_of_one_file_in_a_row(daemons: Daemons) -> None:
    daemons.dies_at("ran", "file_edit", EDIT)
    line = daemons.line
    line.faults.arm("ran", _die)
    more: dict[str, JsonValue] = {"path": "f", "old_str": "two", "new_str": "three"}
    with pytest.raises(Dead):
        line.call("file_edit", more, call_id="d")
    line = daemons.again()
    assert file(line).read_text() == "three\n"
    assert line.call("file_edit", EDIT, call_id="c").replayed
    assert line.call("file_edit", more, call_id="d").replayed


def test_an_edit_whose_file_can_not_be_looked_at_waits(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is no text file any more is in doubt; a disk that can't be read says nothing of it."""
    daemons.dies_at("ran", "file_edit", EDIT)
    line = daemons.again(recover=False)

    def unreadable(*arguments: object) -> None:
        raise failure(Code.WORKSPACE_UNAVAILABLE, "not now")

    with monkeypatch.context() as patch:
        patch.setattr(LeaseFiles, "view", unreadable)
        line.house.settlement.recover()
    assert claim(line).state is ClaimState.IN_FLIGHT
    line.house.settlement.tick()
    assert claim(line).state is ClaimState.COMPLETED


def test_a_name_that_can_not_be_removed_keeps_no_edit_in_flight(
    daemons: Daemons, monkeypatch: pytest.MonkeyPatch
) -> None:
    daemons.dies_at("ran", "file_edit", EDIT)
    line = daemons.again(recover=False)

    def gone(*arguments: object) -> None:
        raise failure(Code.NOT_FOUND, "its directory is gone")

    monkeypatch.setattr(LeaseFiles, "tidy", gone)
    line.house.settlement.recover()
    assert claim(line).state is ClaimState.COMPLETED


def test_an_edit_of_a_workspace_that_is_gone(daemons: Daemons) -> None:
    daemons.dies_at("ran", "file_edit", EDIT)
    daemons.line.house.leases.release(TENANT, daemons.line.record.id)
    line = daemons.again()
    assert claim(line).state is ClaimState.IN_DOUBT


def test_an_edit_before_a_reset(daemons: Daemons) -> None:
    daemons.dies_at("ran", "file_edit", EDIT)
    daemons.line.house.leases.reset(TENANT, daemons.line.record.id)
    line = daemons.again()
    assert (claim(line).state, claim(line).reason) == (
        ClaimState.IN_DOUBT,
        "its workspace was reset after it",
    )


def test_what_can_not_be_looked_at_is_tried_again_and_not_for_ever(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    line = daemons.again(recover=False)

    def trouble() -> None:
        raise failure(Code.ENGINE_UNAVAILABLE, "not now")

    def arm(point: str) -> None:
        if point == "engine.evidence":
            trouble()

    line.house.engine.point = arm
    line.house.settlement.recover()
    assert claim(line).state is ClaimState.IN_FLIGHT
    assert code(repeat(line)) is Code.IN_FLIGHT
    with line.house.ledger.transaction() as connection:
        connection.execute("UPDATE claim SET until_boot_s = 0")
    line.house.sweeper.tick()
    assert claim(line).state is ClaimState.IN_DOUBT


def test_what_can_not_be_looked_at_after_the_hosts_end_is_in_doubt_at_once(
    daemons: Daemons,
) -> None:
    """A clock that began again says nothing about the lease of a claim from before."""
    daemons.dies_at("starting")
    line = daemons.again(recover=False, boot="boot-2")

    def arm(point: str) -> None:
        if point == "engine.evidence":
            raise failure(Code.ENGINE_UNAVAILABLE, "not now")

    line.house.engine.point = arm
    line.house.settlement.recover()
    assert claim(line).state is ClaimState.IN_DOUBT


def test_a_fault_while_a_call_is_looked_at_leaves_it_to_the_next_look(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    line = daemons.again(recover=False)

    def arm(point: str) -> None:
        if point == "engine.evidence":
            raise RuntimeError("a fault")

    line.house.engine.point = arm
    with pytest.raises(RuntimeError):
        line.house.settlement.recover()
    line.house.engine.point = lambda point: None
    line.house.settlement.tick()
    assert claim(line).state is ClaimState.IN_DOUBT


def test_a_person_says_that_it_was_executed(daemons: Daemons) -> None:
    daemons.dies_at("ran")
    settlement = daemons.again().house.settlement
    wanted = claim(daemons.line).id
    settled = settlement.settle(TENANT, wanted, completed=True, by="uid 7", reason="saw it")
    assert (settled.state, settled.settled_by, settled.reason) == (
        ClaimState.COMPLETED,
        "uid 7",
        "saw it",
    )
    again = repeat(daemons.line)
    assert (again.status, again.replayed, again.exit) == (Status.SUCCEEDED, True, None)
    [warning] = again.warnings
    assert (warning.code, "saw it" in warning.message) == (Warn.SETTLED, True)
    assert started(daemons.line) == 0
    assert _refused(settlement, wanted) is Code.KEY_REUSED


def test_a_person_says_that_it_was_not(daemons: Daemons) -> None:
    daemons.dies_at("starting")
    settlement = daemons.again().house.settlement
    wanted = claim(daemons.line).id
    settled = settlement.settle(None, wanted, completed=False, by="uid 0", reason="it is not there")
    assert settled.state is ClaimState.NOT_EXECUTED
    assert settled.result is not None
    assert ToolResult.model_validate_json(settled.result).status is Status.UNKNOWN
    assert not repeat(daemons.line).replayed
    assert started(daemons.line) == 1


def test_whose_calls_can_be_settled(daemons: Daemons) -> None:
    daemons.dies_at("ran")
    line = daemons.again()
    wanted = claim(line).id
    assert _refused(line.house.settlement, wanted, "other") is Code.NOT_FOUND
    assert _refused(line.house.settlement, "cl_" + "0" * 32) is Code.NOT_FOUND
    assert not line.house.settlement.list("other", None, in_doubt=False)


def test_a_call_that_runs_is_not_settled_by_hand(daemons: Daemons) -> None:
    line = daemons.line
    refusals: list[Code | None] = []
    line.faults.arm("ran", lambda: refusals.append(_refused(line.house.settlement, claim(line).id)))
    repeat(line)
    assert refusals == [Code.IN_FLIGHT]


def _refused(settlement: Settlement, claim_id: str, tenant: str | None = None) -> Code | None:
    action: Callable[[], object] = lambda: settlement.settle(  # noqa: E731
        tenant, claim_id, completed=True, by="uid 0", reason="x"
    )
    return code_of(action)


def test_claims_are_forgotten_some_time_after_the_release(daemons: Daemons) -> None:
    line = daemons.line
    repeat(line)
    daemons.clock.advance(61)
    line.house.sweeper.tick()
    line.house.leases.release(TENANT, line.record.id)
    daemons.clock.advance(61)
    line.house.sweeper.tick()
    daemons.clock.advance(KEPT_S - 1)
    line.house.sweeper.tick()
    assert claim(line).state is ClaimState.COMPLETED
    daemons.clock.advance(61)
    line.house.sweeper.tick()
    assert not line.house.claims.book.list(None, None, tuple(ClaimState), 9)


def test_settling_goes_on_where_one_fails(daemons: Daemons) -> None:
    daemons.dies_at("ran")
    line = daemons.line
    line.faults.arm("ran", _die)
    with pytest.raises(Dead):
        line.call("file_edit", EDIT, call_id="d")
    line = daemons.again(recover=False)

    def arm(point: str) -> None:
        if point == "engine.evidence":
            raise failure(Code.ENGINE_UNAVAILABLE, "not now")

    line.house.engine.point = arm
    line.house.settlement.recover()
    assert line.call("file_edit", EDIT, call_id="d").replayed


def test_what_is_kept_and_found_of_a_call_has_no_secret(daemons: Daemons) -> None:
    value = "the-secret-value"
    line = daemons.line
    line.house.secrets.add(line.record, "KEY", value.encode(), in_environment=True)
    given: dict[str, JsonValue] = {"command": f"echo {value}"}
    daemons.dies_at("ran", arguments=given)
    assert claim(line).arguments == '{"command":"echo [redacted:KEY]"}'
    line = daemons.again(Completed(outcome(f"<{value}>\n".encode())))
    again = repeat(line, arguments=given)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert again.stdout is not None
    assert again.stdout.text == "<[redacted:KEY]>\n"
    assert [each.code for each in again.warnings] == [Warn.REDACTED]


def test_an_edit_from_one_credential_to_another_is_settled_all_the_same(daemons: Daemons) -> None:
    """With a mark in the place of both, its arguments are ones that no call can have."""
    line = daemons.line
    line.house.secrets.add(line.record, "KEY", b"the-secret-value", in_environment=True)
    tokens = ("ghp_" + "a1B2c3" * 6, "ghp_" + "d4E5f6" * 6)
    file(line).write_text(f"{tokens[0]} the-secret-value\n")
    given: dict[str, JsonValue] = {"path": "f", "old_str": tokens[0], "new_str": tokens[1]}
    daemons.dies_at("ran", "file_edit", given)
    stored = claim(line)
    assert stored.foreseen is not None
    for text in (stored.arguments, stored.foreseen.diff):
        assert not any(part in text for part in ("secret-value", *tokens))
    line = daemons.again()
    again = repeat(line, "file_edit", given)
    assert (again.status, again.replayed) == (Status.SUCCEEDED, True)
    assert isinstance(again.data, EditData)
    assert "+[redacted:github_token] [redacted:KEY]" in again.data.diff
