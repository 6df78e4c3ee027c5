"""How many refused calls become a record each.

Refusing is cheap for the one who is refused, and a record is for ever, so a flood of refused calls
must not fill the disk. Each tenant has `BURST` records, and one more every `EVERY_S` seconds; what
is refused beyond that is counted by code, and the counts become one record a minute. Counts that
are not written yet are lost in a crash: the refusals had no effect.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Final

BURST: Final = 100
EVERY_S: Final = 5.0
COUNTED_S: Final = 60.0


@dataclass(slots=True)
class _Tenant:
    left: float
    at_s: float
    codes: Counter[str] = field(default_factory=Counter)
    first_s: float = 0.0
    last_s: float = 0.0


@dataclass(frozen=True, slots=True)
class Counted:
    """Refusals of a tenant (None: of nobody known) that have no record of their own."""

    tenant: str | None
    codes: tuple[tuple[str, int], ...]
    first_s: float
    last_s: float


class Refusals:
    """Thread-safe. Times are the wall clock's; a step back only delays the next record."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._tenants: dict[str | None, _Tenant] = {}
        self._taken_at_s = 0.0

    def admit(self, tenant: str | None, code: str, now_s: float) -> bool:
        """Whether this refusal gets a record. It is counted if not."""
        with self._lock:
            found = self._tenants.setdefault(tenant, _Tenant(float(BURST), now_s))
            passed = max(0.0, now_s - found.at_s)
            found.left = min(float(BURST), found.left + passed / EVERY_S)
            found.at_s = now_s
            if found.left >= 1:
                found.left -= 1
                return True
            if not found.codes:
                found.first_s = now_s
            found.last_s = now_s
            found.codes[code] += 1
            return False

    def take(self, now_s: float, *, all_: bool = False) -> Sequence[Counted]:
        """What was counted, once a minute or with `all_`; it begins at zero then."""
        with self._lock:
            if not all_ and 0 <= now_s - self._taken_at_s < COUNTED_S:
                return ()
            self._taken_at_s = now_s
            found = [
                Counted(name, tuple(sorted(each.codes.items())), each.first_s, each.last_s)
                for name, each in self._tenants.items()
                if each.codes
            ]
            for each in self._tenants.values():
                each.codes = Counter()
            return found
