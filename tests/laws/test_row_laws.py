"""The table of "no wider than" in docs/capabilities.md, one law for each row.

One component of a grant is put in place of another's, so whether the result is no wider depends on
that row alone. What it must depend on is asked here of the meaning, not of the spelling: which
paths of a small universe are covered, which numbers are larger.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stockade.decide.attenuation import Excess, exceeds, wider_link
from stockade.decide.blocks import normal
from stockade.decide.links import link_of
from stockade.decide.objects import covers_host
from stockade.terms.grant import (
    Block,
    Connect,
    ConnectBroker,
    ConnectCidr,
    ConnectHost,
    Grant,
    LeaseBinding,
    PerCall,
    PerLease,
    Profile,
    Tier,
    Total,
)
from tests.laws.test_attenuation_laws import CIDR, COMPONENT, HOST, NOW, PATHS, grants

# Enough to tell any two sets of the generated prefixes apart: they have at most three components.
NAMES: Final = ("a", "b", "ab", "a-b", "a.b", "é", "\\xff", "other")
UNIVERSE: Final = [
    (*one, *two, *three, *four)
    for one in [(), *((name,) for name in NAMES)]
    for two in ([(), *((name,) for name in NAMES)] if one else [()])
    for three in ([(), *((name,) for name in NAMES)] if two else [()])
    for four in ([(), ("other",)] if three else [()])
]


def wider(child: Block, parent: Block) -> Excess | None:
    return wider_link(link_of(child), link_of(parent))


def covered(paths: tuple[str, ...]) -> set[tuple[str, ...]]:
    prefixes = [tuple(part for part in path.split("/") if part) for path in paths]
    return {path for path in UNIVERSE if any(path[: len(p)] == p for p in prefixes)}


def put(grant: Grant, component: str, value: object) -> Grant:
    name, _, rest = component.partition(".")
    if rest:
        value = getattr(grant, name).model_copy(update={rest: value})
    return grant.model_copy(update={name: value})


def get(grant: Grant, component: str) -> Any:
    value: Any = grant
    for name in component.split("."):
        value = getattr(value, name)
    return value


def numbers(*models: tuple[str, type[Any]]) -> list[str]:
    return [f"{group}.{name}" for group, model in models for name in model.model_fields]


Relation = Callable[[Any, Any], bool]
PROFILES: Final = [Profile.STRICT, Profile.AGENT]
TIERS: Final = [Tier.CONTAINER, Tier.GVISOR]
ROWS: Final[dict[str, Relation]] = {
    "scope.read": lambda child, parent: covered(child) <= covered(parent),
    "scope.write": lambda child, parent: covered(child) <= covered(parent),
    "scope.execute": lambda child, parent: covered(child) <= covered(parent),
    "deny": lambda child, parent: covered(child) >= covered(parent),
    "tools": lambda child, parent: set(child) <= set(parent),
    "system.profile": lambda child, parent: PROFILES.index(child) <= PROFILES.index(parent),
    "system.images": lambda child, parent: set(child) <= set(parent),
    "system.tier_min": lambda child, parent: TIERS.index(child) >= TIERS.index(parent),
    **dict.fromkeys(
        numbers(("per_call", PerCall), ("per_lease", PerLease), ("total", Total)),
        lambda child, parent: child <= parent,
    ),
    "depth": lambda child, parent: child <= parent,
    "checks": lambda child, parent: all(check in child for check in parent),
    "approve": lambda child, parent: all(rule in child for rule in parent),
}


def components() -> set[str]:
    named = set()
    for name, field in Grant.model_fields.items():
        inner = getattr(field.annotation, "model_fields", None)
        named |= {f"{name}.{one}" for one in inner} if inner else {name}
    return named


def test_every_component_of_a_grant_has_a_row() -> None:
    assert set(ROWS) | {"scope.connect"} == components()


@pytest.mark.parametrize("component", ROWS)
@given(data=st.data())
@settings(max_examples=50)
def test_a_row_decides_as_the_table_says(component: str, data: st.DataObject) -> None:
    parent = data.draw(grants())
    if component == "scope.read":
        parent = put(parent, "scope.write", ())
    if component == "scope.write":
        # Writing needs reading, and that row is not the one that is asked here.
        parent = put(parent, "scope.read", ("/",))
        parent = normal(put(parent, component, data.draw(PATHS)))
        other = data.draw(PATHS)
    else:
        other = get(data.draw(grants()), component)
    mine = get(parent, component)
    value = data.draw(st.sampled_from([other, mine, *mixed(component, mine, other)]))
    child = normal(put(parent, component, value))
    excess = exceeds(child, parent)
    expected = ROWS[component](get(child, component), mine)
    assert (excess is None) == expected, (value, mine)
    if excess is not None:
        assert excess.component == component


def mixed(component: str, mine: Any, other: Any) -> list[Any]:
    """More and fewer items than the parent has, for components that are lists."""
    if not isinstance(mine, tuple):
        return []
    return [mine + other, mine[1:], tuple(item for item in other if item in mine)]


DESTINATION = st.tuples(
    HOST | st.sampled_from(["10.1.2.3", "11.0.0.1", "fd00::1"]), st.sampled_from([53, 80, 443])
)


@given(grants(), grants(), DESTINATION, st.booleans())
def test_a_row_of_destinations_lets_through_no_more(
    parent: Grant, other: Grant, target: tuple[str, int], tls: bool
) -> None:
    child = normal(put(parent, "scope.connect", other.scope.connect))
    excess = exceeds(child, parent)
    if excess is not None:
        assert excess.component == "scope.connect"
        return
    if any(reaches(item, *target, tls) for item in child.scope.connect):
        assert any(reaches(item, *target, tls) for item in parent.scope.connect)
    for item in child.scope.connect:
        if isinstance(item, ConnectBroker):
            assert any(
                isinstance(outer, ConnectBroker)
                and outer.name == item.name
                and set(item.methods) <= set(outer.methods)
                and covered(item.paths) <= covered(outer.paths)
                for outer in parent.scope.connect
            )


def reaches(item: Connect, target: str, port: int, tls: bool) -> bool:
    """Whether the object lets a connection through, by a reading of its own."""
    if isinstance(item, ConnectHost) and ":" not in target and not target[0].isdigit():
        labels, granted = target.split("."), item.host.split(".")
        if granted[0] == "*":
            fits = len(labels) > len(granted) - 1 and labels[1 - len(granted) :] == granted[1:]
        else:
            fits = labels == granted
        assert fits == covers_host(item.host, target)
        return fits and port in item.ports and (tls or not item.tls)
    if isinstance(item, ConnectCidr):
        return port in item.ports and target in INSIDE[item.cidr]
    return False


INSIDE: Final = {
    "0.0.0.0/0": ["10.1.2.3", "11.0.0.1"],
    "10.0.0.0/8": ["10.1.2.3"],
    "10.1.0.0/16": ["10.1.2.3"],
    "10.1.2.0/24": ["10.1.2.3"],
    "11.0.0.0/8": ["11.0.0.1"],
    "::/0": ["fd00::1"],
    "fd00::/8": ["fd00::1"],
}


@given(CIDR)
def test_the_table_of_networks_is_whole(network: str) -> None:
    assert network in INSIDE


def blocks(grant: Grant, **fields: Any) -> Block:
    values = {name: getattr(grant, name) for name in Grant.model_fields}
    return Block(**{**values, "lease": None, "not_before_s": 0, "not_after_s": NOW, **fields})


LEASES = st.sampled_from(
    [None, *(LeaseBinding(id=f"ls_00112233445566a{n}", generation=n) for n in (1, 2))]
)


@given(grants(), st.integers(0, 16), st.integers(0, 16))
def test_depth_becomes_smaller_with_every_block(grant: Grant, one: int, other: int) -> None:
    excess = wider(blocks(put(grant, "depth", one)), blocks(put(grant, "depth", other)))
    assert (excess is None) == (one < other)
    assert excess is None or excess.component == "depth"


@given(grants(), *[st.integers(0, 5)] * 4)
def test_a_child_is_valid_at_no_time_at_which_its_parent_is_not(
    grant: Grant, child_from: int, child_to: int, from_s: int, to_s: int
) -> None:
    parent = blocks(put(grant, "depth", 2), not_before_s=from_s, not_after_s=to_s)
    child = blocks(put(grant, "depth", 1), not_before_s=child_from, not_after_s=child_to)
    excess = wider(child, parent)
    assert (excess is None) == (child_from >= from_s and child_to <= to_s)
    if excess is None:
        times = set(range(child_from, child_to))
        assert times <= set(range(from_s, to_s))
    else:
        assert excess.component == ("not_before_s" if child_from < from_s else "not_after_s")


@given(grants(), LEASES, LEASES)
def test_a_lease_binding_is_never_taken_away(
    grant: Grant, one: LeaseBinding | None, other: LeaseBinding | None
) -> None:
    child = blocks(put(grant, "depth", 1), lease=one)
    parent = blocks(put(grant, "depth", 2), lease=other)
    excess = wider(child, parent)
    assert (excess is None) == (other is None or one is not None)
    assert excess is None or excess.component == "lease"


def test_the_universe_has_the_names_that_are_generated() -> None:
    @given(COMPONENT)
    def known(name: str) -> None:
        assert name in NAMES

    known()
