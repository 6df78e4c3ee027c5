"""The JSON bodies of `/v1`, shared by server and client.

Every model is closed: an unknown field is refused by name. Units are in the names. A lease is
named by its id or as `tenant/trajectory`; a tenant inside a body is only ever checked against the
peer's own, because identity comes from the credential.
"""

from __future__ import annotations

from typing import Annotated, Final, Literal

from pydantic import ConfigDict, Field, JsonValue, StringConstraints

from stockade.decide.idempotency import KEY_PATTERN
from stockade.terms.base import MAX_INTEGER, Model
from stockade.terms.ids import ArtifactId, CallId, LeaseId, Name, Tenant, Trajectory
from stockade.terms.ports import MAX_ARTIFACT_READ
from stockade.terms.result import Error, ToolResult
from stockade.tools.program import MAX_ARGUMENTS

LEASE_REF_PATTERN: Final = (
    r"^(ls_[0-9a-f]{16}|[a-z0-9][a-z0-9_.-]{0,62}/[A-Za-z0-9][A-Za-z0-9_.:@/-]{0,254})$"
)

# Begins the lines before the first file of a patch, each of which names what is not in it.
NOT_IN_PATCH: Final = "# not in this patch: "

LeaseRef = Annotated[str, StringConstraints(pattern=LEASE_REF_PATTERN)]
HostPath = Annotated[str, StringConstraints(min_length=1, max_length=4096)]
Millis = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Seconds = Annotated[int, Field(ge=1, le=MAX_INTEGER)]
Key = Annotated[str, StringConstraints(pattern=KEY_PATTERN)]
Turn = Annotated[int, Field(ge=0, le=MAX_INTEGER)]


class CallRequest(Model):
    """One tool call. `turn` and `call_id` are the caller's own and name it in its trajectory: one
    that is sent again is not run again. `idempotency_key` is what the caller takes the call's key
    to be (docs/design.md); another one is refused."""

    # NaN as itself, which is refused by name, and not as null.
    model_config = ConfigDict(ser_json_inf_nan="constants")

    tool: Annotated[str, StringConstraints(min_length=1, max_length=64)]
    arguments: dict[str, JsonValue]
    lease: LeaseRef
    turn: Turn | None = None
    call_id: CallId | None = None
    idempotency_key: Key | None = None


class RunRequest(Model):
    """One program by its argument vector, with untruncated streams. Without `timeout_ms` the
    capability's `per_call.wall_ms` is the limit."""

    lease: LeaseRef
    argv: Annotated[list[str], Field(min_length=1, max_length=MAX_ARGUMENTS)]
    timeout_ms: Millis | None = None
    turn: Turn | None = None
    call_id: CallId | None = None
    idempotency_key: Key | None = None


class CancelRequest(Model):
    """Ends running calls of a lease: the one with this `call_id` (and `turn`, when given)."""

    lease: LeaseRef
    call_id: CallId
    turn: Turn | None = None


class CancelReply(Model):
    """How many running calls were told to end. Their own replies say `cancelled`."""

    cancelled: int


class LeaseCreate(Model):
    """`source` is an absolute directory of the daemon's host. At most one of `grant` (a grant
    file's name) and the `Stockade-Capability` header decides what the lease may do; neither means
    the default grant. `image` null is the first one that is granted. `take_over` raises the
    generation of a lease that exists, so that its former holder is refused from then on. `tenant`
    null is the peer's own; for an operator, who has none, it is `local`. `within_ceiling` asks for
    what the tenant's ceiling leaves of the authority, instead of a refusal where it is wider; the
    result then has a warning `clamped` that names what was cut.

    `share` makes a lease that works in the workspace of the lease it names, `fork` one that begins
    with a copy of it. Its trajectory is below that lease's, and its capability is of that lease's
    line; without the header, which only a peer with the daemon's own uid may leave out, it is that
    lease's own."""

    tenant: Tenant | None = None
    trajectory: Trajectory
    name: Name = "main"
    source: HostPath | None = None
    excludes: Annotated[list[HostPath], Field(max_length=64)] = Field(default_factory=list)
    image: Name | None = None
    grant: Name | None = None
    connect: Annotated[list[HostPath], Field(max_length=64)] = Field(default_factory=list)
    env: Annotated[dict[str, str], Field(max_length=256)] = Field(default_factory=dict)
    ttl_s: Seconds | None = None
    take_over: bool = False
    within_ceiling: bool = False
    share: LeaseRef | None = None
    fork: LeaseRef | None = None


class LeaseRenew(Model):
    """Counted from now. A renewal never shortens a lease and never passes its `not_after`."""

    ttl_s: Seconds


class LeaseExport(Model):
    """`to` is an absolute directory of the daemon's host; null only counts what differs."""

    to: Annotated[HostPath, StringConstraints(pattern=r"^/")] | None = None


class Empty(Model):
    """The body of requests that need none."""


class LeaseGranted(Model):
    """What the holder of a new lease works with. `expires_at` is RFC 3339 UTC."""

    lease_id: LeaseId
    token: str
    generation: int
    expires_at: str


class LeaseReply(Model):
    """Answer of lease create; `lease` is null unless the result succeeded."""

    result: ToolResult
    lease: LeaseGranted | None


class LeaseView(Model):
    """A lease as its owner may see it. Never holds the token. `shares` is the lease whose workspace
    it works in, `forked_from` the one whose workspace its own began as a copy of. `broken` says that
    a command has taken the shell away from one of its sandboxes: the last `bash_execute` there was
    `shell_not_found`."""

    lease_id: str
    tenant: str
    trajectory: str
    name: str
    state: str
    generation: int
    image: str
    source: str | None
    created_at: str
    expires_at: str
    not_after: str
    shares: str | None = None
    forked_from: str | None = None
    broken: bool = False


class LeaseList(Model):
    leases: list[LeaseView]


class FileWritten(Model):
    """`version` is the first 16 bytes of the content's SHA-256 in hex."""

    version: str


class ArtifactRange(Model):
    """Query of an artifact read; at most 4 MiB at once."""

    lease: LeaseRef
    id: ArtifactId
    offset: Annotated[int, Field(ge=0, le=MAX_INTEGER)]
    length: Annotated[int, Field(ge=1, le=MAX_ARTIFACT_READ)]


class Health(Model):
    status: Literal["ok", "stopping"]
    version: str


class Ready(Model):
    """`reasons` are words of docs/operations.md; there is none when it is ready."""

    ready: bool
    reasons: list[str]


class Check(Model):
    """One finding of doctor. `required` checks decide `DoctorReport.ok`; `remedy` is a command or
    a setting, null when the check is fine or nothing can be done."""

    name: str
    ok: bool
    required: bool
    detail: str
    remedy: str | None


class DoctorReport(Model):
    ok: bool
    checks: list[Check]


class ErrorReply(Model):
    """The body of every control-plane reply that is not 2xx."""

    error: Error
