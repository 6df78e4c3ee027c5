from __future__ import annotations

from typing import Any, get_args

import pytest

from stockade.decide import checks
from stockade.decide.checks import (
    approvals_needed,
    check_failure,
    checks_of,
    checks_on_path,
    first_failed,
    normal_check,
    readable_by_search,
)
from stockade.decide.patterns import MAX_TEXT_BYTES
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Status
from stockade.terms.grant import (
    ApprovalRule,
    Check,
    CheckOneOf,
    CheckPattern,
    CheckPrefix,
    CheckRange,
    Grant,
)
from stockade.tools.arguments import PathArgument
from stockade.tools.catalog import TOOLS
from tests.grants import NO_BUDGET


def pattern(text: str, argument: str = "command", tool: str = "bash_execute") -> CheckPattern:
    return CheckPattern(kind="pattern", tool=tool, argument=argument, pattern=text)


def one_of(*values: str, argument: str = "command") -> Check:
    check = CheckOneOf(kind="one_of", tool="bash_execute", argument=argument, values=values)
    return normal_check(check)


def between(minimum: int, maximum: int) -> CheckRange:
    return CheckRange(
        kind="range", tool="file_view", argument="limit", minimum=minimum, maximum=maximum
    )


def prefix(*paths: str, argument: str = "path", tool: str = "file_view") -> CheckPrefix:
    return CheckPrefix(kind="prefix", tool=tool, argument=argument, paths=paths)


def holds(check: Check, value: Any) -> bool:
    return first_failed((check,), {check.argument: value}) is None


@pytest.mark.parametrize(
    "check",
    [pattern("(?s).*"), one_of("", "None", "null", "[]", "1.5"), between(-9, 9), prefix("/")],
    ids=lambda check: check.kind,
)
def test_an_argument_that_is_not_there_or_has_no_text_fails(check: Check) -> None:
    assert first_failed((check,), {}) == check
    assert first_failed((check,), {"other": "a"}) == check
    for value in (None, [], ["a"], {}, {"a": 1}, 1.5, 1.0):
        assert not holds(check, value), value


def test_text_is_matched_as_it_is() -> None:
    assert holds(pattern("git (status|log)"), "git log")
    assert not holds(pattern("git (status|log)"), "git log\n")
    assert not holds(pattern("git (status|log)"), "git log; reboot")
    assert holds(one_of("make", "make test"), "make test")
    for text in ("make ", "MAKE", "make\x00", "mak", "mаke"):
        assert not holds(one_of("make", "make test"), text)
    assert not holds(pattern("a*"), "a" * (MAX_TEXT_BYTES + 1))


def test_numbers_and_flags_are_matched_as_json_writes_them() -> None:
    check = pattern("[0-9]+|true|-1")
    assert all(holds(check, value) for value in (0, 17, -1, True))
    assert not holds(check, -2)
    assert not holds(check, False)
    assert holds(one_of("1", "false"), 1)
    assert holds(one_of("1", "false"), False)
    assert not holds(one_of("1", "false"), True)


def test_a_range_is_for_integers() -> None:
    assert [n for n in range(-3, 8) if holds(between(-1, 5), n)] == list(range(-1, 6))
    assert holds(between(3, 3), 3)
    for value in (True, False, "3", 3.0, None):
        assert not holds(between(0, 9), value), value


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/workspace/src", True),
        ("/workspace/src/", True),
        ("/workspace/src/a", True),
        ("src/a", True),
        ("./src//a/.", True),
        ("//workspace///src/a", True),
        ("/workspace/s\\x72c/a", True),
        ("/workspace", False),
        ("/workspace/srcs", False),
        ("/workspace/src-evil/a", False),
        ("/workspace/src/../a", False),
        ("/workspace/a/../src/a", False),
        ("src/..", False),
        ("..", False),
        ("/workspace/SRC/a", False),
        ("/workspace/ src/a", False),
        ("~/src", False),
        ("", False),
        ("/workspace/src/\x00", False),
        ("/workspace/src/\\x00", False),
        ("/workspace/src/\\", False),
        ("/workspace/src/\ud800", False),
        ("/workspace/src" + "/a" * 5000, False),
    ],
)
def test_a_path_is_compared_in_its_normal_form(path: str, expected: bool) -> None:
    assert holds(prefix("/workspace/src"), path) is expected
    # A pattern or a list of values has no other way to spell a path either.
    spelled = r"/workspace/src(/.*)?"
    assert holds(pattern(spelled, "path", "file_view"), path) is expected
    assert holds(pattern(spelled, "cwd", "run"), path) is expected
    exact = one_of("/workspace/src", "src/a", argument="path")
    assert holds(exact, path) is expected


def test_every_check_on_the_tool_must_hold() -> None:
    first, second, other = pattern("a.*"), pattern(".*b"), pattern("never", tool="run")
    all_checks = (first, second, other)
    here = tuple(check for check in all_checks if check.tool == "bash_execute")
    assert first_failed(here, {"command": "ab"}) is None
    assert first_failed(here, {"command": "a"}) == second
    assert first_failed(here, {"command": "b"}) == first
    assert first_failed((), {}) is None


def test_checks_are_taken_by_tool_and_by_argument(grant: Grant) -> None:
    path, limit, elsewhere = prefix("/tmp"), between(1, 2), prefix("/tmp", tool="file_edit")
    given = grant.model_copy(update={"checks": (path, limit, elsewhere)})
    assert checks_of(given, "file_view") == (path, limit)
    assert checks_of(given, "run") == ()
    assert checks_on_path(given, "file_view") == (path,)


def test_a_failure_names_the_argument_and_the_kind() -> None:
    fault = check_failure(between(1, 2)).fault
    assert (fault.code, fault.status, fault.rule) == (Code.CHECK_FAILED, Status.DENIED, "checks")
    assert fault.details == {"argument": "limit", "kind": "range"}


def test_a_search_sees_what_its_checks_leave(grant: Grant) -> None:
    def seen(*found: Check) -> tuple[str, ...]:
        return readable_by_search(grant.model_copy(update={"checks": found}), "grep_search")

    def grep(*paths: str, argument: str = "path") -> CheckPrefix:
        return prefix(*paths, tool="grep_search", argument=argument)

    assert seen() == ("/tmp", "/workspace")
    assert seen(prefix("/tmp")) == ("/tmp", "/workspace")
    assert seen(grep("/workspace/a", "/etc")) == ("/workspace/a",)
    assert seen(grep("/")) == ("/tmp", "/workspace")
    assert seen(grep("/workspace/a", "/tmp"), grep("/workspace")) == ("/workspace/a",)
    assert seen(grep("/workspace/a"), grep("/workspace/b")) == ()
    assert seen(grep("/workspace/a", argument="glob")) == ("/tmp", "/workspace")


def permit(grant: Grant, *rules: ApprovalRule) -> Permit:
    return Permit(
        tenant="acme",
        trajectory="run-1",
        chain=("0" * 32,),
        totals=(NO_BUDGET,),
        ends=(0,),
        grant=grant.model_copy(update={"approve": rules}),
        lease_id=None,
        generation=None,
        not_after_s=0,
    )


def test_approval_is_asked_for_the_tool_or_for_what_fits(grant: Grant) -> None:
    whole = ApprovalRule(tool="file_edit", argument=None, pattern=None)
    push = ApprovalRule(tool="bash_execute", argument="command", pattern="(?s).*git push.*")
    who = permit(grant, whole, push)
    assert approvals_needed(who, "file_edit", {"path": "a"}) == whole
    assert approvals_needed(who, "file_edit", {}) == whole
    assert approvals_needed(who, "bash_execute", {"command": "true\ngit push -f"}) == push
    assert approvals_needed(who, "bash_execute", {"command": "git status"}) is None
    assert approvals_needed(who, "file_view", {"command": "git push"}) is None
    assert approvals_needed(permit(grant), "file_edit", {}) is None


def test_approval_is_asked_where_it_can_not_be_decided(grant: Grant) -> None:
    rule = ApprovalRule(tool="run", argument="cwd", pattern="/tmp/.*")
    who = permit(grant, rule)
    for path in ("/tmp/a", "//tmp/./a/", "/workspace/../tmp/a", "../tmp/a", None, ["/tmp"], 1.5):
        assert approvals_needed(who, "run", {"cwd": path}) == rule, path
    assert approvals_needed(who, "run", {}) == rule
    assert approvals_needed(who, "run", {"cwd": "/workspace/tmp/a"}) is None
    text = rule.model_copy(update={"argument": "x"})
    for value in ("a" * (MAX_TEXT_BYTES + 1), "\ud800"):
        assert approvals_needed(permit(grant, text), "run", {"x": value}) == text


def test_the_path_arguments_of_all_tools_are_known() -> None:
    kinds = get_args(PathArgument)[1:]
    found = {
        name
        for tool in TOOLS.values()
        for name, field in tool.arguments.model_fields.items()
        if all(kind in field.metadata for kind in kinds)
    }
    assert found == checks.PATH_ARGUMENTS
