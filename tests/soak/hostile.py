"""What can be done to a chain: in its text, in its bytes, in its JSON, in the order of its blocks, or
by making one component wider.

Blocks that were changed are mostly signed again, with the issuer's key or what a holder has (the
signature of the block before), so that the change is looked at and not only the signature.
"""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import Any

from tests.soak.chains import (
    IMAGES,
    LEASE_ID,
    TOOLS,
    antichain,
    b64,
    below,
    canonical,
    chain_of,
    key_of,
    path_of,
    sign_all,
    signatures,
    signed,
    text_of,
)
from tests.soak.reference import MAX, Block

JUNK: list[Any] = [None, True, 1.5, -1, MAX + 1, "", "x", [], {}, [""], ["/"], "\ud800", 1e400]


def in_text(dice: Random, blocks: list[Block]) -> str:
    token = sign_all(blocks)
    place = dice.randrange(len(token))
    piece = dice.choice(["A", "Q", ".", "=", "+", "/", "-", " ", "\n", "é", "", "\x00", "AAAA"])
    skip = dice.choice([0, 1, 1, 1, 4])
    return token[:place] + piece + token[place + skip :]


def last_bits(dice: Random, blocks: list[Block]) -> str:
    parts = sign_all(blocks).split(".")
    place = dice.randrange(1, len(parts))
    parts[place] = parts[place][:-1] + dice.choice("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
    return ".".join(parts)


def in_bytes(dice: Random, blocks: list[Block]) -> str:
    raws = [canonical(block) for block in blocks]
    place = dice.randrange(len(raws))
    raw = bytearray(raws[place])
    for _ in range(dice.randint(1, 3)):
        raw[dice.randrange(len(raw))] = dice.choice(b'0123456789"{}[]:,/ax\\ \x00\xff')
    raws[place] = bytes(raw)
    return signed(raws, key_of(blocks[0]))


def in_spelling(dice: Random, blocks: list[Block]) -> str:
    raws = [canonical(block) for block in blocks]
    place = dice.randrange(len(raws))
    text = raws[place].decode()
    before, after = dice.choice(
        [
            (",", ", "),
            ('"depth"', '"depth":16,"depth"'),
            ('{"approve"', '{"x":1,"approve"'),
            ("/", "\\/"),
            ("a", "\\u0061"),
            ('"depth":', '"depth":0'),
            ('"depth":', '"depth":-'),
            ("workspace", "workspace/"),
            ("workspace", "workspace/."),
            ("workspace", "workspace/../"),
            ('"tools":["', '"tools":["run","'),
            ("}", "}}"),
            ("{", "[{"),
            ("}", "} "),
        ]
    )
    raws[place] = text.replace(before, after, 1).encode()
    return signed(raws, key_of(blocks[0]))


def in_structure(dice: Random, blocks: list[Block]) -> str:
    block: Any = dice.choice(blocks)
    while True:
        keys = list(block) if isinstance(block, dict) else list(range(len(block)))
        key = dice.choice(keys)
        inner = block[key]
        if not isinstance(inner, dict | list) or not inner or dice.random() < 0.5:
            break
        block = inner
    what = dice.choice(["value", "value", "drop", "extra"])
    if what == "drop":
        del block[key]
    elif what == "extra" and isinstance(block, dict):
        block[dice.choice(["x", "lease_id", "kid", "v"])] = dice.choice(JUNK)
    else:
        block[key] = dice.choice(JUNK)
    return sign_all(blocks)


def in_order_of_blocks(dice: Random, blocks: list[Block]) -> str:
    raws = [canonical(block) for block in blocks]
    made = signatures(raws, key_of(blocks[0]))
    place = dice.randrange(len(raws))
    match dice.choice(["swap", "drop", "double", "cut", "signed"]):
        case "swap":
            other = dice.randrange(len(raws))
            raws[place], raws[other] = raws[other], raws[place]
        case "drop":
            del raws[place]
        case "double":
            raws.insert(place, raws[place])
        case "cut":
            del raws[place + 1 :]
        case _:
            raws.append(raws[place])
            return text_of(raws, signatures(raws, key_of(blocks[0]))[-1])
    return text_of(raws, made[-1]) if raws else "stk1." + b64(made[-1])


def spliced(dice: Random, blocks: list[Block]) -> str:
    """Blocks of two chains, with a signature of either, or as a holder of the first can sign."""
    others, _ = chain_of(dice)
    place = dice.randint(1, len(blocks))
    raws = [canonical(block) for block in blocks[:place]]
    tail = [canonical(block) for block in others[dice.randint(1, len(others)) :]]
    match dice.choice(["first", "second", "holder"]):
        case "first":
            signature = signatures([canonical(b) for b in blocks], key_of(blocks[0]))[-1]
        case "second":
            signature = signatures([canonical(b) for b in others], key_of(others[0]))[-1]
        case _:
            signature = signatures(raws + tail, key_of(blocks[0]))[-1]
    return text_of(raws + tail, signature)


def widened(dice: Random, blocks: list[Block]) -> str:
    """One component of one block made wider, and signed as the holder of the block before can."""
    block = blocks[dice.randrange(1, len(blocks))]
    scope, system = block["scope"], block["system"]
    match dice.randrange(14):
        case 0:
            right = dice.choice(["read", "write", "execute"])
            scope[right] = antichain([*scope[right], path_of(dice)])
        case 1:
            scope["read"] = scope["write"] = ["/"]
        case 2:
            scope["read"] = antichain([path.rpartition("/")[0] or "/" for path in scope["read"]])
        case 3:
            block["deny"] = [below(dice, path) for path in block["deny"][1:]]
        case 4:
            block["tools"] = sorted({*block["tools"], dice.choice(TOOLS)})
        case 5:
            system["profile"] = "agent"
        case 6:
            system["images"] = IMAGES
        case 7:
            group = block[dice.choice(["per_call", "per_lease", "total"])]
            group[dice.choice(sorted(group))] += dice.choice([1, 1000])
        case 8:
            block["depth"] += dice.choice([1, 2, 5])
        case 9:
            block["checks"] = block["checks"][1:]
        case 10:
            block["approve"] = block["approve"][1:]
        case 11:
            block["lease"] = dice.choice([None, {"id": LEASE_ID[:-1] + "b", "generation": 1}])
        case 12:
            block["not_before_s"] -= dice.choice([1, 1000])
        case _:
            block["not_after_s"] += dice.choice([1, 10_000])
    return sign_all(blocks)


def untidy(dice: Random, blocks: list[Block]) -> str:
    """One list of one block in another form than its normal one; the rest is as plain as can be."""
    for block in blocks:
        block["checks"] = block["approve"] = []
    block = dice.choice(blocks)
    place, name = dice.choice(
        [(block["scope"], right) for right in ("read", "write", "execute")]
        + [(block, "deny"), (block, "tools"), (block["system"], "images")]
    )
    items = place[name]
    match dice.randrange(6):
        case 0:
            items.reverse()
        case 1:
            items += items[:1]
        case 2 if items:
            items.append(items[-1].rstrip("/") + "/b")
        case 3 if items:
            items[-1] += dice.choice(["/", "/.", "/..", "//a", "\x7f", "\\", "\\x2f"])
        case 4:
            block["scope"]["write"] = ["/var"]
        case _:
            items.insert(0, "/")
    return sign_all(blocks)


def other_key(dice: Random, blocks: list[Block]) -> str:
    key = key_of(blocks[0])
    blocks[0][dice.choice(["kid", "tenant", "trajectory"])] = dice.choice(["k1", "k2", "b", "k9"])
    raws = [canonical(block) for block in blocks]
    return signed(raws, key if dice.random() < 0.5 else key_of(blocks[0]))


HOSTILE: dict[str, Callable[[Random, list[Block]], str]] = {
    "text": in_text,
    "last bits": last_bits,
    "bytes": in_bytes,
    "spelling": in_spelling,
    "structure": in_structure,
    "order": in_order_of_blocks,
    "spliced": spliced,
    "widened": widened,
    "widened twice": lambda dice, blocks: widened(dice, blocks) and widened(dice, blocks),
    "untidy": untidy,
    "key": other_key,
}
