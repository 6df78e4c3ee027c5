"""Random cases, genuine and hostile, each a pure function of (seed, number)."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random
from typing import Any

from tests.soak.chains import (
    LEASE_ID,
    NOW,
    call_of,
    canonical,
    chain_of,
    key_of,
    signatures,
    signed,
)
from tests.soak.hostile import HOSTILE


@dataclass(frozen=True)
class Case:
    """`token` is `genuine` or what was made of it. `chain` are the ids of the blocks that the
    lease's own token has."""

    kind: str
    genuine: str
    token: str
    now_s: int
    lease_id: str
    generation: int
    trajectory: str
    chain: tuple[str, ...]
    tool: str
    arguments: dict[str, Any]


def case(seed: int, number: int) -> Case:
    dice = Random(f"{seed}:{number}")
    blocks, own = chain_of(dice)
    raws = [canonical(block) for block in blocks]
    ids = [hashlib.sha256(s).hexdigest()[:32] for s in signatures(raws, key_of(blocks[0]))]
    tool, arguments = call_of(dice, blocks)
    kind = dice.choice(list(HOSTILE)) if dice.random() < 0.6 else "genuine"
    genuine = signed(raws, key_of(blocks[0]))
    token = genuine if kind == "genuine" else HOSTILE[kind](dice, blocks)
    stale = dice.random() < 0.05
    return Case(
        kind=kind,
        genuine=genuine,
        token=token,
        now_s=dice.choice([NOW] * 30 + [NOW - 1000, NOW + 5000]),
        lease_id=LEASE_ID if dice.random() < 0.97 else LEASE_ID[:-1] + "b",
        generation=2 if stale else 1,
        trajectory=dice.choice(["run-1"] * 20 + ["run-1/sub-2", "run-11", "run"]),
        chain=tuple(ids[: own if dice.random() < 0.97 else own - 1]),
        tool=tool,
        arguments=arguments,
    )
