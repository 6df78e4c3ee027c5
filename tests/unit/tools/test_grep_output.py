"""The search program's output when it is cut, strange or hostile."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.compile import _SEARCH
from stockade.terms.call import Capture
from stockade.terms.fault import Code, Status
from stockade.terms.outcome import End
from stockade.tools import catalog
from stockade.tools.grep_messages import parse_messages
from stockade.tools.grep_output import MAX_LINE_BYTES, MAX_TEXT_BYTES, around, parse_matches
from tests.unit.tools.support import GREP, captured, ended

ALL = Capture(1 << 20, 0, 0)
ARGUMENTS = catalog.parse_arguments(GREP, {"pattern": "x", "path": "a"})[0]


def records(path: str, lines: int) -> bytes:
    name = {"text": path}
    out = [{"type": "begin", "data": {"path": name}}]
    out += [
        {
            "type": "match",
            "data": {
                "path": name,
                "lines": {"text": "x\n"},
                "line_number": n + 1,
                "submatches": [{"start": 0, "end": 1}],
            },
        }
        for n in range(lines)
    ]
    out.append({"type": "end", "data": {"path": name, "binary_offset": None}})
    return b"".join(json.dumps(r, separators=(",", ":")).encode() + b"\n" for r in out)


SUMMARY = b'{"data":{},"type":"summary"}\n'


def test_every_cut_gives_lower_bounds_and_never_a_guess() -> None:
    raw = records("/workspace/a", 3) + records("/workspace/b", 2) + SUMMARY
    assert parse_matches(captured(raw, ALL)).complete
    for size in range(len(raw)):
        found = parse_matches(captured(raw, Capture(size, 0, 0)))
        assert not found.complete
        assert found.at_least
        assert found.total <= 5
        assert len(found.shown) == found.total
        # What was kept of the end is not put behind the cut: there both would be one record.
        ends = Capture(size, (len(raw) - size) // 2, 0)
        assert parse_matches(captured(raw, ends)) == found


def test_a_search_without_a_summary_did_not_finish() -> None:
    assert parse_matches(captured(records("/workspace/a", 1), ALL)).at_least


@given(st.binary(max_size=300))
def test_parsers_are_total(raw: bytes) -> None:
    parse_matches(captured(raw, ALL))
    parse_matches(captured(b'{"type":"match"' + raw + b"\n", ALL))
    parse_messages(captured(raw, Capture(100, 50, 0)))


@pytest.mark.parametrize(
    "line",
    [
        b'{"type":"match","data":{}}',
        b'{"type":"match","data":{"path":{"bytes":"%%%"},"lines":{"text":"x"},"line_number":1}}',
        b'{"type":"match","data":{"path":{"text":"a"},"lines":{"bytes":"a"},"line_number":1}}',
        b'{"type":"match","data":{"path":{"text":"a"},"line_number":"1"}}',
        b'{"type":"match","data":{"path":{"text":"a"},"lines":{"text":"x"}}}',
    ],
)
def test_a_record_that_can_not_be_read_is_counted_not_shown(line: bytes) -> None:
    begin, good, end = records("/workspace/a", 1).splitlines(keepends=True)
    found = parse_matches(captured(begin + line + b"\n" + good + end + SUMMARY, ALL))
    assert ([m.text for m in found.shown], found.total, found.unshowable) == (["x"], 2, 1)


def test_records_without_their_file_are_none() -> None:
    _, match, end = records("/workspace/a", 1).splitlines(keepends=True)
    for line in (match, end.replace(b"null", b"7"), b'{"type":"end"}\n'):
        found = parse_matches(captured(line + SUMMARY, ALL))
        assert (found.shown, found.total, found.files, found.binary) == ((), 0, 0, 0)


def test_a_match_is_where_its_first_part_begins() -> None:
    begin, match, end = records("/workspace/a", 1).splitlines(keepends=True)
    several = match.replace(b'"start":0', b'"start":3').replace(b"]", b',{"start":7}]')
    none = match.replace(b'{"start":0,"end":1}', b"")
    found = parse_matches(captured(begin + several + none + end + SUMMARY, ALL))
    assert [m.column for m in found.shown] == [4, 1]


def test_texts_are_shown_up_to_their_bound() -> None:
    line = b"x" * 256
    raw = records("/workspace/a", 130).replace(b"x\\n", line)
    found = parse_matches(captured(raw + SUMMARY, ALL))
    assert len(found.shown) == MAX_TEXT_BYTES // len(line) == 128
    assert found.total == 130


def test_a_name_does_not_make_a_binary_file_text() -> None:
    raw = records('/workspace/"binary_offset":null', 2)
    assert parse_matches(captured(raw + SUMMARY, ALL)).binary == 0
    raw = raw.replace(b'"binary_offset":null}}', b'"binary_offset":7}}')
    found = parse_matches(captured(raw + SUMMARY, ALL))
    assert (found.binary, found.shown) == (1, ())
    found = parse_matches(captured(records("/workspace/a", 1) + raw + SUMMARY, ALL))
    assert (found.binary, [m.path for m in found.shown]) == (1, ["/workspace/a"])


@given(st.text(min_size=1, max_size=3), st.integers(200, 900), st.integers(0, 10_000))
def test_a_long_line_is_cut_on_character_borders(unit: str, times: int, start: int) -> None:
    raw = unit.replace("\n", " ").replace("\r", " ").encode() * times
    text, was_cut = around(raw, min(start, len(raw) - 1))
    assert was_cut is (len(raw) > MAX_LINE_BYTES)
    if "\ufffd" not in unit:
        assert "\ufffd" not in text
    assert len(text.encode()) <= MAX_LINE_BYTES + 60


def test_of_a_long_line_the_part_around_the_match_is_shown_and_the_rest_counted() -> None:
    raw = "".join(f"{n:04}" for n in range(300)).encode()
    size = len(raw)
    for start, first in (
        (0, 0),
        (150, 0),
        (151, 1),
        (600, 450),
        (size - 350, 700),
        (size - 1, 700),
    ):
        left = size - first - MAX_LINE_BYTES
        shown = raw[first : first + MAX_LINE_BYTES].decode()
        before = f"[{first} bytes cut] " if first else ""
        after = f" [{left} bytes cut]" if left else ""
        assert around(raw, start) == (before + shown + after, True)
        assert around(raw + b"\r\n", start) == (before + shown + after, True)
    assert around(raw[:MAX_LINE_BYTES], 499) == (raw[:MAX_LINE_BYTES].decode(), False)


def test_what_a_cut_takes_of_a_character_is_counted_as_cut() -> None:
    raw = "€".encode() * 400
    for start in range(600, 606):
        text, _ = around(raw, start)
        before, _, rest = text.removeprefix("[").partition(" bytes cut] ")
        shown, _, after = rest.removesuffix(" bytes cut]").partition(" [")
        assert set(shown) == {"€"}
        assert int(before) + len(shown.encode()) + int(after) == len(raw)


def test_other_versions_of_the_program_are_understood() -> None:
    raw = (
        b"rg: DEBUG|ignore::walk|crates/ignore/src/walk.rs:1799: ignoring /workspace/.git: "
        b"Ignore(IgnoreMatch(Hidden))\n"
        b"rg: DEBUG|globset|crates/globset/src/lib.rs:453: built glob set; 0 literals\n"
        b"rg: /workspace/x: IO error for operation on /workspace/x: Permission denied "
        b"(os error 13)\n"
    )
    said = parse_messages(captured(raw, ALL))
    assert (said.hidden, said.ignored, said.special) == (1, 0, 0)
    assert [(e.item, e.code, e.message) for e in said.errors] == [
        ("/workspace/x", "permission_denied", "Permission denied")
    ]


def test_a_missing_path_of_several_lines_is_known_in_either_version() -> None:
    path = b"/workspace/new\nline"
    reason = b"No such file or directory (os error 2)\n"
    twice = b"rg: %s: IO error for operation on %s: %s" % (path, path, reason)
    for raw in (b"%s: %s" % (path, reason), twice):
        assert parse_messages(captured(raw, ALL)).is_missing(path)
        assert not parse_messages(captured(raw, ALL)).is_missing(b"/workspace/new")


def test_skips_beyond_what_was_kept_are_a_lower_bound() -> None:
    line = b"DEBUG|ignore::walk|a/walk.rs:1: ignoring /workspace/.x: Ignore(IgnoreMatch(Hidden))\n"
    said = parse_messages(captured(line * 100, Capture(len(line) * 2, len(line) * 3, 0)))
    assert not said.skipped_exactly
    assert said.hidden == 5


def test_trouble_whose_message_was_not_kept_is_still_partial() -> None:
    outcome = ended(End.EXITED, 2, stdout=captured(records("/workspace/a", 1) + SUMMARY, ALL))
    shaped = GREP.shape(ARGUMENTS, outcome)
    assert shaped.status is Status.PARTIAL
    assert shaped.items is not None
    assert (shaped.items.completed, shaped.items.failed) == (1, 1)


@pytest.mark.parametrize(
    ("end", "value", "oom", "code"),
    [
        (End.NOT_FOUND, None, 0, Code.ENGINE_UNAVAILABLE),
        (End.EXITED, 127, 0, Code.ENGINE_UNAVAILABLE),
        (End.SIGNALED, 9, 1, Code.MEMORY_EXCEEDED),
        (End.SIGNALED, 11, 0, Code.SANDBOX_LOST),
        (End.SIGNALED, 9, 0, Code.SANDBOX_LOST),
        (End.CANCELLED, None, 0, Code.CANCELLED),
        (End.LEASE_EXPIRED, None, 0, Code.LEASE_EXPIRED_IN_CALL),
        (End.LOST, None, 0, Code.SANDBOX_LOST),
    ],
)
def test_a_search_that_broke_is_never_no_match(
    end: End, value: int | None, oom: int, code: Code
) -> None:
    shaped = GREP.shape(ARGUMENTS, ended(end, value, oom_kills=oom))
    assert shaped.fault is not None
    assert shaped.fault.code is code
    if code is Code.MEMORY_EXCEEDED:
        assert f"{_SEARCH.memory_bytes >> 20} MiB" in shaped.fault.message
