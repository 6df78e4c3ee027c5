"""A secret of a lease: what its commands may be given, and no result may show."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Final

SECRET_NAME_PATTERN: Final = r"^[A-Za-z_][A-Za-z0-9_]{0,63}$"
# Shorter ones are found by guessing, and would be found everywhere in ordinary text.
MIN_SECRET_BYTES: Final = 8
MAX_SECRET_BYTES: Final = 64 * 1024
MAX_SECRETS: Final = 32
MAX_ALL_BYTES: Final = 128 * 1024  # of one lease: they travel with each command


@dataclass(frozen=True, slots=True)
class Secret:
    """`in_environment` says that commands of the lease get it as the variable `name`."""

    lease_id: str
    name: str
    value: bytes = field(repr=False)
    in_environment: bool
    added_at_s: float
