"""Write tokens.json: capability tokens, valid and invalid, with the verdict that each must get.

Nothing of the package is imported: tokens are built here from the format's description with the
standard library alone, so the vectors test the package and not themselves. The output is a pure
function of this file. Run: python tests/vectors/make_vectors.py
"""

from __future__ import annotations

import base64
import copy
import hashlib
import hmac
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

TARGET = Path(__file__).with_name("tokens.json")
KEYS = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}
NOW = 1_750_000_000
MAX = 2**53 - 1
LEASE = {"id": "ls_00112233445566aa", "generation": 1}

Block = dict[str, Any]
Change = Callable[[Block], object]


def tenant_key(kid: str, tenant: str) -> bytes:
    """HKDF-SHA256 (RFC 5869), empty salt, one output block."""
    pseudo_random = hmac.digest(bytes(32), KEYS[kid], "sha256")
    info = b"stockade token key 1\x00" + tenant.encode()
    return hmac.digest(pseudo_random, info + b"\x01", "sha256")


def canonical(value: Any) -> bytes:
    """RFC 8785 for what blocks hold: ASCII keys and integers need no more than this."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False).encode()


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def signatures(raws: list[bytes], key: bytes) -> list[bytes]:
    made = []
    for raw in raws:
        key = hmac.digest(key, raw, "sha256")
        made.append(key)
    return made


def text(raws: list[bytes], signature: bytes) -> str:
    return ".".join(["stk1", *map(b64, raws), b64(signature)])


def sign(raws: list[bytes], kid: str = "k1", tenant: str = "acme") -> str:
    return text(raws, signatures(raws, tenant_key(kid, tenant))[-1])


def root(*changes: Change) -> Block:
    block: Block = {
        "v": 1,
        "kid": "k1",
        "tenant": "acme",
        "trajectory": "run-1",
        "scope": {
            "read": ["/tmp", "/workspace"],
            "write": ["/tmp", "/workspace"],
            "execute": ["/"],
            "connect": [],
        },
        "deny": ["/workspace/.git/hooks"],
        "tools": ["bash_execute", "file_edit", "file_view", "grep_search"],
        "system": {"profile": "agent", "images": ["host"], "tier_min": "container"},
        "per_call": {"wall_ms": 300_000, "output_bytes": 67_108_864},
        "per_lease": {
            "memory_bytes": 2_147_483_648,
            "cpu_millis": 2000,
            "pids": 512,
            "disk_bytes": 2_147_483_648,
            "inodes": 200_000,
            "sandboxes": 4,
            "parallel": 8,
        },
        "total": {"calls": MAX, "cost_micro": MAX, "cpu_ms": MAX, "egress_bytes": MAX},
        "depth": 8,
        "checks": [],
        "approve": [],
        "lease": None,
        "not_before_s": NOW - 60,
        "not_after_s": NOW + 3600,
    }
    return changed(block, *changes)


def child(parent: Block, *changes: Change) -> Block:
    block = {k: v for k, v in parent.items() if k not in ("v", "kid", "tenant", "trajectory")}
    return changed({**block, "depth": parent["depth"] - 1}, *changes)


def changed(block: Block, *changes: Change) -> Block:
    block = copy.deepcopy(block)
    for change in changes:
        change(block)
    return block


def put(path: str, value: Any) -> Change:
    def change(block: Block) -> None:
        *above, last = path.split(".")
        for name in above:
            block = block[name]
        block[last] = value

    return change


def drop(path: str) -> Change:
    def change(block: Block) -> None:
        *above, last = path.split(".")
        for name in above:
            block = block[name]
        del block[last]

    return change


def valid(name: str, blocks: list[Block], kid: str = "k1", tenant: str = "acme") -> Block:
    raws = [canonical(block) for block in blocks]
    made = signatures(raws, tenant_key(kid, tenant))
    last = blocks[-1]
    return {
        "name": name,
        "token": text(raws, made[-1]),
        "verdict": "valid",
        "code": None,
        "rule": None,
        "permit": {
            "tenant": tenant,
            "trajectory": blocks[0]["trajectory"],
            "chain": [hashlib.sha256(one).hexdigest()[:32] for one in made],
            "lease": last["lease"],
            "not_after_s": last["not_after_s"],
            "tools": last["tools"],
            "read": last["scope"]["read"],
        },
    }


def bad(name: str, code: str, token: str, rule: str | None = None) -> Block:
    return {
        "name": name,
        "token": token,
        "verdict": "invalid",
        "code": code,
        "rule": rule,
        "permit": None,
    }


def bad_blocks(name: str, code: str, blocks: list[Block], rule: str | None = None) -> Block:
    return bad(name, code, sign([canonical(block) for block in blocks]), rule)


def vectors() -> list[Block]:
    base = root()
    narrow = child(base, put("tools", ["file_view"]), put("scope.write", []))
    leased = child(narrow, put("lease", LEASE), put("not_after_s", NOW + 600))
    return [
        *valid_vectors(base, narrow, leased),
        *form_vectors(base, narrow),
        *signature_vectors(base, narrow, leased),
        *unsupported_vectors(base),
        *wider_vectors(base, narrow, leased),
        bad_blocks("not yet valid", "token_not_yet_valid", [root(put("not_before_s", NOW + 1))]),
        bad_blocks("expired", "token_expired", [root(put("not_after_s", NOW))]),
        bad_blocks(
            "parent fresh, child expired",
            "token_expired",
            [base, child(base, put("not_after_s", NOW - 1))],
        ),
        bad_blocks(
            "parent not yet valid, child neither",
            "token_not_yet_valid",
            [root(put("not_before_s", NOW + 9)), child(root(put("not_before_s", NOW + 9)))],
        ),
    ]


def valid_vectors(base: Block, narrow: Block, leased: Block) -> list[Block]:
    longest = [root(put("depth", 16))]
    while len(longest) < 16:
        longest.append(child(longest[-1]))
    return [
        valid("root alone", [base]),
        valid("root, second key", [root(put("kid", "k2"))], kid="k2"),
        valid("root, another tenant", [root(put("tenant", "other.org"))], tenant="other.org"),
        valid("narrowed once", [base, narrow]),
        valid("bound to a lease", [base, narrow, leased]),
        valid("narrowed below a lease", [base, leased, child(leased, put("tools", []))]),
        valid("sixteen blocks", longest),
        valid(
            "subtrees and a name that is not ASCII",
            [base, child(base, put("scope.read", ["/workspace/é\\xff"]), put("scope.write", []))],
        ),
        valid("valid until the next second", [root(put("not_after_s", NOW + 1))]),
        valid("valid from this second", [root(put("not_before_s", NOW))]),
        valid("nothing granted at all", [root(*NOTHING)]),
    ]


NOTHING: list[Change] = [
    put("scope.read", []),
    put("scope.write", []),
    put("scope.execute", []),
    put("tools", []),
    put("system.images", []),
    put("depth", 0),
]


def form_vectors(base: Block, narrow: Block) -> list[Block]:
    raw = canonical(base)
    good = sign([raw])
    malformed, canon = "token_malformed", "token_not_canonical"
    head, body, tail = good.split(".")
    last = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789-_"
    dirty_tail = tail[:-1] + last[last.index(tail[-1]) + 1]
    duplicate = raw.replace(b'{"approve":', b'{"depth":9,"approve":', 1)
    rows = [
        bad("empty", malformed, ""),
        bad("another prefix", malformed, good.replace("stk1", "stk2", 1)),
        bad("no signature", malformed, f"{head}.{body}"),
        bad("signature too short", malformed, f"{head}.{body}.{b64(bytes(31))}"),
        bad("empty part", malformed, f"{head}..{tail}"),
        bad("padded", malformed, good + "="),
        bad("standard base64 alphabet", malformed, f"{head}.{body}.{'+' + tail[1:]}"),
        bad("newline at the end", malformed, good + "\n"),
        bad("space inside", malformed, f"{head}. {body}.{tail}"),
        bad("bits after the last byte", malformed, f"{head}.{body}.{dirty_tail}"),
        bad("not JSON", malformed, sign([b"{"])),
        bad("not an object", malformed, sign([b"[]"])),
        bad("not UTF-8", malformed, sign([raw.replace(b"run-1", b"run-\xff")])),
        bad("duplicate key", malformed, sign([duplicate])),
        bad("fraction", malformed, sign([raw.replace(b'"depth":8', b'"depth":8.0')])),
        bad("integer beyond 2^53-1", malformed, sign([raw.replace(str(MAX).encode(), b"9" * 17)])),
        bad("white space in a block", canon, sign([raw.replace(b":", b": ", 1)])),
        bad("escaped letter", canon, sign([raw.replace(b"file_view", b"file_vie\\u0077")])),
        bad("keys out of order", canon, sign([json.dumps(base, separators=(",", ":")).encode()])),
        bad("65,537 characters", "token_too_long", good + "A" * (65_537 - len(good))),
    ]
    seventeen = [root(put("depth", 16))]
    while len(seventeen) < 17:
        seventeen.append(child(seventeen[-1], put("depth", 0)))
    rows.append(bad_blocks("seventeen blocks", "token_too_long", seventeen))
    for name, rule, change in (
        ("unknown field", "admin", put("admin", True)),
        ("unknown field below", "scope.delete", put("scope.delete", [])),
        ("component missing", "deny", drop("deny")),
        ("component missing below", "per_lease.pids", drop("per_lease.pids")),
        ("lease left out", "lease", drop("lease")),
        ("tenant missing", "tenant", drop("tenant")),
        ("wrong type", "depth", put("depth", "8")),
        ("boolean for an integer", "depth", put("depth", True)),
        ("negative", "per_lease.pids", put("per_lease.pids", -1)),
        ("string for a list", "tools", put("tools", "file_view")),
        ("unknown profile", "system.profile", put("system.profile", "root")),
        ("version 2", "v", put("v", 2)),
        ("tenant with a slash", "tenant", put("tenant", "a/b")),
        ("relative path", "scope.read", put("scope.read", ["workspace"])),
        ("path with dots", "scope.read", put("scope.read", ["/workspace/../etc"])),
        ("path with an empty component", "scope.read", put("scope.read", ["/workspace//a"])),
        ("path with NUL", "scope.read", put("scope.read", ["/workspace/\\x00"])),
        ("write outside read", "scope.write", put("scope.read", ["/tmp"])),
        ("host with a port", "scope.connect", put("scope.connect", [host("a.org:80")])),
        ("host that is an address", "scope.connect", put("scope.connect", [host("0x7f.1")])),
    ):
        rows.append(bad_blocks(name, malformed, [root(change)], rule))
    for name, change in (
        ("trailing slash", put("scope.read", ["/tmp", "/workspace/"])),
        ("needless escape", put("scope.read", ["/tmp", "/workspac\\x65"])),
        ("list out of order", put("tools", ["grep_search", "file_view"])),
        ("duplicate in a list", put("tools", ["file_view", "file_view"])),
        ("prefix below another", put("scope.read", ["/tmp", "/workspace", "/workspace/a"])),
        ("host in capitals", put("scope.connect", [host("A.org")])),
    ):
        rows.append(bad_blocks(name, canon, [root(change)]))
    rows.append(
        bad_blocks("root field in a child", malformed, [base, {**narrow, "tenant": "x"}], "tenant")
    )
    return rows


def host(name: str) -> Block:
    return {"kind": "host", "host": name, "ports": [443], "tls": True}


def signature_vectors(base: Block, narrow: Block, leased: Block) -> list[Block]:
    code = "bad_signature"
    raws = [canonical(block) for block in (base, narrow, leased)]
    made = signatures(raws, tenant_key("k1", "acme"))
    flipped = bytes([made[2][0] ^ 1]) + made[2][1:]
    side = canonical(child(base, put("tools", ["grep_search"])))
    wrong_tenant = signatures(raws[:1], tenant_key("k1", "other"))[-1]
    wrong_key = signatures(raws[:1], tenant_key("k2", "acme"))[-1]
    unknown = canonical(root(put("kid", "k9")))
    wider = canonical(child(base, put("depth", 9)))
    budget = canonical(root(put("total.calls", 5)))
    return [
        bad("signature flipped", code, text(raws, flipped)),
        bad("last block removed", code, text(raws[:2], made[2])),
        bad("middle block removed", code, text([raws[0], raws[2]], made[2])),
        bad("blocks reordered", code, text([raws[0], raws[2], raws[1]], made[2])),
        bad("block spliced in from another chain", code, text([raws[0], side, raws[2]], made[2])),
        bad("block appended without signing", code, text(raws, made[1])),
        bad("block changed", code, text([raws[0], side], made[1])),
        bad("key of another tenant", code, text(raws[:1], wrong_tenant)),
        bad("secret of another key", code, text(raws[:1], wrong_key)),
        bad("wider block, signature wrong", code, text([raws[0], wider], made[1])),
        bad("unsupported component, signature wrong", code, text([budget], made[0])),
        bad("unknown key", "token_unknown_key", text([unknown], bytes(32))),
    ]


def unsupported_vectors(base: Block) -> list[Block]:
    code = "token_unsupported"
    cidr = {"kind": "cidr", "cidr": "10.0.0.0/8", "ports": [53]}
    broker = {"kind": "broker", "name": "git", "methods": ["GET"], "paths": ["/repo"]}
    repo = [put("scope.read", ["/tmp", "/workspace", "repo:acme/app"])]
    return [
        bad_blocks("check", code, [root(put("checks", ["x"]))], "checks"),
        bad_blocks("approval", code, [root(put("approve", ["x"]))], "approve"),
        bad_blocks("host", code, [root(put("scope.connect", [host("a.org")]))], "scope.connect"),
        bad_blocks("network", code, [root(put("scope.connect", [cidr]))], "scope.connect"),
        bad_blocks("broker", code, [root(put("scope.connect", [broker]))], "scope.connect"),
        bad_blocks("repository", code, [root(*repo)], "scope.read"),
        bad_blocks("repository denied", code, [root(put("deny", ["repo:a/b"]))], "deny"),
        *(
            bad_blocks(f"budget of {name}", code, [root(put(f"total.{name}", 5))], f"total.{name}")
            for name in ("calls", "cost_micro", "cpu_ms", "egress_bytes")
        ),
        bad_blocks(
            "budget in a child", code, [base, child(base, put("total.calls", 5))], "total.calls"
        ),
    ]


def wider_vectors(base: Block, narrow: Block, leased: Block) -> list[Block]:
    tight = root(
        put("scope.read", ["/workspace/a"]),
        put("scope.write", ["/workspace/a"]),
        put("scope.execute", ["/workspace/a"]),
        put("tools", ["file_view"]),
        put("system", {"profile": "strict", "images": ["host"], "tier_min": "gvisor"}),
    )
    fixed = changed(base, put("scope.write", ["/workspace"]))
    rows: list[tuple[str, Block, Change]] = [
        ("scope.read", tight, put("scope.read", ["/workspace"])),
        ("scope.read", tight, put("scope.read", ["/workspace/a", "/workspace/ab"])),
        ("scope.write", fixed, put("scope.write", ["/tmp"])),
        ("scope.execute", tight, put("scope.execute", ["/"])),
        ("deny", base, put("deny", [])),
        ("deny", base, put("deny", ["/workspace/.git/hooks/pre-commit"])),
        ("tools", tight, put("tools", ["file_edit", "file_view"])),
        ("system.profile", tight, put("system.profile", "agent")),
        ("system.images", tight, put("system.images", ["debian", "host"])),
        ("system.tier_min", tight, put("system.tier_min", "container")),
        ("depth", base, put("depth", 8)),
        ("depth", base, put("depth", 9)),
        ("lease", leased, put("lease", None)),
        ("lease", leased, put("lease", {**LEASE, "generation": 2})),
        ("not_before_s", base, put("not_before_s", 0)),
        ("not_after_s", base, put("not_after_s", NOW + 3601)),
    ]
    for group in ("per_call", "per_lease"):
        rows += [(f"{group}.{k}", base, put(f"{group}.{k}", n + 1)) for k, n in base[group].items()]
    made: list[Block] = []
    for rule, parent, change in rows:
        block = child(parent, change)
        chain = [base, narrow, parent, block] if parent is leased else [parent, block]
        name = f"wider {rule}, {len([1 for one in made if one['rule'] == rule]) + 1}"
        made.append(bad_blocks(name, "wider_block", chain, rule))
    made.append(
        bad_blocks(
            "wider than the parent, not than the root",
            "wider_block",
            [base, narrow, child(narrow, put("tools", ["file_edit", "file_view"]))],
            "tools",
        )
    )
    return made


def document() -> str:
    value = {
        "keys": {kid: secret.hex() for kid, secret in KEYS.items()},
        "now_s": NOW,
        "vectors": vectors(),
    }
    return json.dumps(value, indent=1, ensure_ascii=True) + "\n"


if __name__ == "__main__":
    TARGET.write_text(document(), encoding="ascii")
