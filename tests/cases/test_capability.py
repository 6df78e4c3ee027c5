"""B86 of the cases: no child capability is ever wider than its parent, in no component.

A holder can sign whatever bytes it likes after its token, so these tests do, without the checks of
`attenuate`, and send the result to a real daemon with a call. Each is refused by the component's
name or for its form, and nothing runs; the parent's token works all the time.
"""

from __future__ import annotations

import hmac
import json
import re
import secrets
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from stockade.decide.blocks import block_bytes, narrow
from stockade.decide.tokens import attenuate, inspect
from stockade.decide.tokentext import join, split
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import ToolError
from stockade.terms.grant import ApprovalRule, CheckPrefix, Profile, Total
from stockade.terms.result import ToolResult
from tests.cases.asking import out, post
from tests.daemons import Daemon

MIB = 1 << 20
A, R = "/workspace/a", "/workspace/r"


@pytest.fixture(scope="module")
def parent(daemon: Daemon) -> Iterator[Lease]:
    """512 MiB, /workspace/a, 60 seconds, profile strict, no destination, and no depth to spare."""
    trajectory = f"b86-{secrets.token_hex(8)}"
    token = daemon.stockade.mint("local", trajectory, "agent", 3600)
    root = inspect(token).blocks[-1]
    child = narrow(
        root,
        scope=root.scope.model_copy(update={"read": (A, R), "write": (A,), "execute": ("/usr",)}),
        deny=("/workspace/.git/hooks", f"{A}/denied"),
        tools=("bash_execute", "file_view"),
        system=root.system.model_copy(update={"profile": Profile.STRICT}),
        per_call=root.per_call.model_copy(update={"wall_ms": 60_000, "output_bytes": MIB}),
        per_lease=root.per_lease.model_copy(
            update={"memory_bytes": 512 * MIB, "pids": 64, "sandboxes": 2, "parallel": 2}
        ),
        total=Total(calls=10**6, cost_micro=10**6, cpu_ms=10**6, egress_bytes=10**6),
        checks=(CheckPrefix(kind="prefix", tool="file_view", argument="path", paths=(A,)),),
        approve=(ApprovalRule(tool="file_view", argument="path", pattern="/workspace/a/asks"),),
        depth=4,
    )
    with daemon.stockade.lease(trajectory=trajectory, capability=attenuate(token, child)) as made:
        made.bash("echo kept > a/kept").check()
        yield made
        assert out(made.bash("ls a; cat a/kept")) == "denied\nkept\nkept\n"


def token_of(lease: Lease) -> str:
    assert lease.token is not None
    return lease.token


def signed(token: str, raw: bytes) -> str:
    """Any bytes as the next block, with the signature that a holder can make."""
    text = split(token)
    return join((*text.blocks, raw), hmac.digest(text.signature, raw, "sha256"))


def child_of(token: str) -> dict[str, Any]:
    """The block that `narrow` would make, as JSON to be spoilt."""
    value: dict[str, Any] = json.loads(block_bytes(narrow(inspect(token).blocks[-1])))
    return value


def canonical(value: dict[str, Any]) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def asked(daemon: Daemon, lease: Lease, token: str) -> ToolResult:
    held = daemon.stockade.attach(lease.id, token)
    return post(
        daemon.socket,
        held,
        json.dumps(
            {"tool": "bash_execute", "arguments": {"command": "touch a/ran"}, "lease": lease.id}
        ),
    )


def refusal(daemon: Daemon, lease: Lease, token: str) -> tuple[str, str | None]:
    result = asked(daemon, lease, token)
    assert result.status == "denied"
    assert result.error is not None
    return result.error.code.value, result.error.rule


def changed(path: str, value: object) -> Callable[[dict[str, Any]], None]:
    def change(block: dict[str, Any]) -> None:
        *names, last = path.split(".")
        for name in names:
            block = block[name]
        block[last] = value

    return change


HOST = {"kind": "host", "host": "example.org", "ports": [443], "tls": True}
CIDR = {"kind": "cidr", "cidr": "0.0.0.0/0", "ports": [443]}
WIDER: dict[str, object] = {
    "scope.read": [A, "/workspace/b"],
    "scope.write": [A, R],
    "scope.execute": ["/"],
    "scope.connect": [HOST],
    "deny": ["/workspace/.git/hooks"],
    "tools": ["bash_execute", "file_view", "run"],
    "system.profile": "agent",
    "system.images": ["host", "other"],
    "per_call.wall_ms": 60_001,
    "per_call.output_bytes": MIB + 1,
    "per_lease.memory_bytes": 512 * MIB + 1,
    "per_lease.cpu_millis": 2001,
    "per_lease.pids": 65,
    "per_lease.disk_bytes": 1024 * MIB + 1,
    "per_lease.inodes": 262_145,
    "per_lease.sandboxes": 3,
    "per_lease.parallel": 3,
    **{f"total.{name}": 10**6 + 1 for name in Total.model_fields},
    "checks": [],
    "approve": [],
    "depth": 4,
    "lease": None,
}
# Nothing can be weaker than what the parent has.
AT_THE_END = {"system.tier_min"}


def components(value: dict[str, Any]) -> set[str]:
    nested = ("scope", "system", "per_call", "per_lease", "total")
    names = {f"{name}.{inner}" for name in nested for inner in value[name]}
    return names | {name for name in value if name not in nested}


def test_b86_every_component_is_asked_for_more(parent: Lease) -> None:
    """A component that a block gets later needs a row here."""
    every = components(child_of(token_of(parent)))
    assert every == {*WIDER, *AT_THE_END, "not_before_s", "not_after_s"}


@pytest.mark.parametrize("component", WIDER)
def test_b86_more_of_one_component_is_refused_by_its_name(
    daemon: Daemon, parent: Lease, component: str
) -> None:
    block = child_of(token_of(parent))
    changed(component, WIDER[component])(block)
    code, rule = refusal(daemon, parent, signed(token_of(parent), canonical(block)))
    if component == "scope.connect" and code == "token_unsupported":
        return  # refused even before it is compared: nothing enforces it in this version
    assert (code, rule) == ("wider_block", component)


@pytest.mark.parametrize(
    ("component", "by"), [("not_after_s", 1), ("not_before_s", -1), ("not_after_s", 10**9)]
)
def test_b86_more_time_is_refused(daemon: Daemon, parent: Lease, component: str, by: int) -> None:
    block = child_of(token_of(parent))
    block[component] += by
    token = signed(token_of(parent), canonical(block))
    assert refusal(daemon, parent, token) == ("wider_block", component)


def test_b86_a_component_left_out_is_refused(daemon: Daemon, parent: Lease) -> None:
    token = token_of(parent)
    for component in sorted(components(child_of(token))):
        block = child_of(token)
        *names, last = component.split(".")
        del (block[names[0]] if names else block)[last]
        code, _ = refusal(daemon, parent, signed(token, canonical(block)))
        assert code in ("token_malformed", "token_not_canonical"), component
    for name in ("scope", "system", "per_call", "per_lease", "total"):
        block = child_of(token)
        del block[name]
        assert refusal(daemon, parent, signed(token, canonical(block)))[0] == "token_malformed"


SPELLINGS: dict[str, tuple[str, object]] = {
    "any tool": ("tools", ["*"]),
    "any path": ("scope.read", ["*"]),
    "a glob": ("scope.read", [f"{A}*"]),
    "a deeper glob": ("scope.read", ["/workspace/**"]),
    "a path that goes up": ("scope.read", [f"{A}/../b"]),
    "a path that goes up to the root": ("scope.write", [f"{A}/../.."]),
    "a longer name": ("scope.read", ["/workspace/ab"]),
    "the parent's parent": ("scope.read", ["/workspace"]),
    "a trailing slash": ("scope.read", [f"{A}/"]),
    "an empty component": ("scope.read", ["/workspace//a"]),
    "a dot": ("scope.read", ["/workspace/./a"]),
    "another case": ("scope.read", ["/workspace/A"]),
    "nothing for a path": ("scope.read", [""]),
    "a relative path": ("scope.read", ["a"]),
    "any network": ("scope.connect", [CIDR]),
    "any host": ("scope.connect", [{**HOST, "host": "*"}]),
    "a number as text": ("per_lease.memory_bytes", "1"),
    "a negative number": ("per_lease.memory_bytes", -1),
    "a float": ("per_lease.memory_bytes", 1.0),
    "no number": ("per_lease.memory_bytes", None),
    "a bool": ("per_lease.memory_bytes", True),
    "above 2^53": ("per_lease.memory_bytes", 2**53 + 2),
    "an unknown profile": ("system.profile", "root"),
    "a reordered list": ("deny", [f"{A}/denied", "/workspace/.git/hooks"]),
    "a duplicated entry": ("tools", ["bash_execute", "bash_execute", "file_view"]),
    "a list in a wrong order": ("tools", ["file_view", "bash_execute"]),
    "an unknown component": ("everything", True),
    "an unknown right": ("scope.delete", [A]),
    "a tenant of its own": ("tenant", "zeta"),
    "another trajectory": ("trajectory", "other"),
    "another version": ("v", 2),
}


@pytest.mark.parametrize("name", SPELLINGS)
def test_b86_no_spelling_is_wider(daemon: Daemon, parent: Lease, name: str) -> None:
    component, value = SPELLINGS[name]
    block = child_of(token_of(parent))
    changed(component, value)(block)
    token = signed(token_of(parent), canonical(block))
    assert canonical(child_of(token_of(parent))) != canonical(block)
    code, _ = refusal(daemon, parent, token)
    expected = {"token_malformed", "token_not_canonical", "wider_block", "token_unsupported"}
    assert code in expected


def test_b86_a_second_meaning_of_one_block_is_refused(daemon: Daemon, parent: Lease) -> None:
    token = token_of(parent)
    raw = canonical(child_of(token))
    twice = re.sub(rb'("depth":\d+)', rb"\1,\1", raw)
    for spoilt in (twice, raw + b" ", raw + b"{}", b"[]", b"null", raw[:-1], b"\xff" + raw):
        assert refusal(daemon, parent, signed(token, spoilt))[0] in (
            "token_malformed", "token_not_canonical",
        )  # fmt: skip


def test_b86_a_wider_block_does_not_hide_behind_a_narrower_one(
    daemon: Daemon, parent: Lease
) -> None:
    block = child_of(token_of(parent))
    block["per_lease"]["pids"] = 65
    wide = signed(token_of(parent), canonical(block))
    block["per_lease"]["pids"] = 8
    block["depth"] -= 1
    token = signed(wide, canonical(block))
    assert refusal(daemon, parent, token) == ("wider_block", "per_lease.pids")


def test_b86_a_wider_capability_makes_no_lease(daemon: Daemon) -> None:
    trajectory = f"b86-{secrets.token_hex(8)}"
    token = daemon.stockade.mint("local", trajectory, "read-only", 60)
    block = child_of(token)
    block["scope"]["write"] = block["scope"]["read"]
    before = len(daemon.stockade.leases())
    with pytest.raises(ToolError, match=r"wider_block: block 1, scope\.write"):
        daemon.stockade.lease(
            trajectory=trajectory, capability=signed(token, canonical(block))
        ).release()
    assert len(daemon.stockade.leases()) == before


def test_b86_the_parents_end_is_the_childs(daemon: Daemon, parent: Lease) -> None:
    """Asked at each call: a chain that was good a moment ago is refused when any block's time is
    over, also where the child's own would go on for ever if it were looked at alone."""
    token = token_of(parent)
    last = inspect(token).blocks[-1]
    ended = attenuate(token, narrow(last, not_after_s=int(time.time())))
    assert refusal(daemon, parent, ended)[0] == "token_expired"
    child = attenuate(ended, narrow(inspect(ended).blocks[-1]))
    assert refusal(daemon, parent, child)[0] == "token_expired"
    block = child_of(ended)
    block["not_after_s"] = last.not_after_s
    assert refusal(daemon, parent, signed(ended, canonical(block))) == (
        "wider_block", "not_after_s",
    )  # fmt: skip


def test_b86_a_revoked_parent_ends_its_children_at_the_next_call(
    daemon: Daemon, parent: Lease
) -> None:
    child = parent.narrowed(ttl_s=600)
    grandchild = child.narrowed(tools=["bash_execute"])
    sibling = parent.narrowed(ttl_s=601)
    assert out(grandchild.bash("cat a/kept")) == "kept\n"
    daemon.stockade.revoke(token=token_of(child))
    for token in (token_of(child), token_of(grandchild)):
        assert refusal(daemon, parent, token)[0] == "token_revoked"
    assert out(sibling.bash("cat a/kept")) == "kept\n"


def test_b86_what_attenuate_makes_is_obeyed_to_the_letter(parent: Lease) -> None:
    """The control: a child that is narrower works, and in nothing more than it says."""
    child = parent.narrowed(read=[f"{A}/b"], write=[], tools=["bash_execute"])
    assert out(child.bash("ls -A /workspace/a; ls -A /workspace/a/b")) == "b\n"
    assert out(child.bash("touch a/b/x 2>&1 || echo held")).endswith("held\n")
    assert child.view(f"{A}/b/x").error.code == "tool_not_granted"  # type: ignore[union-attr]
    parent.bash("rmdir a/b").check()


# A chain is one whole: what is taken out, put in or put elsewhere breaks its signature.


@pytest.fixture(scope="module")
def chains(parent: Lease) -> tuple[str, str]:
    """Two tokens of the same lease, each with two blocks of its own after it."""

    def extended(*profiles: int) -> str:
        token = token_of(parent)
        for pids in profiles:
            last = inspect(token).blocks[-1]
            limits = last.per_lease.model_copy(update={"pids": pids})
            token = attenuate(token, narrow(last, per_lease=limits))
        return token

    return extended(40, 30), extended(20, 16)


CUTS: dict[str, Callable[[list[bytes], list[bytes], bytes, bytes], str]] = {
    "the last block is removed": lambda a, b, s, t: join(a[:-1], s),
    "the last two are removed": lambda a, b, s, t: join(a[:-2], s),
    "only the root is left": lambda a, b, s, t: join(a[:1], s),
    "the root is removed": lambda a, b, s, t: join(a[1:], s),
    "one in the middle is removed": lambda a, b, s, t: join((*a[:-2], a[-1]), s),
    "two are exchanged": lambda a, b, s, t: join((*a[:-2], a[-1], a[-2]), s),
    "all are reversed": lambda a, b, s, t: join(a[::-1], s),
    "one is there twice": lambda a, b, s, t: join((*a, a[-1]), s),
    "another chain's signature": lambda a, b, s, t: join(a, t),
    "another chain's last block": lambda a, b, s, t: join((*a[:-1], b[-1]), s),
    "another chain's last block and signature": lambda a, b, s, t: join((*a[:-1], b[-1]), t),
    "two chains one after the other": lambda a, b, s, t: join((*a, *b[-2:]), t),
    "a signature of zeros": lambda a, b, s, t: join(a, bytes(32)),
    "the next block's key as signature": lambda a, b, s, t: join(
        a[:-1], hmac.digest(s, a[-1], "sha256")
    ),
}


@pytest.mark.parametrize("name", CUTS)
def test_b86_a_chain_that_was_cut_or_spliced_is_refused(
    daemon: Daemon, parent: Lease, chains: tuple[str, str], name: str
) -> None:
    first, second = map(split, chains)
    token = CUTS[name](list(first.blocks), list(second.blocks), first.signature, second.signature)
    code, _ = refusal(daemon, parent, token)
    # Without a root in the first place, or with two, the form is wrong already.
    form = name in ("the root is removed", "all are reversed")
    assert code == ("token_malformed" if form else "bad_signature")
    for whole in chains:
        assert asked_quietly(daemon, parent, whole) == "succeeded"


def asked_quietly(daemon: Daemon, lease: Lease, token: str) -> str:
    return daemon.stockade.attach(lease.id, token).bash(":").status.value


def test_b86_a_chain_of_another_root_is_refused(daemon: Daemon, parent: Lease) -> None:
    """Another tenant's root under this chain, and this chain under a root of other words."""
    text = split(token_of(parent))
    theirs = split(daemon.stockade.mint("zeta", "run", "agent", 60))
    for token in (
        join((*theirs.blocks, *text.blocks[1:]), text.signature),
        join((*theirs.blocks, *text.blocks[1:]), theirs.signature),
        join((text.blocks[0].replace(b'"local"', b'"zeta"'), *text.blocks[1:]), text.signature),
    ):
        assert refusal(daemon, parent, token)[0] == "bad_signature"
    other = text.blocks[0].replace(b'"kid":"', b'"kid":"x')
    assert refusal(daemon, parent, join((other, *text.blocks[1:]), text.signature))[0] == (
        "token_unknown_key"
    )


def test_b86_a_binding_of_ones_own_opens_no_lease(daemon: Daemon) -> None:
    """Whoever holds the token that a lease was made of gets the lease by asking for it again. What
    descends from it by another block than the daemon's is for no lease."""
    trajectory = f"b86-{secrets.token_hex(8)}"
    token = daemon.stockade.mint("local", trajectory, "agent", 60)
    with daemon.stockade.lease(trajectory=trajectory, capability=token) as lease:
        assert daemon.stockade.lease(trajectory=trajectory, capability=token).token == lease.token
        assert refusal(daemon, lease, token)[0] == "lease_not_granted"
        last = inspect(token).blocks[-1]
        bound = inspect(token_of(lease)).blocks[-1].lease
        assert bound is not None
        for binding in (bound, bound.model_copy(update={"generation": 2})):
            fewer = last.per_lease.model_copy(update={"pids": 100})
            own = attenuate(token, narrow(last, lease=binding, per_lease=fewer))
            assert refusal(daemon, lease, own)[0] in ("lease_not_granted", "stale_generation")
        # Nor does a narrower relative of the lease's token.
        narrower = attenuate(token, narrow(last, per_lease=fewer))
        again = attenuate(narrower, narrow(inspect(narrower).blocks[-1], lease=bound))
        assert refusal(daemon, lease, again)[0] == "lease_not_granted"
