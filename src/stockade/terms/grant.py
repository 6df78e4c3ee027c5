"""The components of a capability block (docs/capabilities.md).

A block states every component; a missing, empty or unknown one means not allowed. All numbers are
integers with their unit in the name. Paths are container paths, matched on component borders.
`MAX_INTEGER` in a `total` component is how a block says "no budget here".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints

from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.ids import LeaseId, Name, Tenant, Trajectory

TOKEN_VERSION: Final = 1
MAX_PATH_BYTES: Final = 4096
MAX_LIST: Final = 64
MAX_BLOCKS: Final = 16

Count = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
PathText = Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATH_BYTES)]
HostText = Annotated[str, StringConstraints(min_length=1, max_length=255)]
Port = Annotated[int, Field(ge=1, le=65535)]


class Profile(StrEnum):
    """Flavour of a sandbox; `strict` is below `agent`."""

    STRICT = "strict"
    AGENT = "agent"

    @property
    def rank(self) -> int:
        return 0 if self is Profile.STRICT else 1


class Tier(StrEnum):
    """How strong the boundary is: a container of the host's kernel, or a kernel of its own."""

    CONTAINER = "container"
    GVISOR = "gvisor"

    @property
    def rank(self) -> int:
        return 0 if self is Tier.CONTAINER else 1


class ConnectHost(Model):
    kind: Literal["host"]
    host: HostText
    ports: Annotated[tuple[Port, ...], Field(max_length=MAX_LIST)]
    tls: bool


class ConnectCidr(Model):
    kind: Literal["cidr"]
    cidr: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    ports: Annotated[tuple[Port, ...], Field(max_length=MAX_LIST)]


class ConnectBroker(Model):
    kind: Literal["broker"]
    name: Name
    methods: Annotated[tuple[str, ...], Field(max_length=MAX_LIST)]
    paths: Annotated[tuple[str, ...], Field(max_length=MAX_LIST)]


Connect = Annotated[ConnectHost | ConnectCidr | ConnectBroker, Field(discriminator="kind")]
Paths = Annotated[tuple[PathText, ...], Field(max_length=MAX_LIST)]


class Scope(Model):
    """Right -> objects. `write` needs `read` on the same path; `execute` is the mounts not noexec."""

    read: Paths
    write: Paths
    execute: Paths
    connect: Annotated[tuple[Connect, ...], Field(max_length=MAX_LIST)]


class System(Model):
    profile: Profile
    images: Annotated[tuple[Name, ...], Field(max_length=MAX_LIST)]
    tier_min: Tier


class PerCall(Model):
    """`output_bytes` is the artifact size per stream, not the kept text."""

    wall_ms: Count
    output_bytes: Count


class PerLease(Model):
    memory_bytes: Count
    cpu_millis: Count
    pids: Count
    disk_bytes: Count
    inodes: Count
    sandboxes: Count
    parallel: Count


class Total(Model):
    calls: Count
    cost_micro: Count
    cpu_ms: Count
    egress_bytes: Count


class Grant(Model):
    """The components that a grant file, a ceiling and every block of a token share."""

    scope: Scope
    deny: Paths
    tools: Annotated[tuple[Name, ...], Field(max_length=MAX_LIST)]
    system: System
    per_call: PerCall
    per_lease: PerLease
    total: Total
    depth: Annotated[int, Field(ge=0, le=MAX_BLOCKS)]
    # Argument checks and approvals: their objects are defined with their enforcement; until
    # then only the empty list is valid, and anything else is refused as unsupported.
    checks: Annotated[tuple[str, ...], Field(max_length=MAX_LIST)]
    approve: Annotated[tuple[str, ...], Field(max_length=MAX_LIST)]


class LeaseBinding(Model):
    """Set once, by the block that `lease create` appends; equal in every block after it."""

    id: LeaseId
    generation: Annotated[int, Field(ge=1, le=MAX_INTEGER)]


class Block(Grant):
    """One link of a token. `v`, `kid`, `tenant`, `trajectory` are in the root block only."""

    v: Literal[1] | None = None
    kid: Name | None = None
    tenant: Tenant | None = None
    trajectory: Trajectory | None = None
    lease: LeaseBinding | None
    not_before_s: Count
    not_after_s: Count


NO_BUDGET: Final = Total(
    calls=MAX_INTEGER, cost_micro=MAX_INTEGER, cpu_ms=MAX_INTEGER, egress_bytes=MAX_INTEGER
)
