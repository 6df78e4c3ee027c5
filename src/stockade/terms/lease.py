"""A lease as the ledger keeps it: a trajectory's time-bounded hold on one workspace."""

from __future__ import annotations

from dataclasses import dataclass, replace
from enum import StrEnum
from typing import Final

from stockade.terms.grant import Grant
from stockade.terms.moment import Moment

# How many host user ids, and group ids, belong to a lease.
UID_RANGE: Final = 65_536


class LeaseState(StrEnum):
    """`creating` outlives its create only by a crash, and is removed then. `resetting` outlives its
    reset by a crash or a failure, and is repeated. `dirty` is written before anything is removed:
    what a crash or a failure leaves is removed again. None of them is ever handed out."""

    CREATING = "creating"
    READY = "ready"
    RESETTING = "resetting"
    DIRTY = "dirty"
    RELEASED = "released"


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """Wall times are seconds since the epoch. The lease ends when the boot `boot` is `ends_boot_s`
    seconds old, whatever the wall clock says; in any other boot, and only there, `expires_at_s`
    decides, which is otherwise for people. `token` is the whole token of the lease, bound to
    (id, generation); `chain` its block ids; `not_after_s` the ceiling of every renewal.
    The lease's files belong to host uid and gid `uid_base`; its range is `UID_RANGE` long. A reset
    raises `workspace_version`.

    `shares` is the lease whose workspace, user ids and disk this one works in, and that it can't
    outlive; `forked_from` the lease whose workspace its own began as a copy of. `given_up` says that
    it was released before its end had come."""

    id: str
    tenant: str
    trajectory: str
    name: str
    generation: int
    state: LeaseState
    source: str | None
    excludes: tuple[str, ...]
    image: str
    env: tuple[tuple[str, str], ...]
    uid_base: int
    grant: Grant
    token: str
    chain: tuple[str, ...]
    created_at_s: float
    expires_at_s: float
    not_after_s: float
    workspace_version: int = 1
    shares: str | None = None
    forked_from: str | None = None
    boot: str = ""
    ends_boot_s: float = 0.0
    given_up: bool = False

    def left_s(self, now: Moment) -> float:
        """Seconds until its end; zero or less once it is over."""
        if self.boot == now.boot:
            return self.ends_boot_s - now.boot_s
        # A host that has lost its clock boots years before now until a time service has set it.
        return self.expires_at_s - max(now.wall_s, self.created_at_s)

    def ending_in(self, left_s: float, now: Moment) -> LeaseRecord:
        """The same lease, with its end `left_s` seconds from now."""
        return replace(
            self,
            # Rounding must not show an end after the token's.
            expires_at_s=min(now.wall_s + left_s, self.not_after_s),
            boot=now.boot,
            ends_boot_s=now.boot_s + left_s,
        )
