"""Results of every tool: clean in each of their strings, and what was done is said."""

from __future__ import annotations

import base64
from dataclasses import replace
from typing import Final

import pytest
from pydantic import JsonValue, ValidationError

from stockade.decide.canonical import JsonLike
from stockade.edge.refusal import refusal
from stockade.host.policy_files import load_policy
from stockade.terms.call import Capture
from stockade.terms.fault import Code, Fault
from stockade.terms.outcome import Captured, EditOutcome, End, ExecOutcome, ViewOutcome
from stockade.terms.result import (
    EditData,
    GrepData,
    GrepMatch,
    ItemError,
    Items,
    Provenance,
    ToolResult,
    ViewData,
    Warn,
)
from stockade.terms.secret import Secret
from stockade.tools.clean import clean_arguments, clean_edit, clean_outcome, clean_result
from stockade.tools.definition import AnyTool, Shaped, warning
from stockade.tools.model_text import for_model
from stockade.tools.redact import Findings, Redactor, Tokens
from stockade.tools.shape import fault_result, shape_result
from tests.unit.tools.support import BASH, EDIT, GREP, VIEW, captured, ended, frame

VALUE: Final = b"v3ry-secret-value\nof-two-lines-it-is"
LINES: Final = VALUE.decode().split("\n")
TOKENS: Final = Tokens(load_policy().redaction)
REDACTOR: Final = Redactor(TOKENS, [Secret("ls", "KEY", VALUE, True, 0.0)])
PLAIN: Final = Redactor(TOKENS)
WIDE: Final = Capture(1000, 1000, 0)


def shaped(
    tool: AnyTool,
    arguments: dict[str, JsonValue],
    outcome: ExecOutcome | ViewOutcome | EditOutcome,
    redactor: Redactor = REDACTOR,
) -> ToolResult:
    findings = Findings()
    parsed = tool.arguments.model_validate(arguments)
    if tool is not GREP:
        outcome = clean_outcome(outcome, redactor, findings)
    made = shape_result(tool.shape(parsed, outcome), frame(tool), None, None)
    return clean_result(made, redactor, findings)


def codes(result: ToolResult) -> dict[Warn, int]:
    return {each.code: each.count for each in result.warnings}


def no_secret(result: ToolResult) -> None:
    for text in (result.to_json().decode(), for_model(result)):
        assert not any(line[i : i + 8] in text for line in LINES for i in range(len(line) - 7))


def viewed(*lines: bytes, first: int = 1, cut: tuple[int, ...] = ()) -> ViewOutcome:
    return ViewOutcome(
        path="/workspace/f",
        lines=lines,
        first_line=first,
        total_lines=first + len(lines) - 1,
        bytes=100,
        version="0" * 32,
        line_endings="lf",
        final_newline=True,
        bom=False,
        cut=cut,
        stopped_at_bytes=False,
    )


def test_a_stream_is_clean_and_its_counts_are_of_what_was_printed() -> None:
    raw = b"a " + VALUE + b" b"
    outcome = ended(End.EXITED, 0, stdout=captured(raw, WIDE))
    result = shaped(BASH, {"command": "x"}, outcome)
    assert result.stdout is not None
    assert result.stdout.text == "a [redacted:KEY] b"
    assert (result.stdout.total_bytes, result.stdout.head_bytes) == (len(raw), len(raw))
    assert codes(result) == {Warn.REDACTED: 1}
    assert outcome.stdout.head == raw
    no_secret(result)


def test_a_secret_in_standard_error_alone_is_hidden() -> None:
    outcome = ended(End.EXITED, 1, stdout=captured(b"fine", WIDE), stderr=captured(VALUE, WIDE))
    result = shaped(BASH, {"command": "x"}, outcome)
    assert result.stdout is not None
    assert result.stderr is not None
    assert (result.stdout.text, result.stderr.text) == ("fine", "[redacted:KEY]")
    no_secret(result)


def test_the_context_of_a_cut_is_searched_and_never_shown() -> None:
    cut = Captured(
        head=b"head " + VALUE[:5],
        tail=VALUE[-5:] + b" tail",
        total_bytes=10_000,
        after_head=VALUE[5:] + b" after",
        before_tail=b"before " + VALUE[:-5],
    )
    clean = clean_outcome(ended(End.EXITED, 0, stdout=cut), REDACTOR, Findings())
    assert isinstance(clean, ExecOutcome)
    assert clean.stdout.shown == (b"head [redacted:KEY]", b"[redacted:KEY] tail")
    beyond = replace(cut, head=b"head ", tail=b" tail", after_head=VALUE, before_tail=VALUE)
    findings = Findings()
    outcome = ended(End.EXITED, 0, stdout=beyond)
    assert clean_outcome(outcome, REDACTOR, findings) is outcome
    assert not findings.hidden
    one_side = replace(cut, tail=b" tail", before_tail=b"")
    clean = clean_outcome(ended(End.EXITED, 0, stdout=one_side), REDACTOR, Findings())
    assert isinstance(clean, ExecOutcome)
    assert clean.stdout.shown == (b"head [redacted:KEY]", b" tail")


def test_a_view_of_a_secret_over_lines_keeps_the_numbers() -> None:
    lines = [b"k=" + LINES[0].encode() + b"\n", LINES[1].encode() + b"\n", b"end\n"]
    result = shaped(VIEW, {"path": "f"}, viewed(*lines, first=7))
    assert isinstance(result.data, ViewData)
    assert result.data.content == "     7\tk=[redacted:KEY]\n     8\t\n     9\tend\n"
    no_secret(result)


def test_a_view_of_one_line_of_it_and_of_a_line_that_was_cut() -> None:
    one = shaped(VIEW, {"path": "f"}, viewed(LINES[1].encode() + b"\n", first=2))
    assert isinstance(one.data, ViewData)
    assert one.data.content == "     2\t[redacted:KEY]\n"
    cut = shaped(VIEW, {"path": "f"}, viewed(b"x " + LINES[0].encode()[:12], cut=(1,)))
    no_secret(cut)
    assert Warn.REDACTED in codes(cut)


def test_a_diff_whose_signs_stand_between_the_lines() -> None:
    diff = f"--- f\n+++ f\n@@ -1,2 +1,3 @@\n-{LINES[0]}\n+x\n+{LINES[0]}\n {LINES[1]}\n"
    result = shaped(EDIT, {"path": "f", "old_str": "a", "new_str": "b"}, edited(diff))
    assert isinstance(result.data, EditData)
    assert result.data.diff.startswith("--- f\n+++ f\n@@ -1,2 +1,3 @@\n-[redacted:KEY]\n+x\n+")
    assert result.data.diff.count("\n") == diff.count("\n")
    no_secret(result)


@pytest.mark.parametrize("sign", ["-", "+", " "])
def test_a_diff_is_searched_for_credentials_without_its_signs(sign: str) -> None:
    """A line of a key, or of wrapped base64, is one only without what stands before it."""
    key = "-----BEGIN PRIVATE KEY-----\n" + "MIIEvQIBADANBgkqhkiG9w0BAQ\n" * 3
    token = b"the token is here: ghp_" + b"a1B2c3" * 6
    wrapped = base64.encodebytes(b"#" * 36 + token).decode()
    for text in (key, wrapped):
        body = "".join(sign + line for line in text.splitlines(keepends=True))
        result = shaped(
            EDIT,
            {"path": "f", "old_str": "a", "new_str": "b"},
            edited(f"@@ -1,9 +1,9 @@\n{body}"),
            PLAIN,
        )
        assert isinstance(result.data, EditData)
        assert codes(result) == {Warn.REDACTED: 1}
        assert "MIIE" not in result.data.diff
        assert result.data.diff.count("\n") == body.count("\n") + 1


def test_the_names_of_files_that_were_viewed_and_changed_are_clean() -> None:
    path = f"/workspace/{LINES[0]}\u202e"
    viewing = shaped(VIEW, {"path": "f"}, replace(viewed(b"x\n"), path=path))
    changed = shaped(
        EDIT, {"path": "f", "old_str": "a", "new_str": "b"}, replace(edited("+x\n"), path=path)
    )
    assert isinstance(viewing.data, ViewData)
    assert isinstance(changed.data, EditData)
    for result, shown in ((viewing, viewing.data.path), (changed, changed.data.changed_file)):
        assert shown.startswith("/workspace/[redacted:KEY]")
        assert "\u202e" not in shown
        assert codes(result) == {Warn.REDACTED: 1, Warn.MADE_VISIBLE: 1}
        no_secret(result)


def test_an_edit_is_recorded_with_its_path_and_a_clean_diff() -> None:
    edit = edited(f"+{LINES[0]}\n")
    recorded = clean_edit(edit, REDACTOR, Findings())
    assert recorded == replace(edit, diff="+[redacted:KEY]\n")
    named = replace(edited("+x\n"), path=f"/workspace/{LINES[0]}")
    assert clean_edit(named, REDACTOR, Findings()) is named


def edited(diff: str) -> EditOutcome:
    return EditOutcome("/workspace/f", 1, "0" * 32, "1" * 32, diff, False)


def test_matches_and_names_of_a_search() -> None:
    matches = [
        GrepMatch(path=f"/workspace/{LINES[0]}", line=1, column=1, text="x", cut=False),
        GrepMatch(
            path="/workspace/f", line=2, column=1, text=f"[9 bytes cut] {LINES[1]}", cut=True
        ),
    ]
    data = GrepData(
        kind="grep_search",
        matches=matches,
        matches_total=2,
        at_least=False,
        files_with_matches=2,
        truncated=True,
    )
    items = Items(
        completed=1, failed=1, errors=[ItemError(code="x", item=LINES[0], message=LINES[1])]
    )
    shape = Shaped(data=data, items=items, warnings=(warning(Warn.SKIPPED, f"not {LINES[1]}"),))
    result = clean_result(shape_result(shape, frame(GREP), None, None), REDACTOR, Findings())
    assert isinstance(result.data, GrepData)
    assert result.data.matches[0].path == "/workspace/[redacted:KEY]"
    assert codes(result) == {Warn.SKIPPED: 1, Warn.REDACTED: 5}
    no_secret(result)


def test_a_credential_in_a_match_or_in_its_path_is_hidden() -> None:
    token = "ghp_" + "a1B2c3" * 6
    matches = [
        GrepMatch(path=f"/workspace/{name}", line=1, column=1, text=text, cut=False)
        for name, text in (("f", f"x = {token}"), (token, "y"))
    ]
    data = GrepData(
        kind="grep_search",
        matches=matches,
        matches_total=2,
        at_least=False,
        files_with_matches=2,
        truncated=False,
    )
    made = shape_result(Shaped(data=data), frame(GREP), None, None)
    result = clean_result(made, PLAIN, Findings())
    assert token not in result.to_json().decode()
    assert codes(result) == {Warn.REDACTED: 2}


def test_of_many_names_that_were_hidden_eight_are_named() -> None:
    names = [f"KEY_{n}" for n in range(10)]
    made = Redactor(
        TOKENS, [Secret("ls", n, f"the-value-of-{n}".encode(), True, 0.0) for n in names]
    )
    for count, said in ((8, "KEY_6, KEY_7"), (10, "KEY_6, KEY_7 and 2 more")):
        fault = Fault(Code.NO_MATCH, " ".join(f"the-value-of-{n}" for n in names[:count]))
        result = clean_result(fault_result(fault, frame(EDIT)), made, Findings())
        assert codes(result) == {Warn.REDACTED: count}
        assert result.warnings[0].message.startswith("hidden from this result: KEY_0, KEY_1, ")
        assert result.warnings[0].message.endswith(said)


def test_messages_and_details_of_a_fault() -> None:
    fault = Fault(
        Code.NO_MATCH,
        f"no {LINES[0]} here",
        details={"near_text": f"  {LINES[1]}", "lines": (1, 2), "names": (LINES[0], "b")},
    )
    result = clean_result(fault_result(fault, frame(EDIT)), REDACTOR, Findings())
    assert result.error is not None
    assert result.error.details == {
        "near_text": "  [redacted:KEY]",
        "lines": [1, 2],
        "names": ["[redacted:KEY]", "b"],
    }
    assert codes(result) == {Warn.REDACTED: 3}
    no_secret(result)


def test_invisible_characters_are_shown_in_every_text_and_counted() -> None:
    raw = "a\u202eb \x1b[31mred\x1b[0m\r\nx\ry\u200b\n".encode()
    outcome = ended(End.EXITED, 0, stdout=captured(raw, WIDE))
    result = shaped(BASH, {"command": "x"}, outcome, PLAIN)
    assert result.stdout is not None
    assert result.stdout.text == "a<U+202E>b \x1b[31mred\x1b[0m\r\nx\ry<U+200B>\n"
    assert codes(result) == {Warn.MADE_VISIBLE: 5}  # two, two escapes and the lone return
    assert "a<U+202E>b red\ny<U+200B>" in for_model(result)

    failed = ended(End.EXITED, 1, stderr=captured("\u202eb\x07\n".encode(), WIDE))
    of_error = shaped(BASH, {"command": "x"}, failed, PLAIN)
    assert of_error.stderr is not None
    assert of_error.stderr.text == "<U+202E>b\x07\n"
    assert codes(of_error) == {Warn.MADE_VISIBLE: 2}
    assert "control characters are in the output" in of_error.warnings[0].message

    view = shaped(VIEW, {"path": "f"}, viewed(b"x\n", "y\u2066z\n".encode()), PLAIN)
    assert isinstance(view.data, ViewData)
    assert view.data.content == "     1\tx\n     2\ty<U+2066>z\n"
    assert view.warnings[0].message.startswith(
        "invisible or bidirectional characters are shown as <U+NNNN> (line 2)"
    )
    edit: dict[str, JsonValue] = {"path": "f", "old_str": "a", "new_str": "b"}
    diff = shaped(EDIT, edit, edited("+a\u202e\n"), PLAIN)
    assert isinstance(diff.data, EditData)
    assert diff.data.diff == "+a<U+202E>\n"
    fault = Fault(Code.NOT_FOUND, "no \u202efile")
    refused = clean_result(fault_result(fault, frame()), PLAIN, Findings())
    assert refused.error is not None
    assert refused.error.message == "no <U+202E>file"


def test_what_needs_nothing_is_given_back_as_it_is() -> None:
    result = fault_result(Fault(Code.NOT_FOUND, "no file"), frame(VIEW))
    assert clean_result(result, REDACTOR, Findings()) is result
    outcome = ended(End.EXITED, 0, stdout=captured("plain, caf\u00e9\r\n".encode(), WIDE))
    assert clean_outcome(outcome, REDACTOR, Findings()) is outcome
    assert codes(shaped(BASH, {"command": "x"}, outcome)) == {}


def test_arguments_for_a_record() -> None:
    findings = Findings()
    given: dict[str, JsonLike] = {
        "command": f"curl -H {LINES[0]}",
        "argv": [LINES[1], 3, None, {"deep": LINES[0], LINES[1]: True}],
    }
    assert clean_arguments(given, REDACTOR, findings) == {
        "command": "curl -H [redacted:KEY]",
        "argv": ["[redacted:KEY]", 3, None, {"deep": "[redacted:KEY]", "[redacted:KEY]": True}],
    }
    assert findings.hidden == {"KEY": 4}


@pytest.mark.parametrize("code", Code)
def test_no_result_is_ever_trusted(code: Code) -> None:
    result = clean_result(fault_result(Fault(code, "m"), frame()), REDACTOR, Findings())
    assert result.provenance.trust == "untrusted"
    assert refusal(Fault(code, "m"), "rq_1", "0").provenance.trust == "untrusted"
    for trust in ("trusted", None):
        with pytest.raises(ValidationError):
            Provenance.model_validate({**result.provenance.model_dump(), "trust": trust})
