r"""What a token and a call come to, in the plainest way: the reference of the soak.

Written from docs/capabilities.md alone. Nothing of the package is imported, and nothing is clever:
JSON is read by the standard library and compared by hand, paths are lists of components, and a call
is allowed if every block of the chain, looked at by itself, allows it. What "narrower" means is not
asked here at all: a chain that the package accepts is held against its blocks one by one.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import hmac
import json
import re
from typing import Any

Block = dict[str, Any]

MAX = 2**53 - 1
CALL = {"wall_ms", "output_bytes"}
LEASE = {"memory_bytes", "cpu_millis", "pids", "disk_bytes", "inodes", "sandboxes", "parallel"}
TOTAL = {"calls", "cost_micro", "cpu_ms", "egress_bytes"}
ROOT_ONLY = {"v", "kid", "tenant", "trajectory"}
FIELDS = {
    *("scope", "deny", "tools", "system", "per_call", "per_lease", "total", "depth"),
    *("checks", "approve", "lease", "not_before_s", "not_after_s"),
}
CHECKS = {"pattern": {"pattern"}, "one_of": {"values"}, "prefix": {"paths"}}
CHECKS["range"] = {"minimum", "maximum"}
PROFILES = ("strict", "agent")
TIERS = ("container", "gvisor")
DEFAULTS: dict[str, dict[str, Any]] = {
    "bash_execute": {"timeout_ms": 30_000},
    "file_view": {"offset": 1, "limit": 200},
    "file_edit": {"allow_multiple": False, "expected_version": None},
    "grep_search": {"glob": None},
    "run": {"cwd": "/workspace", "timeout_ms": None},
}
# A whole number or a flag written as a string is taken for what it says, in these.
NUMBERS = {("bash_execute", "timeout_ms"), ("file_view", "offset"), ("file_view", "limit")}
FLAGS = {("file_edit", "allow_multiple")}


class Refused(Exception):
    """The reference refuses, and says why."""


def need(holds: object, why: str) -> None:
    if not holds:
        raise Refused(why)


# --- tokens


def genuine(token: str, keys: dict[str, bytes], now_s: int) -> tuple[list[Block], list[str]]:
    """The blocks of a token that is what it should be, and their ids."""
    prefix, *parts = token.split(".")
    need(prefix == "stk1" and 2 <= len(parts) <= 17 and len(token) <= 65_536, "no token")
    *raws, carried = [unbase64(part) for part in parts]
    blocks = [read(raw) for raw in raws]
    for index, block in enumerate(blocks):
        try:
            well_formed(block, root=index == 0)
        except (TypeError, KeyError, AttributeError):
            raise Refused("another type somewhere") from None
    need(blocks[0]["kid"] in keys, "the key is unknown")
    secret = hmac.digest(bytes(32), keys[blocks[0]["kid"]], "sha256")
    info = b"stockade token key 1\x00" + blocks[0]["tenant"].encode() + b"\x01"
    signature = hmac.digest(secret, info, "sha256")
    ids = []
    for raw in raws:
        signature = hmac.digest(signature, raw, "sha256")
        ids.append(hashlib.sha256(signature).hexdigest()[:32])
    need(signature == carried, "the signature does not fit")
    for index, block in enumerate(blocks):
        need(block["not_before_s"] <= now_s < block["not_after_s"], "the time is not now")
        need(len(blocks) - 1 - index <= block["depth"], "narrowed too often")
    return blocks, ids


def unbase64(part: str) -> bytes:
    try:
        raw = base64.b64decode(part + "=" * (-len(part) % 4), altchars=b"-_", validate=True)
    except ValueError:
        raise Refused("not base64url") from None
    need(raw and base64.urlsafe_b64encode(raw).decode().rstrip("=") == part, "a second spelling")
    return raw


def read(raw: bytes) -> Block:
    def pairs(items: list[tuple[str, Any]]) -> Any:
        need(len({name for name, _ in items}) == len(items), "a key twice")
        return dict(items)

    try:
        block = json.loads(raw, object_pairs_hook=pairs)
        again = json.dumps(block, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
        need(again.encode() == raw, "not canonical")
    except (ValueError, RecursionError):
        raise Refused("not JSON") from None
    need(isinstance(block, dict), "no object")
    return dict(block)


def well_formed(block: Block, *, root: bool) -> None:
    need(set(block) == FIELDS | (ROOT_ONLY if root else set()), "other fields")
    if root:
        need(block["v"] == 1 and block["v"] is not True, "another version")
        need(all(isinstance(block[key], str) for key in ROOT_ONLY - {"v"}), "no names")
        need(re.fullmatch("[a-z0-9][a-z0-9_.-]{0,62}", block["tenant"]), "no tenant")
    scope, system = block["scope"], block["system"]
    need(set(scope) == {"read", "write", "execute", "connect"} and scope["connect"] == [], "scope")
    for paths in (scope["read"], scope["write"], scope["execute"], block["deny"]):
        texts(paths)
        for path in paths:
            granted_path(path)
        for path in paths:
            need([other for other in paths if within(path, other)] == [path], "one covers another")
    for path in scope["write"]:
        need(covered(path, scope["read"]), "write without read")
    need(set(system) == {"profile", "images", "tier_min"}, "system")
    texts(block["tools"])
    texts(system["images"])
    need(system["profile"] in PROFILES and system["tier_min"] in TIERS, "profile or tier")
    for name, fields in (("per_call", CALL), ("per_lease", LEASE), ("total", TOTAL)):
        need(isinstance(block[name], dict) and set(block[name]) == fields, name)
        for value in block[name].values():
            integer(value, 0, MAX)
    integer(block["depth"], 0, 16)
    integer(block["not_before_s"], 0, MAX)
    integer(block["not_after_s"], 0, MAX)
    if block["lease"] is not None:
        need(set(block["lease"]) == {"id", "generation"}, "lease")
        need(re.fullmatch("ls_[0-9a-f]{16}", block["lease"]["id"]), "lease id")
        integer(block["lease"]["generation"], 1, MAX)
    for key in ("checks", "approve"):
        need(isinstance(block[key], list) and len(block[key]) <= 64, key)
        spelled = [json.dumps(item, sort_keys=True, ensure_ascii=False) for item in block[key]]
        need(len(set(spelled)) == len(spelled), "one twice")
    for check in block["checks"]:
        need(set(check) == {"kind", "tool", "argument"} | CHECKS[check["kind"]], "check")
    for rule in block["approve"]:
        need(set(rule) == {"tool", "argument", "pattern"}, "rule")


def integer(value: object, least: int, most: int) -> None:
    need(type(value) is int and least <= value <= most, "no integer or out of range")


def texts(values: object) -> None:
    need(isinstance(values, list) and len(values) <= 64, "no list, or a long one")
    assert isinstance(values, list)
    need(all(isinstance(text, str) for text in values), "no text")
    need(values == sorted(set(values)), "not a set in order")


# --- paths


def granted_path(path: str) -> None:
    need(path.startswith("/") and len(path.encode()) <= 4096, "not absolute")
    parts = path.split("/")[1:]
    need(path == "/" or not {"", ".", ".."} & set(parts), "no clean path")
    need(re.fullmatch(r"(?:[^\\\x00-\x1f\x7f]|\\x5c|\\x[89a-f][0-9a-f])*", path), "characters")


@functools.cache
def components(text: str) -> list[bytes]:
    r"""Of a granted path or of one that a call names; `\xNN` stands for a byte."""
    raw = re.sub(rb"\\x([0-9a-f]{2})", lambda found: bytes([int(found[1], 16)]), text.encode())
    whole = raw if raw.startswith(b"/") else b"/workspace/" + raw
    return [part for part in whole.split(b"/") if part not in (b"", b".")]


def within(path: str, prefix: str) -> bool:
    inner, outer = components(path), components(prefix)
    return inner[: len(outer)] == outer


def covered(path: str, prefixes: list[str]) -> bool:
    return any(within(path, prefix) for prefix in prefixes)


def may(block: Block, right: str, path: str) -> bool:
    """Whether one block gives a right on a path. One with `..` leads where only the resolver
    knows; before that it is enough that the right is given on anything."""
    granted = block["scope"][right]
    if b".." in components(path):
        return bool(granted)
    return covered(path, granted) and not (right == "write" and covered(path, block["deny"]))


# --- calls


def filled(tool: str, arguments: dict[str, Any]) -> dict[str, Any]:
    values = {**DEFAULTS[tool], **arguments}
    for name, value in values.items():
        if (tool, name) in NUMBERS and isinstance(value, str):
            values[name] = int(value)
        if (tool, name) in FLAGS and isinstance(value, str):
            values[name] = {"true": True, "false": False}[value]
    return values


def rights(tool: str, values: dict[str, Any]) -> list[tuple[str, str]]:
    if tool in ("file_view", "grep_search"):
        return [("read", values["path"])]
    if tool == "file_edit":
        return [("read", values["path"]), ("write", values["path"])]
    if tool == "run" and "/" in values["argv"][0]:
        program = values["argv"][0].replace("\\", "\\x5c")
        whole = program if program.startswith("/") else values["cwd"] + "/" + program
        if components(whole)[:1] in ([b"workspace"], [b"tmp"]) and len(components(whole)) > 1:
            return [("execute", whole)]
    return [("execute", "/usr")]


def allows(block: Block, tool: str, arguments: dict[str, Any]) -> bool:
    """Whether one block, by itself, allows a call."""
    values = filled(tool, arguments)
    return (
        tool in block["tools"]
        and all(may(block, right, path) for right, path in rights(tool, values))
        and all(holds(check, values) for check in block["checks"] if check["tool"] == tool)
    )


def waits(block: Block, tool: str, arguments: dict[str, Any]) -> bool:
    """Whether one block, by itself, asks for a person."""
    values = filled(tool, arguments)
    for rule in block["approve"]:
        if rule["tool"] == tool:
            text = as_text(rule["argument"], values)
            if rule["pattern"] is None or text is None or re.fullmatch(rule["pattern"], text):
                return True
    return False


def holds(check: dict[str, Any], values: dict[str, Any]) -> bool:
    text = as_text(check["argument"], values)
    if text is None:
        return False
    match check["kind"]:
        case "pattern":
            return re.fullmatch(check["pattern"], text) is not None
        case "one_of":
            return text in check["values"]
        case "range":
            value = values[check["argument"]]
            return type(value) is int and check["minimum"] <= value <= check["maximum"]
        case _:
            return isinstance(values[check["argument"]], str) and covered(text, check["paths"])


def as_text(argument: str | None, values: dict[str, Any]) -> str | None:
    value = values.get(argument or "")
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return str(value)
    if not isinstance(value, str):
        return None
    if argument not in ("path", "cwd"):
        return value
    parts = components(value)
    return None if b".." in parts else "".join("/" + shown(part) for part in parts) or "/"


def shown(name: bytes) -> str:
    text = name.replace(b"\\", b"\\x5c").decode("utf-8", "backslashreplace")
    return "".join(char if " " <= char != "\x7f" else f"\\x{ord(char):02x}" for char in text)


def bound(
    blocks: list[Block], ids: list[str], lease_id: str, generation: int, chain: tuple[str, ...]
) -> bool:
    """Whether the chain is the lease's own token, or that and blocks which keep its binding."""
    binding, own = {"id": lease_id, "generation": generation}, len(chain)
    return (
        0 < own <= len(blocks)
        and tuple(ids[:own]) == chain
        and all(block["lease"] == binding for block in blocks[own - 1 :])
        and all(block["lease"] != binding for block in blocks[own - 2 : own - 1])
    )
