"""What a scene is: how one sandbox is made, and what is around it.

A control scene differs from the scene of its attempts by nothing but the defence that it names in
`taken`. Scenes that take something away are dangerous by design: they live in the selftest's own
state directory, run nothing but its own program, and are ended at once.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final, Literal, TypeAlias

from pydantic import JsonValue

from stockade.terms.grant import Profile
from stockade.terms.plan import Limits, SandboxPlan

# What only a run knows: paths, ports, pids. `{name}` in a probe stands for one.
Facts: TypeAlias = Mapping[str, str]
Amend: TypeAlias = Callable[[JsonValue, Facts], JsonValue]
Reshape: TypeAlias = Callable[[SandboxPlan], SandboxPlan]

MIB: Final = 1 << 20


@dataclass(frozen=True, slots=True)
class Tried:
    """What one attempt came to: it won, it was held, or it could not be tried."""

    outcome: Literal["won", "held", "cannot"]
    evidence: str


def won(evidence: str) -> Tried:
    return Tried("won", evidence)


def held(evidence: str) -> Tried:
    return Tried("held", evidence)


def cannot(evidence: str) -> Tried:
    return Tried("cannot", evidence)


@dataclass(frozen=True, slots=True)
class Room:
    """What the lease may use: `limits` on its groups and its disk, `tmp_bytes` of shared `/tmp`."""

    limits: Limits
    tmp_bytes: int


ROOMY: Final = Room(
    Limits(memory_bytes=512 * MIB, cpu_millis=4000, pids=512, disk_bytes=128 * MIB, inodes=16384),
    tmp_bytes=32 * MIB,
)
TIGHT: Final = Room(
    Limits(memory_bytes=64 * MIB, cpu_millis=4000, pids=64, disk_bytes=16 * MIB, inodes=512),
    tmp_bytes=4 * MIB,
)


@dataclass(frozen=True, slots=True)
class Scene:
    """`taken` says what is missing, in words for the row; empty for a scene that is defended.

    `reshape` changes the compiled plan, `amend` the runtime's configuration. `read`, `write`,
    `execute` and `deny` are the grant's, where they are not the default. `guest` "readable" is a
    guest without its own defences. `tree` "neighbour" is the other lease's, `ids` "neighbour" its
    user ids. `room` is the lease's, `plan_room` the plan's. `naive` host tools open paths by name.
    `stdin` is what is handed in as descriptor 0.
    """

    name: str
    taken: str = ""
    profile: Profile = Profile.AGENT
    read: tuple[str, ...] | None = None
    write: tuple[str, ...] | None = None
    execute: tuple[str, ...] | None = None
    deny: tuple[str, ...] | None = None
    reshape: Reshape = lambda plan: plan
    amend: Amend = lambda config, facts: config
    guest: Literal["ours", "readable"] = "ours"
    room: Room = ROOMY
    plan_room: Room = ROOMY
    tree: Literal["own", "neighbour"] = "own"
    ids: Literal["own", "neighbour"] = "own"
    naive: bool = False
    stdin: Literal["nothing", "directory", "socket"] = "nothing"
    deadline_ms: int = 1500
    keep_bytes: int = 65536
    facts: tuple[tuple[str, str], ...] = ()
