"""Words of the audit: what happened (`AuditEvent`), and the record that is chained and kept.

An event is what a part of the daemon knows: it has no place in the chain yet. The ledger gives it
a sequence and links it. A field that does not apply is absent from a record's bytes, so new fields
never change old records. Times are the wall clock's, which may step; the sequence decides the order.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from enum import StrEnum
from typing import Annotated, Final, Literal, Protocol

from pydantic import Field, StringConstraints

from stockade.terms.base import MAX_INTEGER, Model

AUDIT_VERSION: Final = 1
# Canonical JSON of arguments up to this many characters is kept; of a longer one its beginning.
MAX_ARGUMENT_CHARS: Final = 4096
ORIGIN_PATTERN: Final = r"^[\x20-\x7e]{1,128}$"

Hash = Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]
Whole = Annotated[int, Field(ge=0, le=MAX_INTEGER)]
DetailValue = int | str | bool | list[str]
# Of an event, whose lists need not be lists.
Detail = Mapping[str, int | str | bool | Sequence[str]]


class AuditKind(StrEnum):
    """Every kind of record. New ones may come; none changes its meaning."""

    CALL_INTENT = "call_intent"
    CALL_OUTCOME = "call_outcome"
    CALL_REFUSED = "call_refused"
    REFUSALS = "refusals"
    REQUEST_REFUSED = "request_refused"
    CALL_SETTLED = "call_settled"
    CALL_CANCELLED = "call_cancelled"
    FILE_READ = "file_read"
    FILE_WRITE = "file_write"
    ARTIFACT_READ = "artifact_read"
    LEASE_CREATED = "lease_created"
    LEASE_RENEWED = "lease_renewed"
    LEASE_RESET = "lease_reset"
    LEASE_TAKEN_OVER = "lease_taken_over"
    LEASE_EXPORT = "lease_export"
    LEASE_RELEASED = "lease_released"
    LEASE_EXPIRED = "lease_expired"
    CAPABILITY_MINTED = "capability_minted"
    CAPABILITY_REVOKED = "capability_revoked"
    KEY_ROTATED = "key_rotated"
    KEY_RETIRED = "key_retired"
    APPROVAL_GRANTED = "approval_granted"
    APPROVAL_DENIED = "approval_denied"
    SECRET_ADDED = "secret_added"
    SECRET_REMOVED = "secret_removed"
    DAEMON_STARTED = "daemon_started"
    DAEMON_STOPPED = "daemon_stopped"
    AUDIT_EXPORTED = "audit_exported"
    AUDIT_DROPPED = "audit_dropped"
    CHECKPOINT = "checkpoint"


class Checkpoint(Model):
    """An Ed25519 signature over everything up to record `seq`, whose hash is `hash`. `key` is the
    public key. What is signed: `decide.chain.signed_bytes`."""

    seq: Whole
    hash: Hash
    at_ms: Whole
    key: Hash
    signature: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{128}$")]


@dataclass(frozen=True, slots=True)
class AuditUsage:
    """As in a result's `usage`; None where it is not known."""

    wall_ms: int
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    output_bytes: int | None = None
    egress_bytes: int | None = None
    cost_micro: int | None = None


@dataclass(frozen=True, slots=True)
class AuditEvent:
    """One decision or effect. `actor` is who asked, as `uid N`; None is the daemon itself.
    `client` and `model` are what the client says of itself: claims, not facts.

    `arguments` is the beginning of the canonical JSON of the redacted arguments, which has
    `arguments_bytes` bytes and the SHA-256 `arguments_digest`; `redactions` says how often
    something was taken out. `result_digest` is `decide.chain.result_digest` of the result."""

    kind: AuditKind
    at_ms: int
    tenant: str | None = None
    trajectory: str | None = None
    lease_id: str | None = None
    generation: int | None = None
    turn: int | None = None
    call_id: str | None = None
    tool: str | None = None
    request_id: str | None = None
    actor: str | None = None
    client: str | None = None
    model: str | None = None
    arguments: str | None = None
    arguments_bytes: int | None = None
    arguments_digest: str | None = None
    redactions: int | None = None
    chain: tuple[str, ...] | None = None
    plan_digest: str | None = None
    image_digest: str | None = None
    status: str | None = None
    code: str | None = None
    rule: str | None = None
    result_digest: str | None = None
    usage: AuditUsage | None = None
    detail: Detail | None = None


class RecordUsage(Model):
    wall_ms: Whole
    cpu_ms: Whole | None = None
    peak_memory_bytes: Whole | None = None
    output_bytes: Whole | None = None
    egress_bytes: Whole | None = None
    cost_micro: Whole | None = None


class AuditRecord(Model):
    """A record as its canonical bytes say it: an event with its sequence. See `AuditEvent`."""

    v: Literal[1]
    seq: Annotated[int, Field(ge=1, le=MAX_INTEGER)]
    # Read from JSON, where an enumeration member is a plain string.
    kind: Annotated[AuditKind, Field(strict=False)]
    at_ms: Whole
    tenant: str | None = None
    trajectory: str | None = None
    lease_id: str | None = None
    generation: Whole | None = None
    turn: Whole | None = None
    call_id: str | None = None
    tool: str | None = None
    request_id: str | None = None
    actor: str | None = None
    client: str | None = None
    model: str | None = None
    arguments: str | None = None
    arguments_bytes: Whole | None = None
    arguments_digest: Hash | None = None
    redactions: Whole | None = None
    chain: list[str] | None = None
    plan_digest: str | None = None
    image_digest: str | None = None
    status: str | None = None
    code: str | None = None
    rule: str | None = None
    result_digest: Hash | None = None
    usage: RecordUsage | None = None
    detail: dict[str, DetailValue] | None = None
    checkpoint: Checkpoint | None = None


class AuditLine(Model):
    """A record with its place in the chain, as it is exported: one line of canonical JSON."""

    hash: Hash
    prev: Hash
    record: AuditRecord


@dataclass(frozen=True, slots=True)
class Link:
    """A record as it is kept: `body` are its canonical bytes as text."""

    seq: int
    prev: bytes
    hash: bytes
    body: str


@dataclass(frozen=True, slots=True)
class Head:
    """The end of a chain: sequence and hash of the last record."""

    seq: int
    hash: bytes


@dataclass(frozen=True, slots=True)
class AuditState:
    """`first` is the oldest record that is kept, `exported` the newest one that is known to be
    exported, `sealed` the newest checkpoint. Zero and None: there is none."""

    first: int
    head: Head
    exported: int
    sealed: Checkpoint | None


@dataclass(frozen=True, slots=True)
class Acting:
    """Who is at work, for records that the ledger writes with a lease's change of state."""

    actor: str | None
    request_id: str | None = None
    client: str | None = None
    model: str | None = None


class AuditLog(Protocol):
    """The audit as the flow uses it. Thread-safe. Every method that writes is one durable
    transaction and raises Failure(storage_unavailable)."""

    def write(self, event: AuditEvent) -> Head:
        """Gives the record's place."""

    def write_signed(self, event: AuditEvent, at_ms: int, *, last: bool = False) -> Checkpoint:
        """As `write`, signed in the same transaction. Nothing is added after the `last` one:
        Failure(storage_unavailable)."""

    def seal(self, at_ms: int) -> Checkpoint | None:
        """Sign what there is, unless the last record is a signature already."""

    def unsealed(self) -> int:
        """How many records follow the last checkpoint."""

    def acting(self, who: Acting) -> AbstractContextManager[None]:
        """Records of lease changes that this thread causes meanwhile say who did it."""

    def exported(self, through: int, event: AuditEvent) -> None:
        """Remember that a copy of all up to `through` is somewhere else. Raises
        Failure(invalid_argument) for a record that is not there."""

    def drop(self, older_than_ms: int, at_ms: int) -> int:
        """Remove a piece of what is exported and older, up to a checkpoint, say so and sign that;
        gives how many records went. To be repeated until it is none."""

    def state(self) -> AuditState: ...
    def read(self, first: int) -> Iterator[Link]:
        """The records from `first` on, as of now, in order."""

    def anchor(self, seq: int) -> int:
        """The last checkpoint at or before `seq`; the oldest record if there is none."""

    def since(self, at_ms: int) -> int:
        """The first record, in order, that is as young as that; one past the last if none is."""

    def of_call(self, call: str, tenant: str | None = None) -> Sequence[Link]:
        """Records whose call id, or request id where they have none, is `call`; only `tenant`'s,
        if one is given, because others may use the same ids. The newest thousand."""
