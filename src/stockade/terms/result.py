"""The one result shape, `stockade.result/1` (docs/design.md, "The result").

Every key is always present; what does not apply is null. Numbers are never invented: an absent
exit status is null, not 0, and a usage that cannot be measured is null, not a guess.
"""

from __future__ import annotations

from enum import StrEnum
from typing import Annotated, Final, Literal

from pydantic import Field

from stockade.terms.base import Model
from stockade.terms.fault import REGISTRY, Blame, Code, Fault, Retry, Status
from stockade.terms.ids import CallRef

RESULT_SCHEMA: Final = "stockade.result/1"


class Warn(StrEnum):
    """Every warning code. New ones may come within /1."""

    COERCED = "coerced"
    CLAMPED = "clamped"
    OOM_IN_CHILD = "oom_in_child"
    LEFT_RUNNING = "left_running"
    SKIPPED = "skipped"
    REDACTED = "redacted"
    MADE_VISIBLE = "made_visible"
    NEAR_LIMIT = "near_limit"
    NOT_REPRODUCIBLE = "not_reproducible"
    NOT_DEDUPLICATED = "not_deduplicated"
    SETTLED = "settled"


class Exit(Model):
    """How the main process ended: `code` for exited, `signal` for signaled (signal(7) numbers)."""

    kind: Literal["exited", "signaled"]
    code: int | None
    signal: int | None


class Stream(Model):
    """Kept text of one output stream. Byte counts are of the raw stream, before decoding."""

    text: str
    total_bytes: int
    head_bytes: int
    tail_bytes: int
    truncated: bool
    lossy: bool
    artifact_id: str | None


class Artifact(Model):
    """Raw bytes kept beside the result until the lease is released."""

    id: str
    name: str
    media_type: str
    bytes: int
    complete: bool


class Warning(Model):
    code: Warn
    message: str
    count: int


class Error(Model):
    """Why the status is not succeeded or partial. `details` holds numbers a program can use."""

    code: Code
    fault: Blame
    retry: Retry
    retry_after_ms: int | None
    rule: str | None
    message: str
    hint: str
    details: dict[str, int | str | bool | list[str] | list[int]] | None


def error_of(fault: Fault) -> Error:
    """A fault as `error`: what the registry says about its code, and what is known of this one."""
    entry = REGISTRY[fault.code]
    details: dict[str, int | str | bool | list[str] | list[int]] = {}
    for name, value in fault.details.items():
        details[name] = _listed(value) if isinstance(value, tuple) else value
    return Error(
        code=fault.code,
        fault=entry.blame,
        retry=entry.retry,
        retry_after_ms=fault.retry_after_ms,
        rule=fault.rule,
        message=fault.message,
        hint=entry.hint,
        details=details or None,
    )


def _listed(value: tuple[str, ...] | tuple[int, ...]) -> list[str] | list[int]:
    texts = [item for item in value if isinstance(item, str)]
    return texts or [item for item in value if isinstance(item, int)]


class ItemError(Model):
    code: str
    item: str
    message: str


class Items(Model):
    """Counts of a call that does many things, with what failed (status partial)."""

    completed: int
    failed: int
    errors: list[ItemError]


class Usage(Model):
    """What the call used. Times are RFC 3339 UTC; null where not measurable."""

    started_at: str
    finished_at: str
    wall_ms: int
    wall_limit_ms: int | None
    cpu_ms: int | None
    peak_memory_bytes: int | None
    output_bytes: int | None
    egress_bytes: int | None
    cost_micro: int | None


class EngineRef(Model):
    name: str
    version: str
    tier: str


class Provenance(Model):
    """Where the result comes from. Content of a sandbox is never to be trusted."""

    trust: Literal["untrusted"]
    lease_id: str | None
    generation: int | None
    plan_digest: str | None
    capability_chain: list[str]
    image_digest: str | None
    workspace_version: str | None
    engine: EngineRef | None
    profile: str | None
    stockade_version: str


class AuditRef(Model):
    seq: int
    hash: str


class ViewData(Model):
    """`data` of file_view. Lines are 1-based; `next_offset` is null at the end of the file."""

    kind: Literal["file_view"]
    path: str
    first_line: int
    last_line: int
    total_lines: int
    next_offset: int | None
    version: str
    bytes: int
    line_endings: Literal["lf", "crlf", "mixed", "none"]
    final_newline: bool
    bom: bool
    content: str
    lossy: bool
    cut_lines: list[int]
    total_lines_at_least: bool = False


class EditData(Model):
    """`data` of file_edit. A version is the first 16 bytes of the content's SHA-256 in hex."""

    kind: Literal["file_edit"]
    changed_file: str
    replacements: int
    old_version: str
    new_version: str
    diff: str
    diff_truncated: bool


class GrepMatch(Model):
    """One matching line. `column` is the 1-based byte column of the first match in the line."""

    path: str
    line: int
    column: int
    text: str
    cut: bool


class GrepData(Model):
    """`data` of grep_search. `at_least` says that `matches_total` is a lower bound; `truncated`
    that not all of it is here: lines that match were left out, or one that is shown was cut."""

    kind: Literal["grep_search"]
    matches: list[GrepMatch]
    matches_total: int
    at_least: bool
    files_with_matches: int
    truncated: bool


class LeaseData(Model):
    """`data` of tenant operations on a lease."""

    kind: Literal["lease"]
    lease_id: str
    tenant: str
    trajectory: str
    name: str
    state: str
    generation: int
    expires_at: str
    workspace_version: str | None


class ExportData(Model):
    """`data` of an export: what differs from the source."""

    kind: Literal["export"]
    added: int
    modified: int
    deleted: int
    skipped: int
    patch_bytes: int | None


Data = Annotated[
    ViewData | EditData | GrepData | LeaseData | ExportData, Field(discriminator="kind")
]


class ToolResult(Model):
    """What every call answers with, whatever happened."""

    schema_: Literal["stockade.result/1"] = Field(alias="schema")
    request_id: str
    call: CallRef
    status: Status
    exit: Exit | None
    stdout: Stream | None
    stderr: Stream | None
    data: Data | None
    artifacts: list[Artifact]
    warnings: list[Warning]
    error: Error | None
    retry_safe: bool
    items: Items | None
    usage: Usage | None
    replayed: bool
    provenance: Provenance
    audit: AuditRef | None

    def to_text(self) -> str:
        """As `to_json`, before it is bytes."""
        return self.model_dump_json(by_alias=True)

    def to_json(self) -> bytes:
        """The wire bytes: UTF-8 JSON, keys in the documented order."""
        return self.to_text().encode()
