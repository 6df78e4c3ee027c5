from __future__ import annotations

from typing import Any

import pytest

from stockade.decide.blocks import block_bytes, lease_block, narrow
from stockade.decide.plain import is_plain
from stockade.host.policy_files import load_policy
from stockade.terms.grant import Block, Grant, Scope, System


def plain(block: Block) -> bool:
    return is_plain(block, block_bytes(block))


def scope_of(**changes: Any) -> Scope:
    given: dict[str, Any] = {"read": ("/a",), "write": (), "execute": (), "connect": ()}
    return Scope(**{**given, **changes})


def test_the_blocks_of_every_lease_are_recognized(root: Block) -> None:
    policy = load_policy()
    for name in policy.grants:
        grant = policy.grant(name)
        if grant.scope.connect:
            continue
        block = root.model_copy(update={n: getattr(grant, n) for n in Grant.model_fields})
        assert plain(block), name
        bound = lease_block(block, "ls_00112233445566aa", 3, block.not_after_s)
        assert plain(bound), name
        assert plain(narrow(bound, tools=(), total=block.total.model_copy(update={"calls": 0})))


@pytest.mark.parametrize(
    "update",
    [
        {"scope": scope_of(read=("/b", "/a"))},
        {"scope": scope_of(read=("/a", "/a"))},
        {"scope": scope_of(read=("/a", "/a/b"))},
        {"scope": scope_of(read=("/", "/a"))},
        {"scope": scope_of(read=("/a/",))},
        {"scope": scope_of(read=("/a//b",))},
        {"scope": scope_of(read=("/a/.",))},
        {"scope": scope_of(read=("/..",))},
        {"scope": scope_of(read=("/../a",))},
        {"scope": scope_of(read=("a",))},
        {"scope": scope_of(read=("repo:x",))},
        {"scope": scope_of(read=("/é",))},
        {"scope": scope_of(read=("/a\\x5c",))},
        {"scope": scope_of(read=("/a\n",))},
        {"scope": scope_of(write=("/b",))},
        {"scope": scope_of(write=("/ab",))},
        {"scope": scope_of(execute=("/b", "/a"))},
        {"deny": ("/b", "/a")},
        {"tools": ("b", "a")},
        {"tools": ("a", "a")},
        {"kid": None},
        {"trajectory": None},
        {"v": None},
    ],
    ids=str,
)
def test_what_is_not_plain_is_left_to_the_reference(root: Block, update: dict[str, Any]) -> None:
    assert not plain(root.model_copy(update=update))


def test_images_out_of_order_are_not_plain(root: Block) -> None:
    system = System(profile=root.system.profile, images=("b", "a"), tier_min=root.system.tier_min)
    assert not plain(root.model_copy(update={"system": system}))


def test_other_bytes_of_a_plain_block_are_not_its_own(root: Block) -> None:
    raw = block_bytes(root)
    assert is_plain(root, raw)
    for other in (
        raw + b" ",
        raw.replace(b",", b", ", 1),
        raw.replace(b"/tmp", b"\\/tmp", 1),
        raw.replace(b'"v":1', b'"v":1,"v":1'),
        raw.replace(b'"depth":8', b'"depth":08'),
        raw[:-1],
    ):
        assert not is_plain(root, other)
