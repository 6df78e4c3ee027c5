from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
from pydantic import BaseModel

from stockade.decide.attenuation import Excess, exceeds, meet, wider_link
from stockade.decide.blocks import narrow, normal
from stockade.decide.links import link_of
from stockade.decide.tokens import KeyRing, attenuate, mint, verify
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import (
    ApprovalRule,
    Block,
    CheckPattern,
    CheckPrefix,
    CheckRange,
    ConnectBroker,
    ConnectCidr,
    ConnectHost,
    Grant,
    LeaseBinding,
    Profile,
    Tier,
)


def wider(child: Block, parent: Block) -> Excess | None:
    return wider_link(link_of(child), link_of(parent))


def edit(block: Block, path: str, value: object) -> Block:
    """`block` with the component at `path` replaced."""
    name, _, rest = path.partition(".")
    if rest:
        part: BaseModel = getattr(block, name)
        value = part.model_copy(update={rest: value})
    return block.model_copy(update={name: value})


def narrowest(root: Block) -> Block:
    """A parent that leaves room for a wider child in every component."""
    return narrow(
        root,
        scope=root.scope.model_copy(
            update={"read": ("/workspace/a",), "write": (), "execute": ("/workspace/a",)}
        ),
        tools=("file_view",),
        system=root.system.model_copy(
            update={"profile": Profile.STRICT, "tier_min": Tier.GVISOR, "images": ()}
        ),
        total=root.total.model_copy(update=dict.fromkeys(type(root.total).model_fields, 10)),
        checks=(
            CheckRange(kind="range", tool="file_view", argument="limit", minimum=1, maximum=9),
        ),
        approve=(ApprovalRule(tool="file_view", argument="path", pattern="/tmp/.*"),),
        lease=LeaseBinding(id="ls_00112233445566aa", generation=1),
    )


def widened(parent: Block) -> Iterator[tuple[str, Any]]:
    """One wider value for every component that a block has."""
    yield "scope.read", ("/workspace",)
    yield "scope.write", ("/workspace/a",)
    yield "scope.execute", ("/",)
    yield "scope.connect", (ConnectHost(kind="host", host="a.test", ports=(443,), tls=True),)
    yield "deny", ()
    yield "tools", ("file_edit", "file_view")
    yield "system.profile", Profile.AGENT
    yield "system.images", ("host",)
    yield "system.tier_min", Tier.CONTAINER
    for group in ("per_call", "per_lease", "total"):
        part = getattr(parent, group)
        for name in type(part).model_fields:
            yield f"{group}.{name}", getattr(part, name) + 1
    yield "depth", parent.depth
    yield "checks", ()
    yield "approve", ()
    yield "lease", None
    yield "not_before_s", parent.not_before_s - 1
    yield "not_after_s", parent.not_after_s + 1


def components(model: type[BaseModel], prefix: str = "") -> Iterator[str]:
    for name, field in model.model_fields.items():
        inner = field.annotation
        if isinstance(inner, type) and issubclass(inner, BaseModel):
            yield from components(inner, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_b86_every_component_that_a_block_has_is_compared(root: Block) -> None:
    parent = narrowest(root)
    child = narrow(parent)
    assert wider(child, parent) is None
    compared = set()
    for path, value in widened(parent):
        excess = wider(edit(child, path, value), parent)
        assert excess is not None, path
        assert excess.component == path
        compared.add(path)
    root_only = {"v", "kid", "tenant", "trajectory"}
    assert compared == set(components(Block)) - root_only


def test_b86_a_wider_child_is_refused_by_name_and_never_cut_to_size(
    root: Block, ring: KeyRing, now: int
) -> None:
    parent = narrow(
        root,
        scope=root.scope.model_copy(update={"read": ("/workspace/a",), "write": ("/workspace/a",)}),
        per_lease=root.per_lease.model_copy(update={"memory_bytes": 512 << 20}),
        system=root.system.model_copy(update={"profile": Profile.STRICT}),
        not_after_s=now + 60,
    )
    token = attenuate(mint(ring, "k1", root), parent)
    child = narrow(parent)
    for path, value in (
        ("scope.read", ("/workspace",)),
        ("scope.read", ("/workspace/a", "/workspace/ab")),
        ("per_lease.memory_bytes", (512 << 20) + 1),
        ("system.profile", Profile.AGENT),
        ("not_after_s", now + 61),
    ):
        with pytest.raises(Failure) as caught:
            attenuate(token, edit(child, path, value))
        assert (caught.value.fault.code, caught.value.fault.rule) == (Code.WIDER_BLOCK, path)
        assert path in caught.value.fault.message
    for path, value in (
        ("scope.read", ("/workspace/a/..",)),
        ("scope.read", ("*",)),
        ("scope.read", ("/workspace/a", "/workspace/*/../..")),
    ):
        with pytest.raises(Failure) as caught:
            attenuate(token, edit(child, path, value))
        assert caught.value.fault.code is Code.TOKEN_MALFORMED
    # A star is a name like any other: below the parent's prefix it grants that one name.
    starred = edit(edit(child, "scope.read", ("/workspace/a/*",)), "scope.write", ())
    permit = verify(attenuate(token, starred), ring, now)
    assert permit.grant.scope.read == ("/workspace/a/*",)
    with pytest.raises(Failure) as caught:
        verify(attenuate(token, child), ring, now + 60)
    assert caught.value.fault.code is Code.TOKEN_EXPIRED


def test_the_reason_is_readable(root: Block) -> None:
    parent = narrowest(root)
    child = narrow(parent)
    reasons = {}
    for path, value in widened(parent):
        excess = wider(edit(child, path, value), parent)
        assert excess is not None
        reasons[path] = excess.reason
    assert reasons["scope.read"] == "/workspace is not below /workspace/a"
    assert (
        reasons["scope.write"] == "/workspace/a is not below anything granted (the list is empty)"
    )
    assert reasons["scope.connect"].startswith("a.test port 443 is not within")
    assert reasons["system.profile"] == "agent is wider than strict"
    assert reasons["depth"] == "7 is not less than 7"
    required = "is required by the parent and left out"
    assert reasons["checks"] == f"the range check on file_view.limit {required}"
    assert reasons["approve"] == f"approval of file_view.path {required}"


def test_grants_may_be_equal_and_blocks_may_not(grant: Grant, root: Block) -> None:
    assert exceeds(grant, grant) is None
    assert wider(root, root) == ("depth", "8 is not less than 8")


def connects(grant: Grant, *items: ConnectHost | ConnectCidr | ConnectBroker) -> Grant:
    return normal(
        grant.model_copy(update={"scope": grant.scope.model_copy(update={"connect": items})})
    )


def test_the_meet_of_destinations(grant: Grant) -> None:
    def host(name: str, *ports: int, tls: bool = False) -> ConnectHost:
        return ConnectHost(kind="host", host=name, ports=ports, tls=tls)

    def cidr(name: str, *ports: int) -> ConnectCidr:
        return ConnectCidr(kind="cidr", cidr=name, ports=ports)

    def broker(methods: tuple[str, ...], *paths: str, name: str = "git") -> ConnectBroker:
        return ConnectBroker(kind="broker", name=name, methods=methods, paths=paths)

    a = connects(
        grant,
        host("*.ok.test", 80, 443),
        host("b.test", 22),
        cidr("10.0.0.0/8", 53, 80),
        broker(("GET", "PUT"), "/a"),
        broker(("GET",), "/a", name="other"),
    )
    b = connects(
        grant,
        host("x.ok.test", 443, 8443, tls=True),
        host("c.test", 22),
        cidr("10.1.0.0/16", 53),
        cidr("11.0.0.0/8", 53),
        broker(("GET",), "/a/b", "/c"),
    )
    expected = connects(
        grant, host("x.ok.test", 443, tls=True), cidr("10.1.0.0/16", 53), broker(("GET",), "/a/b")
    )
    assert meet(a, b).scope.connect == expected.scope.connect
    assert meet(b, a).scope.connect == expected.scope.connect


def test_a_meet_that_no_block_can_state_is_refused(grant: Grant) -> None:
    a = grant.model_copy(update={"deny": tuple(f"/a/{n:02}" for n in range(40))})
    b = grant.model_copy(update={"deny": tuple(f"/b/{n:02}" for n in range(40))})
    with pytest.raises(Failure) as caught:
        meet(a, b)
    assert (caught.value.fault.code, caught.value.fault.rule) == (Code.CEILING_EXCEEDED, "deny")


def test_a_check_is_kept_as_it_is_and_others_may_be_added(root: Block) -> None:
    wide = CheckPrefix(kind="prefix", tool="t", argument="path", paths=("/workspace",))
    tight = wide.model_copy(update={"paths": ("/workspace/a",)})
    parent = narrow(root, checks=(wide,))
    assert wider(narrow(parent, checks=(wide, tight)), parent) is None
    # A tighter check in place of the parent's would be no wider, but is not told from one that is.
    excess = wider(narrow(parent, checks=(tight,)), parent)
    assert excess is not None
    assert excess.component == "checks"
    # Spelling doesn't matter: both are the same check.
    spelled = wide.model_copy(update={"paths": ("/workspace/b", "/workspace/", "/workspace")})
    assert wider(narrow(parent, checks=(spelled, spelled)), parent) is None


def test_the_meet_has_the_checks_and_approvals_of_both(grant: Grant) -> None:
    checks = tuple(
        CheckPattern(kind="pattern", tool="t", argument="a", pattern=pattern)
        for pattern in ("b", "a", "c")
    )
    rules = tuple(ApprovalRule(tool=name, argument=None, pattern=None) for name in ("y", "x"))
    a = normal(grant.model_copy(update={"checks": checks[:2], "approve": rules[:1]}))
    b = normal(grant.model_copy(update={"checks": checks[1:], "approve": rules}))
    met = meet(a, b)
    assert [getattr(check, "pattern", None) for check in met.checks] == ["a", "b", "c"]
    assert [rule.tool for rule in met.approve] == ["x", "y"]
    assert meet(b, a) == met
