"""What "no wider than" means, component by component, and the greatest common narrowing.

`exceeds` compares two grants in the order of the block's components and names the first one that
is wider; `wider_link` adds what relates a child block to its parent: depth strictly smaller,
a time window inside the parent's, a lease binding that is never taken away once it is set. Nothing is
compared as a whole, so a component that a later version adds to a block has to be added here:
a test walks the model's fields and fails for one that no row looks at.

An object of the child must be covered by one object of the parent, never by several together:
this refuses a few harmless children and keeps the answer explainable.

Both operands are in normal form (`blocks.normal`). There, `exceeds(a, b) is None` is a partial
order, and `meet` is its greatest lower bound.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple, TypeVar

from stockade.decide.blocks import normal, ordered, widest
from stockade.decide.checks import show_check, show_rule
from stockade.decide.links import Link
from stockade.decide.objects import antichain, covers_cidr, covers_connect, covers_host, covers_path
from stockade.terms.base import Model
from stockade.terms.fault import Code, failure
from stockade.terms.grant import (
    MAX_LIST,
    Connect,
    ConnectBroker,
    ConnectCidr,
    ConnectHost,
    Grant,
    PerCall,
    PerLease,
    Scope,
    System,
    Total,
)


class Excess(NamedTuple):
    """The component that is wider, in dotted form, and why, in words for a person."""

    component: str
    reason: str


def exceeds(grant: Grant, ceiling: Grant) -> Excess | None:
    """The first component in which `grant` is wider than `ceiling`; None if it is in none."""
    return next(_grant_rows(grant, ceiling), None)


def wider_names(grant: Grant, ceiling: Grant) -> tuple[str, ...]:
    """Every component in which `grant` is wider than `ceiling`, each once, in their order."""
    return tuple(dict.fromkeys(excess.component for excess in _grant_rows(grant, ceiling)))


def wider_link(child: Link, parent: Link) -> Excess | None:
    """The first component in which `child` may not follow `parent` in a chain, or None."""
    return next(_grant_rows(child.grant, parent.grant), None) or wider_own(child, parent)


def wider_own(child: Link, parent: Link) -> Excess | None:
    """`wider_link` of what is not the grant: the depth's step, the lease and the times."""
    if child.grant.depth >= parent.grant.depth:
        return Excess("depth", f"{child.grant.depth} is not less than {parent.grant.depth}")
    # Another binding is no wider: a token is for a lease only through the block that the daemon
    # appended (`authorize.descends`), and a binding that a holder makes is for none.
    if parent.lease is not None and child.lease is None:
        return Excess("lease", "the parent is bound to a lease and the child to none")
    if child.not_before_s < parent.not_before_s:
        return Excess("not_before_s", f"{child.not_before_s} is before {parent.not_before_s}")
    if child.not_after_s > parent.not_after_s:
        return Excess("not_after_s", f"{child.not_after_s} is after {parent.not_after_s}")
    return None


def _grant_rows(child: Grant, parent: Grant) -> Iterator[Excess]:
    # A value is no wider than itself, and `links` makes what a child leaves as it is one object.
    if child.scope is not parent.scope:
        yield from _scope_rows(child.scope, parent.scope)
    if child.deny is not parent.deny:
        yield from _denied(child.deny, parent.deny)
    if child.tools is not parent.tools:
        yield from _subset("tools", child.tools, parent.tools)
    if child.system is not parent.system:
        yield from _system_rows(child.system, parent.system)
    if child.per_call is not parent.per_call:
        yield from _at_most("per_call", child.per_call, parent.per_call)
    if child.per_lease is not parent.per_lease:
        yield from _at_most("per_lease", child.per_lease, parent.per_lease)
    if child.total is not parent.total:
        yield from _at_most("total", child.total, parent.total)
    if child.depth > parent.depth:
        yield Excess("depth", f"{child.depth} is more than {parent.depth}")
    for check in parent.checks:
        if check not in child.checks:
            yield Excess("checks", f"{show_check(check)} is required by the parent and left out")
    for rule in parent.approve:
        if rule not in child.approve:
            yield Excess("approve", f"{show_rule(rule)} is required by the parent and left out")


def _scope_rows(child: Scope, parent: Scope) -> Iterator[Excess]:
    for name, inner, outer in (
        ("scope.read", child.read, parent.read),
        ("scope.write", child.write, parent.write),
        ("scope.execute", child.execute, parent.execute),
    ):
        for path in inner:
            # In normal form a path covers itself; most lists are the parent's own.
            if path not in outer and not any(covers_path(prefix, path) for prefix in outer):
                yield Excess(name, f"{path} is not below {_list(outer)}")
    for item in child.connect:
        if not any(covers_connect(outer, item) for outer in parent.connect):
            yield Excess("scope.connect", f"{_show(item)} is not within any destination granted")


def _denied(child: tuple[str, ...], parent: tuple[str, ...]) -> Iterator[Excess]:
    for path in parent:
        if path not in child and not any(covers_path(prefix, path) for prefix in child):
            yield Excess("deny", f"{path} is denied by the parent and must stay denied")


def _system_rows(child: System, parent: System) -> Iterator[Excess]:
    if child.profile.rank > parent.profile.rank:
        yield Excess("system.profile", f"{child.profile} is wider than {parent.profile}")
    yield from _subset("system.images", child.images, parent.images)
    if child.tier_min.rank < parent.tier_min.rank:
        yield Excess("system.tier_min", f"{child.tier_min} is weaker than {parent.tier_min}")


def _subset(name: str, child: tuple[str, ...], parent: tuple[str, ...]) -> Iterator[Excess]:
    for item in child:
        if item not in parent:
            yield Excess(name, f"{item} is not among {_list(parent)}")


def _at_most(name: str, child: Model, parent: Model) -> Iterator[Excess]:
    bounds, values = vars(parent), vars(child)
    if values != bounds:
        for field, bound in bounds.items():
            if values[field] > bound:
                yield Excess(f"{name}.{field}", f"{values[field]} is more than {bound}")


def _list(items: tuple[str, ...]) -> str:
    return ", ".join(items) if items else "anything granted (the list is empty)"


def _show(item: Connect) -> str:
    if isinstance(item, ConnectBroker):
        return f"broker {item.name}"
    target = item.host if isinstance(item, ConnectHost) else item.cidr
    return f"{target} port {','.join(map(str, item.ports)) or 'none'}"


def meet(grant: Grant, ceiling: Grant) -> Grant:
    """The widest grant that is no wider than either. Raises Failure(ceiling_exceeded) if a list
    of it would have more than 64 entries, which no block can state."""
    a, b = grant.scope, ceiling.scope
    met = (_meet_connect(x, y) for x in a.connect for y in b.connect)
    # `widest` compares all with all; more than this are never brought down to MAX_LIST in practice.
    connect = _bounded("scope.connect", tuple({x for x in met if x is not None}), 4 * MAX_LIST)
    system = System(
        profile=min(grant.system.profile, ceiling.system.profile, key=lambda p: p.rank),
        images=tuple(sorted({*grant.system.images} & {*ceiling.system.images})),
        tier_min=max(grant.system.tier_min, ceiling.system.tier_min, key=lambda t: t.rank),
    )
    return normal(
        Grant(
            scope=Scope(
                read=_bounded("scope.read", _meet_paths(a.read, b.read)),
                write=_bounded("scope.write", _meet_paths(a.write, b.write)),
                execute=_bounded("scope.execute", _meet_paths(a.execute, b.execute)),
                connect=_bounded("scope.connect", tuple(widest(connect))),
            ),
            deny=_bounded("deny", antichain(grant.deny + ceiling.deny)),
            tools=tuple(sorted({*grant.tools} & {*ceiling.tools})),
            system=system,
            per_call=_least(PerCall, grant.per_call, ceiling.per_call),
            per_lease=_least(PerLease, grant.per_lease, ceiling.per_lease),
            total=_least(Total, grant.total, ceiling.total),
            depth=min(grant.depth, ceiling.depth),
            checks=_bounded("checks", ordered(grant.checks + ceiling.checks)),
            approve=_bounded("approve", ordered(grant.approve + ceiling.approve)),
        )
    )


def _meet_paths(a: tuple[str, ...], b: tuple[str, ...]) -> tuple[str, ...]:
    both = [x for x in a if any(covers_path(y, x) for y in b)]
    both += [y for y in b if any(covers_path(x, y) for x in a)]
    return antichain(tuple(both))


def _meet_connect(a: Connect, b: Connect) -> Connect | None:
    if isinstance(a, ConnectBroker) and isinstance(b, ConnectBroker):
        if a.name != b.name:
            return None
        methods = tuple(sorted({*a.methods} & {*b.methods}))
        paths = _bounded("scope.connect", _meet_paths(a.paths, b.paths))
        return ConnectBroker(kind="broker", name=a.name, methods=methods, paths=paths)
    if isinstance(a, ConnectHost) and isinstance(b, ConnectHost):
        narrow = _narrower(a.host, b.host, covers_host(a.host, b.host), covers_host(b.host, a.host))
        ports = tuple(sorted({*a.ports} & {*b.ports}))
        if narrow is None:
            return None
        return ConnectHost(kind="host", host=narrow, ports=ports, tls=a.tls or b.tls)
    if isinstance(a, ConnectCidr) and isinstance(b, ConnectCidr):
        narrow = _narrower(a.cidr, b.cidr, covers_cidr(a.cidr, b.cidr), covers_cidr(b.cidr, a.cidr))
        ports = tuple(sorted({*a.ports} & {*b.ports}))
        return None if narrow is None else ConnectCidr(kind="cidr", cidr=narrow, ports=ports)
    return None


def _narrower(a: str, b: str, a_covers_b: bool, b_covers_a: bool) -> str | None:
    return b if a_covers_b else a if b_covers_a else None


M = TypeVar("M", bound=Model)
T = TypeVar("T")


def _least(model: type[M], a: M, b: M) -> M:
    return model(**{name: min(getattr(a, name), getattr(b, name)) for name in model.model_fields})


def _bounded(component: str, items: tuple[T, ...], bound: int = MAX_LIST) -> tuple[T, ...]:
    if len(items) > bound:
        raise failure(
            Code.CEILING_EXCEEDED,
            f"{component}: the intersection has {len(items)} entries; at most {bound} are possible",
            rule=component,
            component=component,
        )
    return items
