"""Laws of what a call may do: narrowing never opens anything, and checks mean what they say.

Permits are built from grants directly, a wide one and its meet with another, so that the narrow one
is allowed something often. The reference for a check is Python's `re` and lists of components; the
patterns here are ones that mean the same in both syntaxes.
"""

from __future__ import annotations

import re
from typing import Any, Final

from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import meet
from stockade.decide.authorize import allowed_path, authorize, failed_on_path, path_scope
from stockade.decide.checks import approvals_needed, first_failed, normal_check, readable_by_search
from stockade.terms.call import Permit, Right
from stockade.terms.fault import Failure
from stockade.terms.grant import Check, CheckOneOf, CheckPattern, CheckPrefix, CheckRange, Grant
from stockade.terms.lease import LeaseRecord
from tests.grants import NO_BUDGET, lease_of
from tests.laws.test_attenuation_laws import ARGUMENTS, CHECK, LEASE, PATH, grants

CHAIN: Final = ("0" * 32,)
# Spelled in ways that all lead to the same file, or somewhere else.
SPELLING = st.lists(
    st.sampled_from(["a", "b", "ab", ".", "..", "", "\\x61", "\\x2e\\x2e", "é", "\\x00", "\\"]),
    max_size=5,
).map("/".join)
CALL_PATH = SPELLING | SPELLING.map(lambda text: "/" + text) | PATH


def permit(grant: Grant) -> Permit:
    return Permit(
        tenant="acme",
        trajectory="run-1",
        chain=CHAIN,
        totals=(NO_BUDGET,),
        ends=(9,),
        grant=grant,
        lease_id=LEASE.id,
        generation=1,
        not_after_s=9,
        bound_at=0,
    )


def record(grant: Grant) -> LeaseRecord:
    return lease_of(permit(grant))


def allowed(who: Permit, tool: str, rights: list[Right], arguments: Any) -> bool:
    try:
        authorize(who, tool, rights, arguments, record(who.grant))
    except Failure:
        return False
    return True


RIGHTS = st.lists(
    st.builds(Right, right=st.sampled_from(["read", "write", "execute"]), object=CALL_PATH),
    max_size=1,
)


@given(grants(), grants(), RIGHTS, ARGUMENTS, PATH)
def test_narrowing_opens_nothing_and_spares_no_approval(
    wide: Grant, other: Grant, rights: list[Right], arguments: Any, path: str
) -> None:
    parent, child = permit(wide), permit(meet(wide, other))
    for tool in ("x", "y"):
        if allowed(child, tool, rights, arguments):
            assert allowed(parent, tool, rights, arguments)
        if approvals_needed(child, tool, arguments) is None:
            assert approvals_needed(parent, tool, arguments) is None
        narrow, scope = path_scope(child, tool), path_scope(parent, tool)
        for right in ("read", "write"):
            if allowed_path(narrow, path, right):
                assert allowed_path(scope, path, right)
        if failed_on_path(narrow, path) is None:
            assert failed_on_path(scope, path) is None
        seen, before = readable_by_search(child.grant, tool), readable_by_search(wide, tool)
        assert all(any(within(inner, outer) for outer in before) for inner in seen)


@given(grants(), CALL_PATH)
def test_what_a_file_tool_may_reach_is_what_its_name_may_say(grant: Grant, text: str) -> None:
    """A name that the first stage lets through, and that no link redirects, passes the second
    stage as well, and the other way round."""
    found = reference_path(text)
    if found is None:
        return
    who = permit(grant)
    lexical = allowed(who, "x", [Right("read", text)], {"path": text})
    scope = path_scope(who, "x")
    resolved = "/" + "/".join(found)
    others = [c for c in grant.checks if c.tool == "x" and c.argument != "path"]
    if "x" in grant.tools and not others:
        reached = allowed_path(scope, resolved, "read") and failed_on_path(scope, resolved) is None
        assert lexical == reached


@settings(max_examples=500)
@given(CHECK, st.dictionaries(st.sampled_from(["path", "text", "count"]), CALL_PATH) | ARGUMENTS)
def test_a_check_means_what_it_says(check: Check, arguments: Any) -> None:
    check = normal_check(check)
    value = arguments.get(check.argument)
    assert (first_failed((check,), arguments) is None) == reference(check, value)


def reference(check: Check, value: object) -> bool:
    if isinstance(check, CheckRange):
        return type(value) is int and value in range(check.minimum, check.maximum + 1)
    if isinstance(check, CheckPrefix):
        found = reference_path(value) if isinstance(value, str) else None
        return found is not None and any(within("/" + "/".join(found), p) for p in check.paths)
    if isinstance(value, str):
        text: str | None = value
        if check.argument == "path":
            found = reference_path(value)
            text = None if found is None else "/" + "/".join(found)
    elif isinstance(value, bool):
        text = str(value).lower()
    else:
        text = str(value) if isinstance(value, int) else None
    if text is None:
        return False
    if isinstance(check, CheckOneOf):
        return text in check.values
    assert isinstance(check, CheckPattern)
    return re.fullmatch(check.pattern, text) is not None


def reference_path(text: str) -> list[str] | None:
    """The components that a spelling leads through when there are no links, as they are shown;
    None for one with a way up and for what is no path."""
    if not text or "\\x00" in text or re.search(r"\\(?!x)", text):
        return None
    whole = text if text.startswith("/") else "/workspace/" + text
    parts = whole.replace("\\x61", "a").replace("\\x2e", ".").split("/")
    parts = [part for part in parts if part not in ("", ".")]
    return None if ".." in parts else parts


def within(path: str, prefix: str) -> bool:
    inner, outer = ([part for part in text.split("/") if part] for text in (path, prefix))
    return inner[: len(outer)] == outer
