from __future__ import annotations

import contextlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.condition_text import parse_check, parse_rule
from stockade.terms.grant import (
    ApprovalRule,
    Check,
    CheckOneOf,
    CheckPattern,
    CheckPrefix,
    CheckRange,
)


@pytest.mark.parametrize(
    ("text", "check"),
    [
        (
            "bash_execute.command:pattern=git (log|status) --a=b:c",
            CheckPattern(
                kind="pattern",
                tool="bash_execute",
                argument="command",
                pattern="git (log|status) --a=b:c",
            ),
        ),
        (
            "t.a:pattern=(?s)a\nb",
            CheckPattern(kind="pattern", tool="t", argument="a", pattern="(?s)a\nb"),
        ),
        ("t.a:one_of=", CheckOneOf(kind="one_of", tool="t", argument="a", values=("",))),
        ("t.a:one_of=a,b", CheckOneOf(kind="one_of", tool="t", argument="a", values=("a,b",))),
        (
            't.a:one_of=["b", "a", "[", "\\u00e9"]',
            CheckOneOf(kind="one_of", tool="t", argument="a", values=("[", "a", "b", "é")),
        ),
        (
            "t.a:range=-5..70",
            CheckRange(kind="range", tool="t", argument="a", minimum=-5, maximum=70),
        ),
        (
            "file_view.path:prefix=/workspace/a b/",
            CheckPrefix(
                kind="prefix", tool="file_view", argument="path", paths=("/workspace/a b",)
            ),
        ),
        (
            'a.tool.path:prefix=["/tmp", "/workspace"]',
            CheckPrefix(
                kind="prefix", tool="a.tool", argument="path", paths=("/tmp", "/workspace")
            ),
        ),
    ],
)
def test_the_short_form_of_a_check(text: str, check: Check) -> None:
    assert parse_check(text) == check


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("", "TOOL.ARGUMENT:KIND=VALUE"),
        ("t:pattern=a", "TOOL.ARGUMENT:KIND=VALUE"),
        ("t.a:pattern", "TOOL.ARGUMENT:KIND=VALUE"),
        ("t.a=pattern:b", "TOOL.ARGUMENT:KIND=VALUE"),
        ("t.a:glob=*", "TOOL.ARGUMENT:KIND=VALUE"),
        ("t.a:PATTERN=a", "TOOL.ARGUMENT:KIND=VALUE"),
        (" t.a:pattern=a", "tool: "),
        ("t.a b:pattern=a", "argument: "),
        ("t.a:pattern=", "pattern: "),
        ("t.a:pattern=" + "a" * 513, "pattern: "),
        ("t.a:pattern=(", "RE2"),
        ("t.a:range=1", "MINIMUM..MAXIMUM"),
        ("t.a:range=1..", "MINIMUM..MAXIMUM"),
        ("t.a:range=1...2", "MINIMUM..MAXIMUM"),
        ("t.a:range=1.0..2", "MINIMUM..MAXIMUM"),
        ("t.a:range=٣..4", "MINIMUM..MAXIMUM"),
        ("t.a:range=2..1", "no number"),
        ("t.a:range=0..9007199254740992", "maximum: "),
        ("t.a:prefix=a", "absolute"),
        ("t.a:prefix=", "paths.0: "),
        ("t.a:prefix=/a/../b", "'..'"),
        ('t.a:prefix=["/a",1]', "JSON list of texts"),
        ('t.a:prefix=["/a"', "JSON list of texts"),
        ("t.a:one_of=[]", "values: "),
        ("t.a:one_of=[NaN]", "JSON list of texts"),
        ("t.a:one_of=[\ud800]", "JSON list of texts"),
        ("t.path:one_of=..", "'..'"),
    ],
)
def test_what_is_no_check_is_refused_with_a_reason(text: str, reason: str) -> None:
    with pytest.raises(ValueError, match=r".") as caught:
        parse_check(text)
    assert reason in str(caught.value)


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("file_edit", ("file_edit", None, None)),
        ("a.tool", ("a.tool", None, None)),
        ("bash_execute.command=git push.*", ("bash_execute", "command", "git push.*")),
        ("a.tool.arg=x.y=z", ("a.tool", "arg", "x.y=z")),
        ("t.a=\n", ("t", "a", "\n")),
    ],
)
def test_the_short_form_of_an_approval_rule(
    text: str, rule: tuple[str, str | None, str | None]
) -> None:
    tool, argument, pattern = rule
    assert parse_rule(text) == ApprovalRule(tool=tool, argument=argument, pattern=pattern)


@pytest.mark.parametrize("text", ["", "=", "t=a", "t.=a", ".a=b", "t.a=", "t.a=(?=b)", "t .a=b"])
def test_what_is_no_approval_rule_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        parse_rule(text)


@given(
    st.text(), st.sampled_from(["", "t.a:", "t.a:one_of=", "t.a:range=", "t.a:prefix=[", "t.a="])
)
def test_no_text_raises_anything_else(text: str, start: str) -> None:
    for parse in (parse_check, parse_rule):
        with contextlib.suppress(ValueError):
            parse(start + text)
