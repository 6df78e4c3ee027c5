"""Conditions on the arguments of a call: checks that must hold, and rules that ask for a person.

A call must satisfy every check that names its tool. What can't be decided is against the caller:
an argument that the call doesn't have, that is null, that has no text (a list, a fraction) or more
text than is matched fails its check, and fits every approval rule on it.

An argument's text is a string as it is, and an integer or a boolean as JSON writes it. A path has
many spellings, so its text is the lexical normal form, the one that scopes are held against; a path
with `..` leads where only the resolver knows and has no text. For a file tool, `checks_on_path` are
asked again about the path that was reached, or a symbolic link would get round them.

A block that narrows keeps each check of its parent, compared by its normal form, and may add more.
So a child's calls satisfy whatever its parent's must.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from stockade.decide.canonical import JsonLike
from stockade.decide.objects import antichain, covers_path, normalize_call_path, parse_path
from stockade.decide.patterns import check_pattern, matches
from stockade.terms import pathname
from stockade.terms.call import Permit
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import (
    ApprovalRule,
    Check,
    CheckOneOf,
    CheckPattern,
    CheckPrefix,
    CheckRange,
    Grant,
)

Arguments = Mapping[str, JsonLike]

# The arguments of all tools that are container paths; a test compares this with the catalog.
PATH_ARGUMENTS: Final = frozenset({"path", "cwd"})
# The one that file tools and the search resolve.
_FILE_ARGUMENT: Final = "path"


def normal_check(check: Check) -> Check:
    """The one spelling of a check. Raises ValueError, whose text is fit for a caller."""
    match check:
        case CheckPattern():
            check_pattern(check.pattern)
            return check
        case CheckOneOf():
            values = {_value(check.argument, value) for value in check.values}
            return check.model_copy(update={"values": tuple(sorted(values))})
        case CheckRange():
            if check.minimum > check.maximum:
                raise ValueError(f"no number is from {check.minimum} to {check.maximum}")
            return check
        case CheckPrefix():
            paths = antichain(tuple(parse_path(path) for path in check.paths))
            return check.model_copy(update={"paths": paths})


def normal_rule(rule: ApprovalRule) -> ApprovalRule:
    """The one spelling of an approval rule. Raises ValueError, whose text is fit for a caller."""
    if (rule.argument is None) != (rule.pattern is None):
        raise ValueError("an approval rule has an argument and a pattern, or neither")
    if rule.pattern is not None:
        check_pattern(rule.pattern)
    return rule


def show_check(check: Check) -> str:
    return f"the {check.kind} check on {check.tool}.{check.argument}"


def show_rule(rule: ApprovalRule) -> str:
    return f"approval of {rule.tool}" + ("" if rule.argument is None else f".{rule.argument}")


def checks_of(grant: Grant, tool: str) -> tuple[Check, ...]:
    """What calls of `tool` must satisfy."""
    return tuple([check for check in grant.checks if check.tool == tool])


def checks_on_path(grant: Grant, tool: str) -> tuple[Check, ...]:
    """The checks that also the resolved path of a file tool must satisfy."""
    return tuple(check for check in checks_of(grant, tool) if check.argument == _FILE_ARGUMENT)


def first_failed(checks: Iterable[Check], arguments: Arguments) -> Check | None:
    """The first check that `arguments` don't satisfy. They are JSON values with the tool's
    defaults filled in; `checks` are in normal form."""
    return next((c for c in checks if not _holds(c, arguments.get(c.argument))), None)


def check_failure(check: Check) -> Failure:
    """Failure(check_failed) that names the argument and the kind of check."""
    return failure(
        Code.CHECK_FAILED,
        f"{show_check(check)} does not hold",
        rule="checks",
        argument=check.argument,
        kind=check.kind,
    )


def approvals_needed(permit: Permit, tool: str, arguments: Arguments) -> ApprovalRule | None:
    """The first rule by which a person must approve this call, or None. `arguments` as for
    `first_failed`."""
    for rule in permit.grant.approve:
        if rule.tool == tool and _fits(rule, arguments):
            return rule
    return None


def readable_by_search(grant: Grant, tool: str) -> tuple[str, ...]:
    """`scope.read` within the prefix checks on the path of `tool`: all that a search may find,
    also if a link took the place of the path after it was checked."""
    read = grant.scope.read
    for check in checks_on_path(grant, tool):
        if isinstance(check, CheckPrefix):
            inner = [x for x in read if _below(x, check.paths)]
            inner += [x for x in check.paths if _below(x, read)]
            read = antichain(tuple(inner))
    return read


def _holds(check: Check, value: JsonLike) -> bool:
    match check:
        case CheckPattern():
            text = _text(check.argument, value)
            return text is not None and matches(check.pattern, text) is True
        case CheckOneOf():
            return _text(check.argument, value) in check.values
        case CheckRange():
            if isinstance(value, bool) or not isinstance(value, int):
                return False
            return check.minimum <= value <= check.maximum
        case CheckPrefix():
            path = _path(value) if isinstance(value, str) else None
            return path is not None and _below(path, check.paths)


def _fits(rule: ApprovalRule, arguments: Arguments) -> bool:
    if rule.argument is None or rule.pattern is None:
        return True
    text = _text(rule.argument, arguments.get(rule.argument))
    return text is None or matches(rule.pattern, text) is not False


def _text(argument: str, value: JsonLike) -> str | None:
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return None
    return _path(value) if argument in PATH_ARGUMENTS else value


def _path(text: str) -> str | None:
    """The lexical normal form, None for what has none."""
    try:
        path = pathname.to_text(normalize_call_path(text))
    except ValueError:
        return None
    return None if ".." in path.split("/") else path


def _value(argument: str, value: str) -> str:
    if argument not in PATH_ARGUMENTS:
        return value
    path = _path(value)
    if path is None:
        raise ValueError("a path to be compared with can't have '..' or bytes that no path has")
    return path


def _below(path: str, prefixes: Iterable[str]) -> bool:
    return any(covers_path(prefix, path) for prefix in prefixes)
