"""Narrowing a capability where it is held: no daemon, no key, no round trip.

`attenuate` is what `stockade.attenuate`, `Lease.narrowed` and `stockade capability attenuate` do.
A component that is not given stays as it is. Sets of objects (`read`, `tools`, `connect`, …) are
replaced; what restricts (`deny`, `checks`, `approve`) is added to. The names of tools and arguments
in checks are looked up here, because a misspelled one is valid in a token: an argument that no call
has refuses every call, and a tool that is none refuses none.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Final, TypeVar

from pydantic import ValidationError

from stockade.decide.blocks import narrow
from stockade.decide.condition_text import parse_check, parse_rule
from stockade.decide.objects import parse_connect_sugar
from stockade.decide.tokens import attenuate as append_block
from stockade.decide.tokens import inspect
from stockade.terms.base import MAX_INTEGER, Model, first_finding
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import ApprovalRule, Block, Check, Connect, Profile, Scope, System
from stockade.tools.catalog import unknown_name

T = TypeVar("T")

_GROUPS: Final = ("per_call", "per_lease", "total")
# What is wrong with a block that is made here is wrong with what was asked for, not with a token.
_BLOCK_FAULTS: Final = (Code.TOKEN_MALFORMED, Code.TOKEN_NOT_CANONICAL)


def attenuate(
    token: str,
    *,
    read: Sequence[str] | None = None,
    write: Sequence[str] | None = None,
    execute: Sequence[str] | None = None,
    connect: Sequence[Connect | str] | None = None,
    deny: Sequence[str] = (),
    tools: Sequence[str] | None = None,
    profile: Profile | str | None = None,
    limits: Mapping[str, int] | None = None,
    depth: int | None = None,
    checks: Sequence[Check | str] = (),
    approve: Sequence[ApprovalRule | str] = (),
    ttl_s: int | None = None,
) -> str:
    """A token that allows no more than `token`, made of it alone.

    `limits` are numbers of `per_call`, `per_lease` and `total` by their names (`{"pids": 64,
    "calls": 100}`). `connect`, `checks` and `approve` also take the short forms of the command
    line. `ttl_s` ends the new token so many seconds from now. Raises Failure(wider_block) naming
    the component, Failure(invalid_argument) for a short form or a name that isn't one and for what
    no block can say, and the token codes.
    """
    if ttl_s is not None and not (_is_whole(ttl_s) and ttl_s >= 1):
        raise _invalid("ttl_s", "a time is a whole number from 1")
    lists: dict[str, object] = {"read": read, "write": write, "execute": execute, "deny": deny}
    lists |= {"connect": connect, "tools": tools, "checks": checks, "approve": approve}
    for name, value in lists.items():
        if isinstance(value, str):  # which is a sequence too, of its characters
            raise _invalid(name, "give a list")
    parent = inspect(token).blocks[-1]
    objects: dict[str, object] = {
        "read": None if read is None else tuple(read),
        "write": None if write is None else tuple(write),
        "execute": None if execute is None else tuple(execute),
        "connect": None if connect is None else _parsed("connect", parse_connect_sugar, connect),
    }
    scope = {name: value for name, value in objects.items() if value is not None}
    more_checks: tuple[Check, ...] = _parsed("checks", parse_check, checks)
    more_rules: tuple[ApprovalRule, ...] = _parsed("approve", parse_rule, approve)
    for check in more_checks:
        _known("checks", check.tool, check.argument)
    for rule in more_rules:
        _known("approve", rule.tool, rule.argument)
    try:
        child = narrow(
            parent,
            # Checked at once: what is inside of a model that was made already is not looked at.
            scope=Scope.model_validate(dict(parent.scope) | scope),
            deny=(*parent.deny, *deny),
            tools=None if tools is None else tuple(tools),
            system=parent.system if profile is None else _profiled(parent.system, profile),
            depth=depth,
            checks=(*parent.checks, *more_checks),
            approve=(*parent.approve, *more_rules),
            not_after_s=None if ttl_s is None else int(time.time()) + ttl_s,
        )
        return append_block(token, _limited(child, limits or {}))
    except ValidationError as error:
        raise _invalid(*first_finding(error)) from None
    except Failure as error:
        if error.fault.code not in _BLOCK_FAULTS:
            raise
        component = str((error.fault.details or {}).get("component") or error.fault.rule or "block")
        raise _invalid(component, error.fault.message.removeprefix(f"{component}: ")) from None


def _profiled(system: System, name: str) -> System:
    if name not in list(Profile):
        raise _invalid("profile", f"there is no such profile; there are {', '.join(Profile)}")
    return system.model_copy(update={"profile": Profile(name)})


def _limited(block: Block, limits: Mapping[str, int]) -> Block:
    groups: dict[str, Model] = {name: getattr(block, name) for name in _GROUPS}
    homes = {field: name for name, group in groups.items() for field in type(group).model_fields}
    for field, value in limits.items():
        if field not in homes:
            raise _invalid("limits", f"there is no limit {field}; limits are {', '.join(homes)}")
        if not (_is_whole(value) and 0 <= value <= MAX_INTEGER):
            raise _invalid(field, f"a limit is a whole number from 0 to {MAX_INTEGER}")
        name = homes[field]
        groups[name] = groups[name].model_copy(update={field: value})
    return block.model_copy(update=groups)


def _is_whole(value: object) -> bool:
    """True and 1.0 are numbers in Python: who gives them for a limit meant something else."""
    return type(value) is int


def _parsed(name: str, parse: Callable[[str], T], given: Iterable[T | str]) -> tuple[T, ...]:
    items: list[T] = []
    for item in given:
        try:
            items.append(parse(item) if isinstance(item, str) else item)
        except ValueError as error:
            raise _invalid(name, f"{item!r}: {error}") from None
    return tuple(items)


def _known(name: str, tool: str, argument: str | None) -> None:
    wrong = unknown_name(tool, argument)
    if wrong is not None:
        raise _invalid(name, wrong)


def _invalid(name: str, reason: str) -> Failure:
    return failure(Code.INVALID_ARGUMENT, f"{name}: {reason}", argument=name)
