"""The components of a capability block (docs/capabilities.md).

A block states every component; a missing, empty or unknown one means not allowed. All numbers are
integers with their unit in the name. Paths are container paths, matched on component borders.
`MAX_INTEGER` in a `total` component is how a block says "no budget here".
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field, SerializerFunctionWrapHandler, StringConstraints, model_serializer

from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.ids import LeaseId, Name, Tenant, Trajectory
from stockade.terms.pathname import MAX_PATH_BYTES

TOKEN_VERSION: Final = 1
MAX_LIST: Final = 64
MAX_BLOCKS: Final = 16
MAX_PATTERN_CHARS: Final = 512

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


class CheckPattern(Model):
    """The argument, as text, matches `pattern` as a whole (RE2 syntax: linear time)."""

    kind: Literal["pattern"]
    tool: Name
    argument: Name
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS)]


class CheckOneOf(Model):
    """The argument, as text, is one of `values`."""

    kind: Literal["one_of"]
    tool: Name
    argument: Name
    values: Annotated[
        tuple[Annotated[str, StringConstraints(max_length=MAX_PATH_BYTES)], ...],
        Field(min_length=1, max_length=MAX_LIST),
    ]


class CheckRange(Model):
    """The argument is an integer from `minimum` to `maximum`, both included."""

    kind: Literal["range"]
    tool: Name
    argument: Name
    minimum: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]
    maximum: Annotated[int, Field(ge=-MAX_INTEGER, le=MAX_INTEGER)]


class CheckPrefix(Model):
    """The argument is a path at or below one of `paths`."""

    kind: Literal["prefix"]
    tool: Name
    argument: Name
    paths: Annotated[tuple[PathText, ...], Field(min_length=1, max_length=MAX_LIST)]


Check = Annotated[CheckPattern | CheckOneOf | CheckRange | CheckPrefix, Field(discriminator="kind")]
Checks = Annotated[tuple[Check, ...], Field(max_length=MAX_LIST)]


class ApprovalRule(Model):
    """Calls of `tool` that a person must approve one by one: all of them, or those in which
    `argument`, as text, matches `pattern` as a whole. `argument` and `pattern` go together."""

    tool: Name
    argument: Name | None
    pattern: Annotated[str, StringConstraints(min_length=1, max_length=MAX_PATTERN_CHARS)] | None


Approvals = Annotated[tuple[ApprovalRule, ...], Field(max_length=MAX_LIST)]


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
    # A call must satisfy every check that names its tool; one that an approval rule fits waits
    # for a person.
    checks: Checks
    approve: Approvals


class LeaseBinding(Model):
    """Which lease, and which generation of it, a token is for. `lease create` appends the block
    that sets it; once set it may be replaced and never taken away. `nonce` is random, so that
    nobody but the daemon can make the very block that the ledger knows; absent, and never null, in
    bindings of version 0.1."""

    id: LeaseId
    generation: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    nonce: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{32}$")] | None = None

    @model_serializer(mode="wrap")
    def _without_null(self, dump: SerializerFunctionWrapHandler) -> dict[str, str | int]:
        return {name: value for name, value in dump(self).items() if value is not None}


class Block(Grant):
    """One link of a token. `v`, `kid`, `tenant`, `trajectory` are in the root block only."""

    v: Literal[1] | None = None
    kid: Name | None = None
    tenant: Tenant | None = None
    trajectory: Trajectory | None = None
    lease: LeaseBinding | None
    not_before_s: Count
    not_after_s: Count
