from __future__ import annotations

import json
from typing import Any

import pytest

from stockade.decide.blocks import (
    block_bytes,
    grant_of,
    lease_block,
    narrow,
    normal,
    root_block,
    unsupported,
)
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import (
    ApprovalRule,
    Block,
    CheckOneOf,
    CheckPattern,
    CheckPrefix,
    CheckRange,
    ConnectHost,
    Grant,
    LeaseBinding,
)


def test_the_normal_form_has_one_spelling_for_a_set(grant: Grant) -> None:
    def host(name: str, *ports: int) -> ConnectHost:
        return ConnectHost(kind="host", host=name, ports=ports, tls=False)

    untidy = grant.model_copy(
        update={
            "scope": grant.scope.model_copy(
                update={
                    "read": ("/workspace/", "/workspace/a", "/tmp", "/tmp"),
                    "write": ("/workspace", "/tmp"),
                    "connect": (host("x.B.test", 80), host("*.b.test", 443, 80), host("a.test", 1)),
                }
            ),
            "tools": ("file_view", "bash_execute", "file_edit", "file_view"),
        }
    )
    tidy = normal(untidy)
    assert tidy.scope.read == tidy.scope.write == ("/tmp", "/workspace")
    assert tidy.scope.connect == (host("*.b.test", 80, 443), host("a.test", 1))
    assert tidy.tools == grant.tools
    assert normal(tidy) == tidy
    assert normal(grant) == grant


@pytest.mark.parametrize(
    ("component", "value"),
    [
        ("read", ("/workspace/..",)),
        ("execute", ("bin",)),
        ("write", ("/etc",)),
        ("connect", (ConnectHost(kind="host", host="10.0.0.1", ports=(1,), tls=False),)),
    ],
)
def test_a_malformed_object_is_refused_by_component(
    grant: Grant, component: str, value: Any
) -> None:
    scope = grant.scope.model_copy(update={component: value})
    with pytest.raises(Failure) as caught:
        normal(grant.model_copy(update={"scope": scope}))
    assert caught.value.fault.code is Code.TOKEN_MALFORMED
    assert caught.value.fault.rule == f"scope.{component}"


def test_write_needs_read_on_the_same_path(grant: Grant) -> None:
    scope = grant.scope.model_copy(update={"read": ("/workspace/a",), "write": ("/workspace",)})
    with pytest.raises(Failure) as caught:
        normal(grant.model_copy(update={"scope": scope}))
    assert caught.value.fault.rule == "scope.write"


def test_a_root_block_holds_the_grant_and_states_every_component(grant: Grant) -> None:
    root = root_block(grant, "acme", "run-1/sub-2", "k1", 10, 20)
    assert grant_of(root) == grant
    assert type(grant_of(root)) is Grant
    value = json.loads(block_bytes(root))
    assert set(value) == set(Block.model_fields)
    assert (value["v"], value["tenant"], value["lease"]) == (1, "acme", None)


@pytest.mark.parametrize(
    ("field", "value"),
    [("tenant", "A/b"), ("trajectory", ""), ("kid", "k 1"), ("not_after_s", -1)],
)
def test_a_root_block_with_impossible_fields_is_refused(
    grant: Grant, field: str, value: Any
) -> None:
    fields = {
        "tenant": "acme",
        "trajectory": "run-1",
        "kid": "k1",
        "not_before_s": 1,
        "not_after_s": 2,
    }
    with pytest.raises(Failure) as caught:
        root_block(grant, **{**fields, field: value})
    assert caught.value.fault.rule == field


def test_narrow_keeps_what_is_not_named_and_spends_one_level(root: Block) -> None:
    child = narrow(root, tools=("file_view",))
    assert child.tools == ("file_view",)
    assert child.depth == root.depth - 1
    assert child.model_dump(exclude={"tools", "depth", "v", "kid", "tenant", "trajectory"}) == (
        root.model_dump(exclude={"tools", "depth", "v", "kid", "tenant", "trajectory"})
    )
    assert set(json.loads(block_bytes(child))) == set(Block.model_fields) - {
        "v",
        "kid",
        "tenant",
        "trajectory",
    }


def test_narrow_can_empty_a_component(root: Block) -> None:
    assert narrow(root, tools=()).tools == ()
    assert narrow(root, depth=0).depth == 0


def test_narrow_refuses_a_parent_without_depth(root: Block) -> None:
    with pytest.raises(Failure) as caught:
        narrow(narrow(root, depth=0))
    assert (caught.value.fault.code, caught.value.fault.rule) == (Code.WIDER_BLOCK, "depth")


def test_a_lease_block_ends_with_the_lease_or_its_parent(root: Block) -> None:
    binding = LeaseBinding(id="ls_00112233445566aa", generation=3)
    early = lease_block(root, binding.id, 3, root.not_after_s - 5)
    assert (early.lease, early.not_after_s) == (binding, root.not_after_s - 5)
    assert lease_block(root, binding.id, 3, root.not_after_s + 5).not_after_s == root.not_after_s
    with pytest.raises(Failure) as caught:
        lease_block(root, "ls_1", 3, 0)
    assert caught.value.fault.code is Code.TOKEN_MALFORMED


def test_what_nothing_enforces_is_named(grant: Grant) -> None:
    host = ConnectHost(kind="host", host="a.test", ports=(1,), tls=False)
    assert unsupported(grant) is None
    rows: list[tuple[str, dict[str, Any]]] = [
        ("deny", {"deny": ("repo:a",)}),
        ("scope.connect", {"scope": grant.scope.model_copy(update={"connect": (host,)})}),
        ("scope.read", {"scope": grant.scope.model_copy(update={"read": ("repo:a",)})}),
    ]
    for component, update in rows:
        assert unsupported(grant.model_copy(update=update)) == component


def check(argument: str = "path", **fields: Any) -> dict[str, Any]:
    return {"tool": "file_view", "argument": argument, **fields}


def test_checks_and_rules_have_one_spelling_and_one_order(grant: Grant) -> None:
    a = CheckPrefix(
        **check(kind="prefix", paths=("/workspace/b", "/tmp", "/workspace/b/c", "/tmp/"))
    )
    b = CheckOneOf(**check(kind="one_of", values=("b", "./a", "/workspace/a//")))
    c = CheckOneOf(**check("old_str", kind="one_of", values=("b", "./a", "b")))
    rules = [
        ApprovalRule(tool=tool, argument=None, pattern=None) for tool in ("run", "file_edit", "run")
    ]
    tidy = normal(grant.model_copy(update={"checks": (c, b, a, c), "approve": tuple(rules)}))
    assert tidy.checks == (
        c.model_copy(update={"values": ("./a", "b")}),
        b.model_copy(update={"values": ("/workspace/a", "/workspace/b")}),
        a.model_copy(update={"paths": ("/tmp", "/workspace/b")}),
    )
    assert [rule.tool for rule in tidy.approve] == ["file_edit", "run"]
    assert normal(tidy) == tidy
    assert normal(tidy.model_copy(update={"checks": tidy.checks[::-1]})) == tidy


@pytest.mark.parametrize(
    ("component", "item"),
    [
        ("checks", CheckPattern(**check(kind="pattern", pattern="(a"))),
        ("checks", CheckPattern(**check(kind="pattern", pattern=r"(a)\1"))),
        ("checks", CheckPattern(**check(kind="pattern", pattern="(?=a)"))),
        ("checks", CheckPattern(**check(kind="pattern", pattern=".{1000}"))),
        ("checks", CheckRange(**check("limit", kind="range", minimum=2, maximum=1))),
        ("checks", CheckPrefix(**check(kind="prefix", paths=("workspace",)))),
        ("checks", CheckPrefix(**check(kind="prefix", paths=("/workspace/../tmp",)))),
        ("checks", CheckOneOf(**check(kind="one_of", values=("../a",)))),
        ("approve", ApprovalRule(tool="run", argument="cwd", pattern=None)),
        ("approve", ApprovalRule(tool="run", argument=None, pattern="a")),
        ("approve", ApprovalRule(tool="run", argument="cwd", pattern="(?!a)")),
    ],
)
def test_a_condition_that_can_not_be_decided_is_refused(
    grant: Grant, component: str, item: object
) -> None:
    with pytest.raises(Failure) as caught:
        normal(grant.model_copy(update={component: (item,)}))
    assert caught.value.fault.code is Code.TOKEN_MALFORMED
    assert caught.value.fault.rule == component
