"""Chains as their holders make them, calls under them, and the signing of both kinds of chain."""

from __future__ import annotations

import base64
import copy
import hmac
import json
from collections.abc import Callable
from random import Random
from typing import Any

from tests.soak.reference import CALL, LEASE, MAX, TOTAL, Block, covered

KEYS = {"k1": bytes(range(32)), "k2": bytes(range(32, 64))}
NOW = 1_750_000_000
LEASE_ID = "ls_00112233445566aa"
TOPS = ["/workspace", "/workspace", "/tmp", "/usr", "/"]
NAMES = ["a", "b", "ab", "a-b", ".git", "é", "a.b"]
TOOLS = ["bash_execute", "file_edit", "file_view", "grep_search", "run"]
IMAGES = ["host", "other"]
COMMANDS = ["make", "make test", "ls -l", "rm -rf /", "a", "-n\n"]
PATTERNS = ["[a-z/ ]*", "/workspace(/.*)?", "make.*|ls.*", ".{0,12}", "[^.]*", "[0-9]+"]
SPELLINGS: list[Callable[[str], str]] = [
    lambda p: p,
    lambda p: p,
    lambda p: p.removeprefix("/workspace/") or ".",
    lambda p: p.replace("/", "//"),
    lambda p: p + "/",
    lambda p: p + "/.",
    lambda p: p.replace("/a", "/./a"),
    lambda p: p + "/../b",
    lambda p: p.replace("a", "\\x61"),
    lambda p: p.replace("/a", "\\x2fa"),
    lambda p: p + "/\\x2e\\x2e/b",
    lambda p: p + "\\x5cb",
    lambda p: p + "-evil",
    lambda p: p + "\x00",
    lambda p: p.upper(),
    lambda p: "/proc/self/root" + p,
]


# --- genuine chains


def chain_of(dice: Random) -> tuple[list[Block], int]:
    """A chain, and how many of its blocks are the lease's own token."""
    blocks = [root_of(dice)]
    length = dice.randint(2, 4)
    own = dice.randint(2, length)
    for place in range(1, length):
        block = narrower(dice, blocks[-1])
        if place == own - 1:
            block["lease"] = {"id": LEASE_ID, "generation": 1}
        blocks.append(block)
    return blocks, own


def root_of(dice: Random) -> Block:
    read = antichain([path_of(dice) for _ in range(dice.randint(1, 4))] + ["/workspace"])
    return {
        "v": 1,
        "kid": dice.choice(list(KEYS)),
        "tenant": dice.choice(["acme", "b"]),
        "trajectory": "run-1",
        "scope": {
            "read": read,
            "write": antichain([path for path in read if dice.random() < 0.7]),
            "execute": dice.choice([["/"], ["/usr", "/workspace/a"], ["/usr"], []]),
            "connect": [],
        },
        "deny": antichain(
            [path_of(dice) for _ in range(dice.randint(0, 2)) if dice.random() < 0.3]
        ),
        "tools": sorted(dice.sample(TOOLS, dice.randint(4, 5))),
        "system": {
            "profile": dice.choice(["agent", "strict"]),
            "images": dice.choice([["host"], ["host", "other"]]),
            "tier_min": "container",
        },
        "per_call": {name: dice.randint(1, 10**6) for name in sorted(CALL)},
        "per_lease": {name: dice.randint(1 << 25, 1 << 31) for name in sorted(LEASE)},
        "total": {name: dice.choice([MAX, dice.randint(0, 100)]) for name in sorted(TOTAL)},
        "depth": dice.randint(3, 16),
        "checks": in_order([check_of(dice) for _ in range(dice.randint(0, 1))]),
        "approve": in_order([rule_of(dice) for _ in range(dice.randint(0, 1))]),
        "lease": None,
        "not_before_s": NOW - dice.randint(0, 100),
        "not_after_s": NOW + dice.randint(1, 4000),
    }


def narrower(dice: Random, parent: Block) -> Block:
    block = {k: v for k, v in parent.items() if k not in ("v", "kid", "tenant", "trajectory")}
    block = copy.deepcopy(block)
    scope = block["scope"]
    if dice.random() < 0.4:
        scope["read"] = antichain([below(dice, p) for p in scope["read"] if dice.random() < 0.9])
        scope["write"] = [p for p in scope["write"] if covered(p, scope["read"])]
    if dice.random() < 0.2:
        scope["write"] = antichain([below(dice, path) for path in scope["write"]])
    if dice.random() < 0.2:
        block["deny"] = antichain([*block["deny"], path_of(dice)])
    if dice.random() < 0.2:
        block["tools"] = block["tools"][:-1]
    if dice.random() < 0.2:
        block["system"]["profile"] = "strict"
    if dice.random() < 0.3:
        group = block[dice.choice(["per_call", "per_lease", "total"])]
        group[dice.choice(sorted(group))] //= 2
    if dice.random() < 0.2:
        block["checks"] = in_order([*block["checks"], check_of(dice)])
    if dice.random() < 0.1:
        block["approve"] = in_order([*block["approve"], rule_of(dice)])
    block["depth"] -= 1
    return block


def path_of(dice: Random) -> str:
    parts = [dice.choice(NAMES) for _ in range(dice.randint(0, 2))]
    return "/".join([dice.choice(TOPS).rstrip("/"), *parts]) or "/"


def below(dice: Random, path: str) -> str:
    return path if dice.random() < 0.5 else path.rstrip("/") + "/" + dice.choice(NAMES)


def antichain(paths: list[str]) -> list[str]:
    kept = {p for p in paths if not covered(p, [other for other in paths if other != p])}
    return sorted(kept)


def check_of(dice: Random) -> dict[str, Any]:
    kind = dice.choice(["pattern", "one_of", "range", "prefix"])
    if kind == "range":
        least = dice.randint(0, 300)
        head = {"tool": "file_view", "argument": dice.choice(["offset", "limit"])}
        return {"kind": kind, **head, "minimum": least, "maximum": least + dice.randint(0, 300)}
    if kind == "prefix":
        paths = antichain([path_of(dice), "/workspace"])
        return {"kind": kind, "tool": "file_edit", "argument": "path", "paths": paths}
    tool, argument = dice.choice([("bash_execute", "command"), ("file_view", "path")])
    if kind == "pattern":
        pattern = dice.choice(PATTERNS)
        return {"kind": kind, "tool": tool, "argument": argument, "pattern": pattern}
    values = COMMANDS if argument == "command" else ["/workspace/a", "/workspace/b"]
    return {"kind": kind, "tool": tool, "argument": argument, "values": sorted(values)}


def rule_of(dice: Random) -> dict[str, Any]:
    tool, argument = dice.choice(
        [("run", None), ("bash_execute", "command"), ("file_edit", "path")]
    )
    pattern = None if argument is None else dice.choice(PATTERNS)
    return {"tool": tool, "argument": argument, "pattern": pattern}


def in_order(items: list[dict[str, Any]]) -> list[dict[str, Any]]:
    unique = {canonical(item): item for item in items}
    return [unique[key] for key in sorted(unique)]


# --- calls


def call_of(dice: Random, blocks: list[Block]) -> tuple[str, dict[str, Any]]:
    tool = dice.choice(TOOLS)
    read = [p for p in blocks[-1]["scope"]["read"] if covered(p, ["/workspace", "/tmp"])]
    path = below(dice, dice.choice(read)) if read and dice.random() < 0.7 else path_of(dice)
    path = dice.choice(SPELLINGS)(path) if dice.random() < 0.5 else path
    all_arguments: dict[str, dict[str, Any]] = {
        "bash_execute": {"command": dice.choice(COMMANDS)},
        "file_view": {"path": path},
        "file_edit": {"path": path, "old_str": "a", "new_str": "b"},
        "grep_search": {"pattern": "a", "path": path},
        "run": {"argv": [dice.choice(["make", "./a", path, "../a", "/bin/sh"]), "x"]},
    }
    arguments = all_arguments[tool]
    if tool == "file_view" and dice.random() < 0.5:
        arguments["limit"] = dice.choice([1, 100, "100", 500, 501, -1, True, 1.0, "x"])
    if tool == "run" and dice.random() < 0.3:
        arguments["cwd"] = path
    if dice.random() < 0.03:
        arguments[dice.choice(["path", "tenant", "extra"])] = dice.choice([None, [], {}, "/", 1])
    return (tool if dice.random() < 0.98 else dice.choice(["", "file_delete", tool * 9])), arguments


# --- signing


def canonical(value: Any) -> bytes:
    text = json.dumps(value, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    return text.encode("utf-8", "surrogatepass")


def key_of(root: Block) -> bytes:
    secret = hmac.digest(bytes(32), KEYS.get(str(root.get("kid")), bytes(32)), "sha256")
    info = b"stockade token key 1\x00" + str(root.get("tenant")).encode("utf-8", "replace")
    return hmac.digest(secret, info + b"\x01", "sha256")


def signatures(raws: list[bytes], key: bytes) -> list[bytes]:
    made = []
    for raw in raws:
        key = hmac.digest(key, raw, "sha256")
        made.append(key)
    return made


def sign_all(blocks: list[Block]) -> str:
    return signed([canonical(block) for block in blocks], key_of(blocks[0]))


def signed(raws: list[bytes], key: bytes) -> str:
    return text_of(raws, signatures(raws, key)[-1])


def text_of(raws: list[bytes], signature: bytes) -> str:
    return ".".join(["stk1", *map(b64, raws), b64(signature)])


def b64(raw: bytes) -> str:
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()
