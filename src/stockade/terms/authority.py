"""What the daemon's authority rests on: the root keys that sign tokens, and the blocks revoked."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

MAX_KEYS: Final = 16


@dataclass(frozen=True, slots=True)
class RootKeys:
    """`current` signs new tokens; the others are still accepted. Secrets are 32 bytes by key id,
    and no `repr` shows them."""

    current: str
    secrets: Mapping[str, bytes] = field(repr=False)


@dataclass(frozen=True, slots=True)
class Revocation:
    """A block id whose whole subtree is refused. Times are seconds since the epoch; `not_after_s`
    is the end of the block's own life, None where only its id was known. `revoked_by` is an
    operator's or a tenant's peer as `uid N`."""

    block: str
    revoked_at_s: float
    revoked_by: str
    reason: str
    not_after_s: float | None
