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
OTHER = {"id": "ls_00112233445566bb", "generation": 1}

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
            "checks": last["checks"],
            "approve": last["approve"],
            "totals": [block["total"] for block in blocks],
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
        valid(
            "bound to a lease below another",
            [base, narrow, leased, child(leased, put("lease", OTHER))],
        ),
        valid("sixteen blocks", longest),
        valid(
            "subtrees and a name that is not ASCII",
            [base, child(base, put("scope.read", ["/workspace/é\\xff"]), put("scope.write", []))],
        ),
        valid("valid until the next second", [root(put("not_after_s", NOW + 1))]),
        valid("valid from this second", [root(put("not_before_s", NOW))]),
        valid("nothing granted at all", [root(*NOTHING)]),
        *valid_conditions(base),
    ]


def pattern(text: str, tool: str = "bash_execute", argument: str = "command") -> Block:
    return {"kind": "pattern", "tool": tool, "argument": argument, "pattern": text}


def one_of(*values: str, argument: str = "command") -> Block:
    return {"kind": "one_of", "tool": "bash_execute", "argument": argument, "values": [*values]}


def between(minimum: int, maximum: int) -> Block:
    return {
        "kind": "range",
        "tool": "file_view",
        "argument": "limit",
        "minimum": minimum,
        "maximum": maximum,
    }


def prefix(*paths: str) -> Block:
    return {"kind": "prefix", "tool": "file_view", "argument": "path", "paths": [*paths]}


def rule(tool: str, argument: str | None = None, text: str | None = None) -> Block:
    return {"tool": tool, "argument": argument, "pattern": text}


def ordered(*items: Block) -> list[Block]:
    return sorted(items, key=canonical)


def valid_conditions(base: Block) -> list[Block]:
    every = ordered(
        pattern("git (status|log)( --oneline)?"),
        one_of("make", "make test"),
        between(1, 100),
        prefix("/tmp", "/workspace/src"),
    )
    rules = ordered(rule("file_edit"), rule("bash_execute", "command", "git push.*"))
    checked = child(base, put("checks", every[:2]), put("approve", rules[:1]))
    spent = child(base, put("total.calls", 100), put("total.cost_micro", 0))
    return [
        valid("a check of each kind", [root(put("checks", every))]),
        valid("approval of a tool, and of an argument", [root(put("approve", rules))]),
        valid(
            "checks and approvals added by a child",
            [base, checked, child(checked, put("checks", every), put("approve", rules))],
        ),
        valid("patterns of RE2 syntax", [root(put("checks", ordered(*map(pattern, PATTERNS))))]),
        valid("a range of negative numbers", [root(put("checks", [between(-MAX, -1)]))]),
        valid("a budget of each kind", [root(*(put(f"total.{name}", 5) for name in TOTAL))]),
        valid(
            "budgets that become smaller",
            [base, spent, child(spent, put("total.calls", 99), put("total.cpu_ms", 7))],
        ),
    ]


TOTAL = ("calls", "cost_micro", "cpu_ms", "egress_bytes")
PATTERNS = (
    "a",
    "a|b",
    "(?i)make [a-z]+",
    "(?s).*",
    "[^/]{1,100}",
    "\\pL+",
    "\\Qa.b\\E",
    "(?P<name>x)*?",
    "é\n",
    "^a$",
)
# Each needs more than linear time, more memory than a pattern may have, or can't be read.
NO_PATTERNS = (
    ("back-reference", "(a*)\\1"),
    ("named back-reference", "(?P<x>a)(?P=x)"),
    ("look-ahead", "(?=a)a"),
    ("negative look-ahead", "(?!a)b"),
    ("look-behind", "(?<=a)b"),
    ("atomic group", "(?>a+)b"),
    ("possessive quantifier", "a++b"),
    ("recursion", "(a(?R)?b)"),
    ("conditional", "(a)?(?(1)b|c)"),
    ("too large a program", "(?:\\pL{50}){19}"),
    ("too many repetitions", "a{1001}"),
    ("nested repetitions", "(?:(?:a{100}){100}){100}"),
    ("open bracket", "[a"),
    ("open group", "(a"),
    ("lone star", "*"),
    ("unknown escape", "\\y"),
)


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
    for name, place, change in (
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
        rows.append(bad_blocks(name, malformed, [root(change)], place))
    for name, change in (
        ("trailing slash", put("scope.read", ["/tmp", "/workspace/"])),
        ("needless escape", put("scope.read", ["/tmp", "/workspac\\x65"])),
        ("list out of order", put("tools", ["grep_search", "file_view"])),
        ("duplicate in a list", put("tools", ["file_view", "file_view"])),
        ("prefix below another", put("scope.read", ["/tmp", "/workspace", "/workspace/a"])),
        ("host in capitals", put("scope.connect", [host("A.org")])),
        ("checks out of order", put("checks", [pattern("b"), pattern("a")])),
        ("a check twice", put("checks", [pattern("a"), pattern("a")])),
        ("values out of order", put("checks", [one_of("b", "a")])),
        ("a value twice", put("checks", [one_of("a", "a")])),
        ("value that is a path, spelled otherwise", put("checks", [one_of("a", argument="cwd")])),
        ("checked prefix with a trailing slash", put("checks", [prefix("/workspace/")])),
        ("checked prefix below another", put("checks", [prefix("/workspace", "/workspace/a")])),
        ("approvals out of order", put("approve", [rule("x"), rule("a")])),
        ("an approval twice", put("approve", [rule("x"), rule("x")])),
    ):
        rows.append(bad_blocks(name, canon, [root(change)]))
    rows += condition_vectors(base)
    rows.append(
        bad_blocks("root field in a child", malformed, [base, {**narrow, "tenant": "x"}], "tenant")
    )
    return rows


def condition_vectors(base: Block) -> list[Block]:
    rows: list[Block] = []
    code = "token_malformed"
    for name, text in NO_PATTERNS:
        rows.append(bad_blocks(name, code, [root(put("checks", [pattern(text)]))], "checks"))
    approved = child(base, put("approve", [rule("x", "command", "(?=a)")]))
    rows.append(bad_blocks("look-ahead in an approval", code, [base, approved], "approve"))
    for name, place, change in (
        ("a range without numbers", "checks", put("checks", [between(2, 1)])),
        ("checked prefix that is relative", "checks", put("checks", [prefix("a")])),
        ("checked prefix with dots", "checks", put("checks", [prefix("/workspace/..")])),
        ("value that is a path with dots", "checks", put("checks", [one_of("..", argument="cwd")])),
        (
            "approval with a pattern and no argument",
            "approve",
            put("approve", [rule("x", None, "a")]),
        ),
        ("approval with an argument and no pattern", "approve", put("approve", [rule("x", "a")])),
        ("check that is a text", "checks.0", put("checks", ["x"])),
        ("approval that is a text", "approve.0", put("approve", ["x"])),
        ("check of an unknown kind", "checks.0", put("checks", [{**pattern("a"), "kind": "glob"}])),
        ("check without a kind", "checks.0", put("checks", [rule("x", "command", "a")])),
        (
            "check with another field",
            "checks.0.pattern.flags",
            put("checks", [{**pattern("a"), "flags": "i"}]),
        ),
        ("check without values", "checks.0.one_of.values", put("checks", [one_of()])),
        ("check without prefixes", "checks.0.prefix.paths", put("checks", [prefix()])),
        ("empty pattern", "checks.0.pattern.pattern", put("checks", [pattern("")])),
        ("pattern of 513", "checks.0.pattern.pattern", put("checks", [pattern("a" * 513)])),
        ("65 checks", "checks", put("checks", ordered(*(pattern(f"{n:02}") for n in range(65))))),
        (
            "range of a text",
            "checks.0.range.minimum",
            put("checks", [{**between(1, 2), "minimum": "1"}]),
        ),
        (
            "approval without a pattern's key",
            "approve.0.pattern",
            put("approve", [{"tool": "x", "argument": None}]),
        ),
        ("budget missing", "total.calls", drop("total.calls")),
        ("budget below zero", "total.calls", put("total.calls", -1)),
        ("budget of another kind", "total.tokens", put("total.tokens", 1)),
    ):
        rows.append(bad_blocks(name, code, [root(change)], place))
    return rows


def host(name: str) -> Block:
    return {"kind": "host", "host": name, "ports": [443], "tls": True}


def signed(base: Block, change: Change) -> bytes:
    """The signature of a chain of `base` and a child changed so."""
    raws = [canonical(base), canonical(child(base, change))]
    return signatures(raws, tenant_key("k1", "acme"))[-1]


def signature_vectors(base: Block, narrow: Block, leased: Block) -> list[Block]:
    code = "bad_signature"
    raws = [canonical(block) for block in (base, narrow, leased)]
    made = signatures(raws, tenant_key("k1", "acme"))
    flipped = bytes([made[2][0] ^ 1]) + made[2][1:]
    side = canonical(child(base, put("tools", ["grep_search"])))
    root_fields = {key: base[key] for key in ("v", "kid", "tenant", "trajectory")}
    orphan = canonical({**narrow, **root_fields})
    rootless = canonical(child(base))
    second = canonical(root(put("trajectory", "run-2")))
    key = tenant_key("k1", "acme")
    other = signatures([second, raws[1]], key)[-1]
    unchecked, richer = canonical(child(base)), canonical(child(base, put("total.calls", 6)))
    with_check = signed(base, put("checks", [pattern("a")]))
    with_rule = signed(base, put("approve", [rule("x")]))
    with_budget = signed(base, put("total.calls", 5))
    wrong_tenant = signatures(raws[:1], tenant_key("k1", "other"))[-1]
    wrong_key = signatures(raws[:1], tenant_key("k2", "acme"))[-1]
    unknown = canonical(root(put("kid", "k9")))
    wider = canonical(child(base, put("depth", 9)))
    unsupported = canonical(root(put("scope.connect", [host("a.org")])))
    return [
        bad("signature flipped", code, text(raws, flipped)),
        bad("last block removed", code, text(raws[:2], made[2])),
        bad("all blocks but the root removed", code, text(raws[:1], made[2])),
        bad("root removed, its fields moved", code, text([orphan, raws[2]], made[2])),
        bad("middle block removed", code, text([raws[0], raws[2]], made[2])),
        bad("blocks reordered", code, text([raws[0], raws[2], raws[1]], made[2])),
        bad("root and child exchanged", code, text([orphan, rootless], made[1])),
        bad("block spliced in from another chain", code, text([raws[0], side, raws[2]], made[2])),
        bad("tail of another chain", code, text([raws[0], raws[1]], other)),
        bad("root of another chain", code, text([second, raws[1], raws[2]], made[2])),
        bad("a block twice", code, text([raws[0], raws[1], raws[1], raws[2]], made[2])),
        bad("check taken out of a block", code, text([raws[0], unchecked], with_check)),
        bad("approval taken out of a block", code, text([raws[0], unchecked], with_rule)),
        bad("budget raised in a block", code, text([raws[0], richer], with_budget)),
        bad("block appended without signing", code, text(raws, made[1])),
        bad("block changed", code, text([raws[0], side], made[1])),
        bad("key of another tenant", code, text(raws[:1], wrong_tenant)),
        bad("secret of another key", code, text(raws[:1], wrong_key)),
        bad("wider block, signature wrong", code, text([raws[0], wider], made[1])),
        bad("unsupported component, signature wrong", code, text([unsupported], made[0])),
        bad("unknown key", "token_unknown_key", text([unknown], bytes(32))),
    ]


def unsupported_vectors(base: Block) -> list[Block]:
    code = "token_unsupported"
    cidr = {"kind": "cidr", "cidr": "10.0.0.0/8", "ports": [53]}
    broker = {"kind": "broker", "name": "git", "methods": ["GET"], "paths": ["/repo"]}
    repo = [put("scope.read", ["/tmp", "/workspace", "repo:acme/app"])]
    return [
        bad_blocks("host", code, [root(put("scope.connect", [host("a.org")]))], "scope.connect"),
        bad_blocks("network", code, [root(put("scope.connect", [cidr]))], "scope.connect"),
        bad_blocks("broker", code, [root(put("scope.connect", [broker]))], "scope.connect"),
        bad_blocks("repository", code, [root(*repo)], "scope.read"),
        bad_blocks("repository denied", code, [root(put("deny", ["repo:a/b"]))], "deny"),
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
    checks = ordered(pattern("a"), prefix("/workspace"))
    checked = changed(base, put("checks", checks), put("approve", [rule("run")]))
    budgets = changed(base, *(put(f"total.{name}", 5) for name in TOTAL))
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
        ("checks", checked, put("checks", [])),
        ("checks", checked, put("checks", checks[:1])),
        ("checks", checked, put("checks", ordered(checks[0], prefix("/workspace/a")))),
        ("checks", checked, put("checks", ordered(checks[0], prefix("/tmp", "/workspace")))),
        ("approve", checked, put("approve", [])),
        ("approve", checked, put("approve", [rule("run", "cwd", "/tmp/.*")])),
        ("not_before_s", base, put("not_before_s", 0)),
        ("not_after_s", base, put("not_after_s", NOW + 3601)),
    ]
    for group in ("per_call", "per_lease"):
        rows += [(f"{group}.{k}", base, put(f"{group}.{k}", n + 1)) for k, n in base[group].items()]
    rows += [(f"total.{k}", budgets, put(f"total.{k}", 6)) for k in TOTAL]
    rows.append(("total.calls", budgets, put("total.calls", MAX)))
    made: list[Block] = []
    for place, parent, change in rows:
        block = child(parent, change)
        chain = [base, narrow, parent, block] if parent is leased else [parent, block]
        name = f"wider {place}, {len([1 for one in made if one['rule'] == place]) + 1}"
        made.append(bad_blocks(name, "wider_block", chain, place))
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
