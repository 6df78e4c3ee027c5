"""Outcomes to verdicts, and everything into the one result."""

from __future__ import annotations

import itertools
import json

import pytest

from stockade.terms.fault import REGISTRY, Code, Fault, Retry, Status
from stockade.terms.outcome import Captured, CapturedArtifact, EditOutcome, End, ViewOutcome
from stockade.terms.result import EditData, ToolResult, ViewData, Warn, Warning
from stockade.tools import catalog
from stockade.tools.definition import AnyTool, Level, Shaped
from stockade.tools.retry import retry_safe
from stockade.tools.shape import fault_result, operation_result, shape_result, timestamp
from tests.unit.tools.support import BASH, EDIT, RUN, VIEW, ended, frame

COMMAND = catalog.parse_arguments(BASH, {"command": ":"})[0]


@pytest.mark.parametrize(
    ("end", "value", "oom", "status", "code"),
    [
        (End.EXITED, 0, 0, Status.SUCCEEDED, None),
        (End.EXITED, 0, 2, Status.SUCCEEDED, None),
        (End.EXITED, 1, 0, Status.FAILED, Code.NONZERO_EXIT),
        (End.EXITED, 124, 0, Status.FAILED, Code.NONZERO_EXIT),
        (End.EXITED, 137, 1, Status.FAILED, Code.NONZERO_EXIT),
        (End.SIGNALED, 11, 0, Status.FAILED, Code.KILLED_BY_SIGNAL),
        (End.SIGNALED, 9, 0, Status.FAILED, Code.KILLED_BY_SIGNAL),
        (End.SIGNALED, 9, 1, Status.LIMITED, Code.MEMORY_EXCEEDED),
        (End.SIGNALED, 15, 1, Status.FAILED, Code.KILLED_BY_SIGNAL),
        (End.DEADLINE, None, 0, Status.TIMED_OUT, Code.DEADLINE_EXCEEDED),
        (End.DEADLINE, None, 1, Status.TIMED_OUT, Code.DEADLINE_EXCEEDED),
        (End.CANCELLED, None, 0, Status.CANCELLED, Code.CANCELLED),
        (End.LEASE_EXPIRED, None, 0, Status.LIMITED, Code.LEASE_EXPIRED_IN_CALL),
        (End.LOST, None, 0, Status.UNKNOWN, Code.SANDBOX_LOST),
        (End.NOT_FOUND, None, 0, Status.REJECTED, Code.SHELL_NOT_FOUND),
    ],
)
def test_how_a_program_ended_is_its_verdict(
    end: End, value: int | None, oom: int, status: Status, code: Code | None
) -> None:
    shaped = BASH.shape(COMMAND, ended(end, value, oom_kills=oom))
    assert shaped.status is status
    assert (shaped.fault.code if shaped.fault else None) is code
    says_child = Warn.OOM_IN_CHILD in [w.code for w in shaped.warnings]
    assert says_child is (oom > 0 and not (end is End.SIGNALED and value == 9))


@pytest.mark.parametrize("end", list(End))
def test_an_exit_status_is_never_invented(end: End) -> None:
    shaped = BASH.shape(COMMAND, ended(end))
    assert shaped.exit is None
    assert shaped.status is not Status.SUCCEEDED


def test_what_was_read_is_given_also_after_a_timeout() -> None:
    kept = Captured(b"so far\n", b"", 7)
    shaped = BASH.shape(COMMAND, ended(End.DEADLINE, stdout=kept))
    assert shaped.stdout is not None
    assert shaped.stdout.text == "so far\n"


def test_b19_a_failed_program_keeps_its_status_beside_a_cut_stream() -> None:
    kept = Captured(b"1\n", b"FAILED\n", 500_000, CapturedArtifact("ar_0123456789abcdef", 9, False))
    outcome = ended(End.EXITED, 1, stdout=kept)
    result = shape_result(BASH.shape(COMMAND, outcome), frame(BASH), outcome, 30_000)
    assert result.exit is not None
    assert (result.status, result.exit.code) == (Status.FAILED, 1)
    assert result.stdout is not None
    assert result.stdout.truncated
    assert [(a.id, a.name, a.complete) for a in result.artifacts] == [
        ("ar_0123456789abcdef", "stdout", False)
    ]


@pytest.mark.parametrize("count", [1, 3])
def test_b01_what_is_left_running_is_counted(count: int) -> None:
    shaped = BASH.shape(COMMAND, ended(End.EXITED, 0, left_running=count))
    assert [(w.code, w.count) for w in shaped.warnings] == [(Warn.LEFT_RUNNING, count)]


@pytest.mark.parametrize("count", [1, 9])
def test_b29_refused_processes_are_a_warning_because_the_program_had_the_last_word(
    count: int,
) -> None:
    shaped = BASH.shape(COMMAND, ended(End.EXITED, 254, pids_refused=count))
    assert shaped.status is Status.FAILED
    assert [(w.code, w.count) for w in shaped.warnings] == [(Warn.NEAR_LIMIT, count)]


def test_b34_signal_7_is_shown_as_such() -> None:
    shaped = BASH.shape(COMMAND, ended(End.SIGNALED, 7))
    assert shaped.fault is not None
    assert "SIGBUS" in shaped.fault.message
    assert shaped.exit is not None
    assert (shaped.exit.kind, shaped.exit.signal, shaped.exit.code) == ("signaled", 7, None)


def test_a_program_that_can_not_be_started() -> None:
    arguments = catalog.parse_arguments(RUN, {"argv": ["nope"]})[0]
    for errno, code in ((2, Code.COMMAND_NOT_FOUND), (13, Code.COMMAND_NOT_FOUND)):
        shaped = RUN.shape(arguments, ended(End.NOT_FOUND, errno=errno))
        assert shaped.fault is not None
        assert shaped.fault.code is code
        assert ("permission denied" in shaped.fault.message) is (errno == 13)
        assert ("is not in this sandbox" in shaped.fault.message) is (errno == 2)
        assert shaped.stdout is None
    for errno, reason in ((8, "kernel can run"), (26, "errno 26")):  # ENOEXEC, ETXTBSY
        shaped = RUN.shape(arguments, ended(End.NOT_FOUND, errno=errno))
        assert shaped.fault is not None
        assert reason in shaped.fault.message
        assert "is not in" not in shaped.fault.message
    shaped = RUN.shape(arguments, ended(End.NOT_FOUND, errno=7))
    assert shaped.fault is not None
    assert shaped.fault.code is Code.ARGUMENT_TOO_LARGE


LEVELS: tuple[Level, ...] = ("A0", "A1", "A2", "A3")
NOTHING_CHANGED = {"rejected", "invalid", "denied", "approval_required", "unavailable"}


@pytest.mark.parametrize(("status", "level"), list(itertools.product(Status, LEVELS)))
def test_retry_safe_to_exhaustion(status: Status, level: Level) -> None:
    assert retry_safe(status, level) is (level == "A0" or status.value in NOTHING_CHANGED)


@pytest.mark.parametrize(("code", "level"), list(itertools.product(Code, LEVELS)))
def test_retry_safe_for_every_code(code: Code, level: Level) -> None:
    """A new call id beside a call that is still running would run it twice."""
    safe = retry_safe(REGISTRY[code].status, level, code)
    expected = REGISTRY[code].status.value in NOTHING_CHANGED and code is not Code.IN_FLIGHT
    assert safe is (level == "A0" or expected)


@pytest.mark.parametrize("code", list(Code))
def test_no_result_that_is_stored_says_that_the_same_call_may_end_otherwise(code: Code) -> None:
    row = REGISTRY[code]
    if row.retry is Retry.SAME_CALL:
        assert row.status in (Status.UNAVAILABLE, Status.APPROVAL_REQUIRED)


@pytest.mark.parametrize("code", list(Code))
@pytest.mark.parametrize("tool", [None, BASH, VIEW])
def test_every_fault_has_the_one_shape(code: Code, tool: AnyTool | None) -> None:
    fault = Fault(code, "m", rule="r", retry_after_ms=5, details={"n": 1, "s": ("a",), "i": (1, 2)})
    result = fault_result(fault, frame(tool))
    wire = json.loads(result.to_json())
    assert set(wire) == {f.alias or name for name, f in ToolResult.model_fields.items()}
    assert wire["status"] == REGISTRY[code].status.value
    assert wire["error"]["code"] == code.value
    assert wire["error"]["hint"] == REGISTRY[code].hint
    assert wire["error"]["details"] == {"n": 1, "s": ["a"], "i": [1, 2]}
    assert ToolResult.model_validate_json(result.to_json()) == result


def test_error_is_null_exactly_when_it_succeeded() -> None:
    outcome = ended(End.EXITED, 0)
    result = shape_result(BASH.shape(COMMAND, outcome), frame(BASH), outcome, 1000)
    assert result.error is None
    assert result.usage is not None
    assert (result.usage.wall_ms, result.usage.cpu_ms, result.usage.output_bytes) == (12, None, 0)
    assert not result.retry_safe


def test_an_operation_on_a_lease_is_no_tools_and_can_be_repeated() -> None:
    shaped = Shaped(warnings=(Warning(code=Warn.CLAMPED, message="m", count=1),))
    result = operation_result(shaped, frame(None))
    assert (result.status, result.error, result.retry_safe) == (Status.SUCCEEDED, None, True)
    assert result.warnings == list(shaped.warnings)
    assert ToolResult.model_validate_json(result.to_json()) == result


def test_times_are_rfc_3339_in_utc() -> None:
    assert timestamp(0.0) == "1970-01-01T00:00:00.000Z"
    assert timestamp(1_700_000_000.25) == "2023-11-14T22:13:20.250Z"


def view(lines: tuple[bytes, ...], **more: object) -> ViewData:
    values: dict[str, object] = {
        "path": "/workspace/a", "lines": lines, "first_line": 1, "total_lines": len(lines),
        "bytes": 1, "version": "0" * 32, "line_endings": "lf", "final_newline": True,
        "bom": False, "cut": (), "stopped_at_bytes": False, **more,
    }  # fmt: skip
    outcome = ViewOutcome(**values)  # type: ignore[arg-type]
    shaped: Shaped = VIEW.shape(catalog.parse_arguments(VIEW, {"path": "a"})[0], outcome)
    assert isinstance(shaped.data, ViewData)
    return shaped.data


def test_b39_a_line_is_shown_with_its_own_ending() -> None:
    data = view((b"one\r\n", b"two\n", b"three"), bom=True)
    assert data.content == "     1\tone\r\n     2\ttwo\n     3\tthree"
    assert (data.last_line, data.next_offset) == (3, None)


def test_a_byte_order_mark_is_named_not_shown() -> None:
    assert view((b"\xef\xbb\xbfx\n",), bom=True).content == "     1\tx\n"


def test_view_says_how_to_go_on() -> None:
    data = view((b"x\n",), first_line=7, total_lines=9)
    assert (data.first_line, data.last_line, data.next_offset) == (7, 7, 8)


def test_b37_a_lower_bound_is_marked() -> None:
    assert not view((b"x\n",), total_lines=9).total_lines_at_least
    assert view((b"x\n",), total_lines=9, total_lines_at_least=True).total_lines_at_least


def test_a_line_is_numbered_alike_whether_or_not_another_one_is_cut() -> None:
    lines = ("é\r\n".encode(), b"two\n", b"three")
    whole = view(lines, first_line=999_999, total_lines=1_000_001)
    assert whole.content == "999999\té\r\n1000000\ttwo\n1000001\tthree"
    assert not whole.lossy
    cut = view(lines, first_line=999_999, total_lines=1_000_001, cut=(1_000_001,))
    assert cut.content == whole.content + " [line cut at 2000 characters]\n"
    assert not cut.lossy
    lossy = view((*lines, b"\xff"), first_line=999_999, total_lines=1_000_002)
    assert lossy.content == whole.content + "1000002\t\ufffd"
    assert lossy.lossy


def test_view_of_nothing() -> None:
    data = view((), total_lines=0)
    assert (data.content, data.last_line, data.next_offset) == ("", 0, None)
    beyond = view((), first_line=50, total_lines=9)
    assert (beyond.first_line, beyond.last_line, beyond.next_offset) == (50, 49, None)


def test_view_marks_a_cut_line_and_bytes_that_are_no_text() -> None:
    data = view((b"caf\xe9\n", "é".encode()[:1]), cut=(2,))
    assert data.lossy
    assert data.content.endswith("[line cut at 2000 characters]\n")
    assert data.cut_lines == [2]


def test_edit_data() -> None:
    arguments = catalog.parse_arguments(EDIT, {"path": "a", "old_str": "x", "new_str": "y"})[0]
    outcome = EditOutcome("/workspace/a", 2, "0" * 32, "1" * 32, "-x\n+y\n", False)
    data = EDIT.shape(arguments, outcome).data
    assert isinstance(data, EditData)
    assert (data.changed_file, data.replacements, data.new_version) == ("/workspace/a", 2, "1" * 32)
