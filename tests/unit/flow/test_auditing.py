"""What becomes a record, in which order, and what happens when it can't."""

from __future__ import annotations

import itertools
import json
import sqlite3
from collections.abc import Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.decide.chain import CLOSED, result_digest
from stockade.decide.checks import Arguments
from stockade.flow.auditing import Auditor, AuditSettings
from stockade.flow.calls import ToolRequest
from stockade.flow.pipeline import Pipeline
from stockade.flow.refusals import BURST, COUNTED_S
from stockade.host.cancel import EventfdCancel
from stockade.terms.audit import Acting, AuditEvent, AuditKind, AuditRecord, Checkpoint, Detail
from stockade.terms.claim import ClaimState
from stockade.terms.fault import Code, Fault, Status
from stockade.terms.result import ToolResult
from stockade.testing.faults import Faults, raising
from stockade.testing.house import TENANT, House, open_house
from tests.unit.flow.lines import make_pipeline

PER_TENANT = 56  # as `Places` has it
WHO = Acting("uid 1000", None, "my-agent/1", "model-x")


def hide(lease_id: str | None, arguments: Arguments) -> tuple[Arguments, int]:
    """Takes the word `hunter2` out of the lease's arguments."""
    assert lease_id is None or lease_id.startswith("ls_")
    text = json.dumps(dict(arguments))
    found: Mapping[str, JsonValue] = json.loads(text.replace("hunter2", "[secret]"))
    return found, text.count("hunter2")


@dataclass
class Line:
    house: House
    faults: Faults
    audit: Auditor
    pipeline: Pipeline
    lease: str
    token: str

    def __post_init__(self) -> None:
        self.numbers = itertools.count(1)
        self.before = self.house.table.state().head.seq

    def call(
        self,
        tool: str = "bash_execute",
        arguments: Mapping[str, JsonValue] | None = None,
        **more: str,
    ) -> ToolResult:
        number = next(self.numbers)
        return self.pipeline.call(
            ToolRequest(
                request_id=f"rq_{number}",
                lease=more.get("lease", self.lease),
                tool=tool,
                arguments={"command": "true"} if arguments is None else arguments,
                turn=3,
                call_id=more.get("call_id", f"call-{number}"),
                tenant=more.get("tenant", TENANT),
                token=more.get("token", self.token),
                who=WHO,
            )
        )

    def records(self) -> list[AuditRecord]:
        self.house.ledger.flush()  # records of reads wait for others
        return [
            AuditRecord.model_validate_json(link.body)
            for link in self.house.table.read(self.before + 1)
        ]

    def kinds(self) -> list[str]:
        return [record.kind.value for record in self.records()]

    def spoil(self, ahead: int = 1) -> None:
        """Make the record after the next `ahead - 1` impossible."""
        other = sqlite3.connect(self.house.ledger.rows("PRAGMA database_list", ())[0][2])  # type: ignore[arg-type]
        seq = self.house.table.state().head.seq + ahead
        other.execute("INSERT INTO audit VALUES (?, x'00', '{}')", (seq,))
        other.commit()
        other.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    house = open_house(str(tmp_path))
    faults = Faults()
    audit = Auditor(house.table, house.clock, AuditSettings(), hide)
    pipeline = make_pipeline(house, faults, audit)
    record = house.leases.create(house.request()).record
    (house.workspace(record) / "a").write_text("one\n")
    yield Line(house, faults, audit, pipeline, record.id, record.token)
    house.close()


def code(result: ToolResult) -> Code | None:
    return None if result.error is None else result.error.code


def test_a_call_has_an_intent_and_an_outcome_that_covers_its_result(line: Line) -> None:
    result = line.call()
    intent, outcome = line.records()
    assert (intent.kind, outcome.kind) == (AuditKind.CALL_INTENT, AuditKind.CALL_OUTCOME)
    assert result.audit is not None
    assert result.audit.seq == outcome.seq
    assert result.audit.hash == line.house.table.state().head.hash.hex()
    assert outcome.result_digest == result_digest(result)
    assert intent.result_digest is None
    for record in (intent, outcome):
        assert record.tenant == TENANT
        assert record.lease_id == line.lease
        assert (record.turn, record.call_id, record.tool) == (3, "call-1", "bash_execute")
        assert (record.actor, record.client, record.model) == ("uid 1000", "my-agent/1", "model-x")
        assert record.chain == result.provenance.capability_chain
        assert record.plan_digest == result.provenance.plan_digest
        assert record.trajectory == result.call.trajectory_id
    assert outcome.status == "succeeded"
    assert outcome.usage is not None
    assert result.usage is not None
    assert outcome.usage.wall_ms == result.usage.wall_ms


def test_the_intent_is_written_before_anything_starts(line: Line) -> None:
    seen: list[list[str]] = []
    for point in ("sandbox", "starting"):
        line.faults.arm(point, lambda: seen.append(line.kinds()))
    line.call()
    assert seen == [[], ["call_intent"]]


def test_what_only_reads_has_its_outcome_alone(line: Line) -> None:
    result = line.call("file_view", {"path": "a"})
    assert result.status is Status.SUCCEEDED
    assert line.kinds() == ["call_outcome"]


def test_a_call_that_the_tool_rejects_has_an_outcome_with_its_code(line: Line) -> None:
    line.call("file_edit", {"path": "a", "old_str": "x", "new_str": "y"})
    outcome = line.records()[-1]
    assert (outcome.kind.value, outcome.status, outcome.code) == (
        "call_outcome",
        "rejected",
        "no_match",
    )


def test_a_denied_call_is_one_record_with_the_rule_that_decided(line: Line) -> None:
    result = line.call("file_view", {"path": "/etc/passwd"})
    (record,) = line.records()
    assert (record.kind.value, record.status) == ("call_refused", result.status.value)
    assert result.error is not None
    assert record.code == result.error.code.value
    assert record.rule == result.error.rule
    assert record.tenant == TENANT
    assert result.audit is not None
    assert result.audit.seq == record.seq


@pytest.mark.parametrize(
    ("tool", "arguments"),
    [
        ("bash_execute", {"command": "true"}),
        ("file_edit", {"path": "a", "old_str": "one", "new_str": "two"}),
        ("file_view", {"path": "a"}),
    ],
)
def test_a_call_that_is_cancelled_while_it_waits_is_one_refusal(
    line: Line, tool: str, arguments: dict[str, JsonValue]
) -> None:
    """Nothing ran; and a repeat of what was cancelled starts nothing either."""
    cancel = EventfdCancel()
    with ThreadPoolExecutor() as threads, ExitStack() as taken:
        taken.callback(cancel.close)
        for _ in range(PER_TENANT):
            taken.enter_context(line.house.places.hold(TENANT, cancel))
        waiting = threads.submit(line.call, tool, arguments, call_id="w")
        while line.house.places.count()[1] == 0:
            assert not waiting.done()
        assert line.house.running.cancel(line.lease, "w") == 1
        result = waiting.result(30)
    assert (result.status, code(result)) == (Status.CANCELLED, Code.CANCELLED)
    (record,) = line.records()
    assert (record.kind, record.code) == (AuditKind.CALL_REFUSED, "cancelled")
    assert result.audit is not None
    assert result.audit.seq == record.seq
    assert record.result_digest == result_digest(result)
    assert "sandbox" not in line.faults.seen
    if tool != "file_view":
        again = line.call(tool, arguments, call_id="w")
        assert (again.status, again.replayed, again.audit) == (result.status, True, result.audit)
        assert line.kinds() == ["call_refused"]


@pytest.mark.parametrize(
    "more",
    [{"lease": "ls_0000000000000000"}, {"token": "nonsense"}, {"tool": "nothing"}],
)
def test_a_call_that_is_refused_early_is_recorded_with_what_is_known(
    line: Line, more: dict[str, str]
) -> None:
    tool = more.pop("tool", "bash_execute")
    result = line.call(tool, None, **more)
    (record,) = line.records()
    assert record.kind is AuditKind.CALL_REFUSED
    assert (record.tool, record.actor, record.tenant) == (tool, "uid 1000", TENANT)
    assert record.code == code(result)


def test_arguments_are_redacted_and_the_digest_is_of_what_is_left(line: Line) -> None:
    line.call(arguments={"command": "login hunter2 hunter2"})
    for record in line.records():
        assert record.arguments is not None
        assert "hunter2" not in record.arguments
        assert "login [secret] [secret]" in record.arguments
        assert record.redactions == 2
        assert record.arguments_bytes == len(record.arguments)
    assert "hunter2" not in "".join(link.body for link in line.house.table.read(1))


def test_long_arguments_are_cut_and_their_digest_is_of_all(line: Line) -> None:
    one, other = "x" * 6000, "x" * 6001
    line.call(arguments={"command": one})
    line.call(arguments={"command": other})
    first, second = (record for record in line.records() if record.kind == "call_intent")
    assert first.arguments == second.arguments
    assert len(first.arguments or "") == 4096
    assert (first.arguments_bytes or 0) > 6000
    assert first.arguments_digest != second.arguments_digest


def test_nothing_runs_without_its_intent(line: Line) -> None:
    line.spoil()
    result = line.call()
    assert (result.status, code(result)) == (Status.UNAVAILABLE, Code.STORAGE_UNAVAILABLE)
    assert "starting" not in line.faults.seen
    assert not any(sandbox.started for sandbox in line.house.engine.created)
    assert result.audit is None


def test_an_effect_without_its_outcome_is_in_doubt(line: Line) -> None:
    line.faults.arm("ran", line.spoil)
    result = line.call()
    assert (result.status, code(result)) == (Status.UNKNOWN, Code.IN_DOUBT)
    assert result.audit is None


def test_a_repeat_is_given_the_record_of_the_first_and_makes_none(line: Line) -> None:
    first = line.call(call_id="again")
    count = len(line.records())
    repeat = line.call(call_id="again")
    assert repeat.replayed
    assert repeat.audit == first.audit
    assert result_digest(repeat) == result_digest(first)
    assert len(line.records()) == count


def test_a_rejected_edit_and_its_repeat_name_one_record(line: Line) -> None:
    wrong: dict[str, JsonValue] = {"path": "a", "old_str": "x", "new_str": "y"}
    first, repeat = (line.call("file_edit", wrong, call_id="edit") for _ in range(2))
    assert (first.status, repeat.status) == (Status.REJECTED, Status.REJECTED)
    assert first.audit is not None
    assert repeat.audit == first.audit
    assert line.kinds() == ["call_outcome"]


def test_claim_and_intent_are_one_transaction(line: Line) -> None:
    def fail() -> None:
        raise RuntimeError

    line.faults.arm("starting", fail)
    line.call(call_id="one")
    (claim,) = line.house.claims.book.list(None, None, tuple(ClaimState), 10)
    assert line.kinds()[0] == "call_intent"
    assert claim.state is not ClaimState.IN_FLIGHT
    line.spoil()
    line.call(call_id="two")
    assert len(line.house.claims.book.list(None, None, tuple(ClaimState), 10)) == 1


def test_what_a_person_says_of_a_call_in_doubt_is_recorded(line: Line) -> None:
    line.faults.arm("ran", raising(RuntimeError("x")))
    line.call(call_id="doubt")
    (claim,) = line.house.claims.book.list(None, None, (ClaimState.IN_DOUBT,), 10)
    line.house.settlement.settle(None, claim.id, completed=True, by="uid 5", reason="saw it")
    record = line.records()[-1]
    assert (record.kind.value, record.actor, record.call_id) == ("call_settled", "uid 5", "doubt")
    assert record.detail == {"claim": claim.id, "state": "completed", "reason": "saw it"}
    told = line.call(call_id="doubt")
    assert told.audit is not None
    assert told.audit.seq == record.seq
    assert record.result_digest == result_digest(told)


def test_what_a_person_says_is_shown_without_secrets(line: Line) -> None:
    lease = line.house.leases.show(TENANT, line.lease)
    line.house.secrets.add(lease, "KEY", b"hunter2hunter2", in_environment=False)
    line.faults.arm("ran", raising(RuntimeError("x")))
    line.call(call_id="doubt")
    (claim,) = line.house.claims.book.list(None, None, (ClaimState.IN_DOUBT,), 10)
    said = "saw hunter2hunter2\u202e there"
    told = line.house.settlement.settle(None, claim.id, completed=True, by="uid 5", reason=said)
    detail = line.records()[-1].detail
    assert detail is not None
    assert detail["reason"] == told.reason == "saw [redacted:KEY]\u202e there"
    result = line.call(call_id="doubt")
    messages = {warning.code.value: warning.message for warning in result.warnings}
    assert messages["settled"] == "settled as completed by uid 5: saw [redacted:KEY]<U+202E> there"
    assert "made_visible" in messages


def test_a_detail_is_redacted_as_arguments_are(line: Line) -> None:
    detail: Detail = {"path": "/workspace/hunter2", "number": 1, "cut": ["hunter2"]}
    line.audit.note(AuditKind.FILE_READ, WHO, lease_id=line.lease, detail=detail)
    (record,) = line.records()
    assert record.detail == {"path": "/workspace/[secret]", "number": 1, "cut": ["[secret]"]}
    assert record.redactions == 2


def test_a_fault_of_ours_after_the_effect_is_recorded_as_in_doubt(line: Line) -> None:
    line.faults.arm("ran", raising(RuntimeError("x")))
    assert code(line.call()) is Code.IN_DOUBT
    assert [(r.kind.value, r.code) for r in line.records()] == [
        ("call_intent", None),
        ("call_outcome", "in_doubt"),
    ]


def test_a_flood_of_refusals_does_not_fill_the_disk_and_is_counted(line: Line) -> None:
    line.audit.tick()
    results = [line.call("nothing") for _ in range(BURST + 50)]
    line.house.clock.advance(COUNTED_S)
    line.audit.tick()
    records = [r for r in line.records() if r.kind is not AuditKind.CHECKPOINT]
    assert len(records) == BURST + 1
    assert records[-1].kind is AuditKind.REFUSALS
    assert records[-1].tenant == TENANT
    assert records[-1].detail is not None
    assert records[-1].detail["count"] == 50
    assert records[-1].detail["codes"] == ["unknown_tool=50"]
    assert sum(result.audit is not None for result in results) == BURST


def test_a_request_that_is_no_call_is_recorded_when_it_is_denied(line: Line) -> None:
    line.audit.request_refused(
        WHO, TENANT, "POST /v1/keys/rotate", Fault(Code.PEER_NOT_ALLOWED, "")
    )
    (record,) = line.records()
    assert (record.kind.value, record.code, record.detail) == (
        "request_refused",
        "peer_not_allowed",
        {"request": "POST /v1/keys/rotate"},
    )


def test_checkpoints_come_after_a_time_or_so_many_records(line: Line) -> None:
    line.audit.tick()
    assert line.kinds() == []  # not due
    line.house.clock.advance(61)
    line.audit.tick()
    assert line.kinds() == ["checkpoint"]
    line.house.clock.advance(1000)
    line.audit.tick()
    assert line.kinds() == ["checkpoint"]  # there is nothing to sign
    quick = Auditor(line.house.table, line.house.clock, AuditSettings(checkpoint_records=4))
    line.call()
    quick.tick()
    assert line.kinds()[-1] == "call_outcome"
    line.call()
    quick.tick()
    assert line.kinds()[-1] == "checkpoint"


def test_a_clock_that_was_set_back_does_not_put_the_checkpoint_off(line: Line) -> None:
    now = line.house.clock()
    times = iter([now, now - 3600, now - 3600, now - 3600, now - 3600, now - 3600])
    audit = Auditor(line.house.table, lambda: next(times))
    audit.tick()
    assert line.kinds() == ["checkpoint"]


def test_upkeep_never_raises(line: Line) -> None:
    line.house.clock.advance(61)
    line.spoil()
    line.audit.tick()
    line.audit.stop()


def test_the_first_record_says_whether_the_last_checkpoint_is_still_held(line: Line) -> None:
    line.house.table.seal(1)
    kept = line.house.table.state().sealed
    assert kept is not None
    line.audit.start("1.0", "i", kept)
    assert line.records()[-2].detail == {"version": "1.0", "instance": "i"}
    assert line.kinds()[-2:] == ["daemon_started", "checkpoint"]
    gone = Checkpoint(**{**kept.model_dump(), "seq": 99})
    line.audit.start("1.0", "i", gone)
    assert line.records()[-2].detail == {"version": "1.0", "instance": "i", "missing_through": 99}


def test_the_first_record_says_what_was_added_behind_an_orderly_end(line: Line) -> None:
    table, detail = line.house.table, {"version": "1.0", "instance": "i"}
    stopped = AuditEvent(AuditKind.DAEMON_STOPPED, 1, detail={CLOSED: True})
    for added in (False, True):
        for beside in (True, False):  # the file beside the ledger may be gone
            kept = table.write_signed(stopped, 1)
            if added:
                table.write(AuditEvent(AuditKind.LEASE_CREATED, 1))
            line.audit.start("1.0", "i", kept if beside else None)
            more = {"added_from": kept.seq + 2} if added else {}
            assert line.records()[-2].detail == detail | more
    table.write_signed(AuditEvent(AuditKind.CALL_OUTCOME, 1), 1)
    table.write(AuditEvent(AuditKind.CALL_OUTCOME, 1))  # of a daemon that was killed
    line.audit.start("1.0", "i", None)
    assert line.records()[-2].detail == detail


def test_a_start_that_was_cut_off_before_its_checkpoint_was_kept_has_added_nothing(
    line: Line,
) -> None:
    table = line.house.table
    stopped = AuditEvent(AuditKind.DAEMON_STOPPED, 1, detail={CLOSED: True})
    kept = table.write_signed(stopped, 1)
    for _ in range(2):  # the file beside the ledger stays the same: its disk is full
        line.audit.start("1.0", "i", kept)
        assert line.records()[-2].detail == {"version": "1.0", "instance": "i"}
    # Who has no key can't make others' records look like such a start.
    kept = table.write_signed(stopped, 1)
    table.write(AuditEvent(AuditKind.DAEMON_STARTED, 1))
    sealed = table.seal(1)
    assert sealed is not None
    false = Checkpoint(**{**sealed.model_dump(), "signature": kept.signature})
    table._sealed = false
    line.audit.start("1.0", "i", kept)
    assert line.records()[-2].detail == {
        "version": "1.0",
        "instance": "i",
        "added_from": kept.seq + 2,
    }


def test_the_end_is_signed_and_counts_are_written(line: Line) -> None:
    for _ in range(BURST + 1):
        line.call("nothing")
    line.audit.stop()
    assert line.kinds()[-3:] == ["refusals", "daemon_stopped", "checkpoint"]
