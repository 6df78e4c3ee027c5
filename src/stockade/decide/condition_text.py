"""The short form of checks and approval rules, as the command line and the SDK take them.

    file_view.path:prefix=/workspace/src      one path, or a JSON list of them
    bash_execute.command:one_of=["make", "make test"]
    bash_execute.command:pattern=git (status|log)
    file_view.limit:range=1..100
    file_edit                                 approval of each call of the tool
    bash_execute.command=(?s).*git push.*     approval of those that fit

A value that begins with `[` is a JSON list of texts; any other is one text as it stands, so nothing
else needs quoting. Tokens hold the typed objects only.
"""

from __future__ import annotations

import re
from typing import Final, Literal

from pydantic import TypeAdapter, ValidationError

from stockade.decide.canonical import Json, parse_strict
from stockade.decide.checks import normal_check, normal_rule
from stockade.terms.base import first_finding
from stockade.terms.fault import Failure
from stockade.terms.grant import MAX_LIST, ApprovalRule, Check
from stockade.terms.pathname import MAX_PATH_BYTES

_CHECK: Final = re.compile(r"([^:=]+)\.([^.:=]+):(pattern|one_of|range|prefix)=(.*)", re.DOTALL)
_RULE: Final = re.compile(r"([^=]+?)(?:\.([^.=]+)=(.*))?", re.DOTALL)
_RANGE: Final = re.compile(r"(-?[0-9]{1,16})\.\.(-?[0-9]{1,16})")
_MAX_LIST_BYTES: Final = MAX_LIST * (MAX_PATH_BYTES + 8)
_ANY: Final[TypeAdapter[Check]] = TypeAdapter(Check)


def parse_check(text: str) -> Check:
    """A check in normal form. Raises ValueError, whose text is fit for a caller."""
    found = _CHECK.fullmatch(text)
    if found is None:
        raise ValueError(
            "write a check as TOOL.ARGUMENT:KIND=VALUE; kinds are pattern, one_of, range, prefix"
        )
    tool, argument, kind, value = found.groups()
    fields: dict[str, object] = {"tool": tool, "argument": argument, "kind": kind}
    if kind == "pattern":
        fields["pattern"] = value
    elif kind == "range":
        bounds = _RANGE.fullmatch(value)
        if bounds is None:
            raise ValueError("write a range as MINIMUM..MAXIMUM, both whole numbers")
        fields["minimum"], fields["maximum"] = int(bounds[1]), int(bounds[2])
    else:
        name: Literal["values", "paths"] = "values" if kind == "one_of" else "paths"
        fields[name] = _texts(value)
    try:
        return normal_check(_ANY.validate_python(fields))
    except ValidationError as error:
        # The first part of the place is the kind.
        raise ValueError(_reason(error, 1)) from None


def parse_rule(text: str) -> ApprovalRule:
    """An approval rule in normal form. Raises ValueError, whose text is fit for a caller."""
    found = _RULE.fullmatch(text)
    if found is None:
        raise ValueError("write an approval rule as TOOL or TOOL.ARGUMENT=PATTERN")
    tool, argument, pattern = found.groups()
    try:
        return normal_rule(ApprovalRule(tool=tool, argument=argument, pattern=pattern))
    except ValidationError as error:
        raise ValueError(_reason(error, 0)) from None


def _texts(value: str) -> tuple[str, ...]:
    if not value.startswith("["):
        return (value,)
    try:
        items: Json = parse_strict(value.encode(), _MAX_LIST_BYTES, floats=False)
    except (Failure, UnicodeEncodeError):
        items = None
    texts = [item for item in items if isinstance(item, str)] if isinstance(items, list) else []
    if not isinstance(items, list) or len(texts) != len(items):
        raise ValueError("a value that begins with [ is a JSON list of texts")
    return tuple(texts)


def _reason(error: ValidationError, skip: int) -> str:
    place, reason = first_finding(error, skip)
    return f"{place}: {reason}"
