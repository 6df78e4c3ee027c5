"""Building blocks of a token, and the normal form that every block has.

A block's lists are sets, so one meaning could be written in many ways. In the normal form every
path, host and network has its one spelling, lists are sorted and free of duplicates, and a prefix
that another prefix of the list covers is left out. Two blocks with the same meaning are then the
same bytes, and "no wider than" is a partial order on them, not only a preorder. Everything built
here is in normal form; `tokens` refuses a block that isn't.

A component that is left out of `narrow` is the parent's: that is an argument default. The block
itself states every component.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from typing import Final, TypeVar

from pydantic import ValidationError

from stockade.decide.canonical import JsonLike, canonical, canonical_closed
from stockade.decide.checks import normal_check, normal_rule
from stockade.decide.objects import (
    antichain,
    covers_connect,
    covers_path,
    normal_connect,
    parse_path,
)
from stockade.terms.base import Model, first_finding
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import (
    TOKEN_VERSION,
    Approvals,
    Block,
    Checks,
    Connect,
    Grant,
    LeaseBinding,
    PerCall,
    PerLease,
    Scope,
    System,
    Total,
)

G = TypeVar("G", bound=Grant)
M = TypeVar("M", bound=Model)
A = TypeVar("A")

# Objects of this kind are reserved; no grant with one is accepted anywhere (see `unsupported`).
_REPO: Final = "repo:"
_ROOT_FIELDS: Final = ("v", "kid", "tenant", "trajectory")
_SHOWN: Final = 64


def normal(grant: G) -> G:
    """The normal form of a grant or block. Raises Failure(token_malformed) with `rule` = the
    component for objects that no parser accepts, and for `write` outside `read`."""
    scope = grant.scope
    read = _paths("scope.read", scope.read)
    write = _paths("scope.write", scope.write)
    for path in write:
        if not any(covers_path(prefix, path) for prefix in read):
            raise malformed("scope.write", f"{path} is granted for writing and not for reading")
    connect = set(_each("scope.connect", normal_connect, scope.connect))
    system = grant.system
    return grant.model_copy(
        update={
            "scope": Scope(
                read=read,
                write=write,
                execute=_paths("scope.execute", scope.execute),
                connect=ordered(widest(connect)),
            ),
            "deny": _paths("deny", grant.deny),
            "tools": _set(grant.tools),
            "system": system.model_copy(update={"images": _set(system.images)}),
            "checks": ordered(_each("checks", normal_check, grant.checks)),
            "approve": ordered(_each("approve", normal_rule, grant.approve)),
        }
    )


def unsupported(grant: Grant) -> str | None:
    """The first component that asks for what nothing enforces yet, or None. A restriction that
    would not be obeyed and a right that has no walls are refused alike."""
    scope = grant.scope
    for name, paths in (
        ("scope.read", scope.read),
        ("scope.write", scope.write),
        ("scope.execute", scope.execute),
        ("deny", grant.deny),
    ):
        for path in paths:
            if path.startswith(_REPO):
                return name
    return "scope.connect" if scope.connect else None


def widest(items: Collection[Connect]) -> list[Connect]:
    """The different objects in `items` without those that another one covers."""
    return [x for x in items if not any(y != x and covers_connect(y, x) for y in items)]


def ordered(items: Iterable[M]) -> tuple[M, ...]:
    """A set of objects in its one order: that of their canonical bytes."""
    return tuple(
        sorted(set(items), key=lambda item: canonical_closed(item.model_dump(mode="json")))
    )


def grant_of(block: Block) -> Grant:
    """The components of a block without what belongs to its token."""
    return Grant.model_construct(**{name: getattr(block, name) for name in Grant.model_fields})


def root_block(
    grant: Grant, tenant: str, trajectory: str, kid: str, not_before_s: int, not_after_s: int
) -> Block:
    """The first block of a token. Times are seconds since the epoch. Raises
    Failure(token_malformed)."""
    return _build(
        {name: getattr(grant, name) for name in Grant.model_fields}
        | {"v": TOKEN_VERSION, "kid": kid, "tenant": tenant, "trajectory": trajectory}
        | {"lease": None, "not_before_s": not_before_s, "not_after_s": not_after_s}
    )


def narrow(
    parent: Block,
    *,
    scope: Scope | None = None,
    deny: tuple[str, ...] | None = None,
    tools: tuple[str, ...] | None = None,
    system: System | None = None,
    per_call: PerCall | None = None,
    per_lease: PerLease | None = None,
    total: Total | None = None,
    depth: int | None = None,
    checks: Checks | None = None,
    approve: Approvals | None = None,
    lease: LeaseBinding | None = None,
    not_before_s: int | None = None,
    not_after_s: int | None = None,
) -> Block:
    """A child of `parent`: what is not given is the parent's, `depth` one less.

    Whether the child is narrower is for `attenuate` to check. Raises Failure(wider_block) when
    the parent's depth is used up, Failure(token_malformed) for values that no block can hold.
    """
    if parent.depth == 0:
        raise failure(
            Code.WIDER_BLOCK, "the parent's depth is 0: it can't be narrowed further", rule="depth"
        )
    given = {
        "scope": scope,
        "deny": deny,
        "tools": tools,
        "system": system,
        "per_call": per_call,
        "per_lease": per_lease,
        "total": total,
        "depth": parent.depth - 1 if depth is None else depth,
        "checks": checks,
        "approve": approve,
        "lease": lease,
        "not_before_s": not_before_s,
        "not_after_s": not_after_s,
    }
    return _build(
        {name: getattr(parent, name) if value is None else value for name, value in given.items()}
    )


def lease_block(
    parent: Block, lease_id: str, generation: int, not_after_s: int, nonce: str | None = None
) -> Block:
    """The child that binds a lease; it ends with the lease or with its parent, if that is
    earlier."""
    return narrow(
        parent,
        lease=_binding(lease_id, generation, nonce),
        not_after_s=min(not_after_s, parent.not_after_s),
    )


def block_bytes(block: Block, write: Callable[[JsonLike], bytes] = canonical) -> bytes:
    """The canonical bytes that are signed. The root's own fields are absent from other blocks.
    To compare with, `canonical_closed` writes the same ones sooner."""
    value = block.model_dump(mode="json")
    for name in _ROOT_FIELDS:
        if value[name] is None:
            del value[name]
    return write(value)


def missing_root_field(block: Block) -> str | None:
    """The first field that a root block needs and this one lacks."""
    return next((name for name in _ROOT_FIELDS if getattr(block, name) is None), None)


def surplus_root_field(block: Block) -> str | None:
    """The first field that only a root block may have and this one has."""
    return next((name for name in _ROOT_FIELDS if getattr(block, name) is not None), None)


def malformed(component: str, reason: str) -> Failure:
    """Failure(token_malformed) that names the component; both texts are bounded."""
    shown = component if len(component) <= _SHOWN else component[:_SHOWN] + "…"
    return failure(Code.TOKEN_MALFORMED, f"{shown}: {reason}", rule=shown, component=shown)


def invalid(error: ValidationError) -> Failure:
    """The first finding of pydantic as a Failure. Its message never repeats the input."""
    component, reason = first_finding(error)
    return malformed(component or "block", reason)


def _build(fields: dict[str, object]) -> Block:
    try:
        return normal(Block.model_validate(fields))
    except ValidationError as error:
        raise invalid(error) from None


def _binding(lease_id: str, generation: int, nonce: str | None) -> LeaseBinding:
    try:
        return LeaseBinding(id=lease_id, generation=generation, nonce=nonce)
    except ValidationError as error:
        raise invalid(error) from None


def _paths(component: str, paths: tuple[str, ...]) -> tuple[str, ...]:
    return antichain(
        tuple(p if p.startswith(_REPO) else _parsed(component, parse_path, p) for p in paths)
    )


def _each(component: str, parse: Callable[[A], A], given: Iterable[A]) -> list[A]:
    return [_parsed(component, parse, item) for item in given]


def _parsed(component: str, parse: Callable[[A], A], given: A) -> A:
    try:
        return parse(given)
    except ValueError as error:
        raise malformed(component, str(error)) from None


def _set(names: tuple[str, ...]) -> tuple[str, ...]:
    return tuple(sorted(set(names)))
