"""A record of the audit as an event of OCSF 1.1.0, class API Activity (6003).

One class for everything, because everything here is a request to Stockade or what it did on its
own. What OCSF has no place for is under `unmapped`, so nothing is lost; docs/audit.md has the table.
A converted record can't be verified any more: `metadata.uid` is its hash and `metadata.sequence`
its place in the file that can.
"""

from __future__ import annotations

from typing import Final

from pydantic import JsonValue

from stockade.terms.audit import AuditKind, AuditLine, AuditRecord
from stockade.terms.fault import Status
from stockade.terms.version import VERSION

OCSF_VERSION: Final = "1.1.0"
_CLASS: Final = 6003
_CREATE, _READ, _UPDATE, _DELETE, _OTHER = 1, 2, 3, 4, 99
_ACTIVITIES: Final = {1: "Create", 2: "Read", 3: "Update", 4: "Delete", 99: "Other"}
_ACTIVITY: Final = {
    AuditKind.FILE_READ: _READ,
    AuditKind.ARTIFACT_READ: _READ,
    AuditKind.FILE_WRITE: _UPDATE,
    AuditKind.LEASE_CREATED: _CREATE,
    AuditKind.LEASE_RENEWED: _UPDATE,
    AuditKind.LEASE_RESET: _UPDATE,
    AuditKind.LEASE_TAKEN_OVER: _UPDATE,
    AuditKind.LEASE_EXPORT: _READ,
    AuditKind.LEASE_RELEASED: _DELETE,
    AuditKind.LEASE_EXPIRED: _DELETE,
    AuditKind.CAPABILITY_MINTED: _CREATE,
    AuditKind.CAPABILITY_REVOKED: _DELETE,
    AuditKind.KEY_ROTATED: _CREATE,
    AuditKind.KEY_RETIRED: _DELETE,
    AuditKind.APPROVAL_GRANTED: _UPDATE,
    AuditKind.APPROVAL_DENIED: _UPDATE,
    AuditKind.CALL_SETTLED: _UPDATE,
    AuditKind.CALL_CANCELLED: _UPDATE,
    AuditKind.SECRET_ADDED: _CREATE,
    AuditKind.SECRET_REMOVED: _DELETE,
    AuditKind.AUDIT_EXPORTED: _READ,
    AuditKind.AUDIT_DROPPED: _DELETE,
}
_TOOL_ACTIVITY: Final = {"file_view": _READ, "grep_search": _READ, "file_edit": _UPDATE}
_MAPPED: Final = frozenset(
    {"v", "seq", "kind", "at_ms", "tenant", "actor", "client", "lease_id", "request_id"}
    | {"status", "code", "rule", "tool"}
)


def event(line: AuditLine) -> dict[str, JsonValue]:
    record = line.record
    activity = _ACTIVITY.get(record.kind, _TOOL_ACTIVITY.get(record.tool or "", _OTHER))
    status_id, severity_id = _status(record)
    uid = record.actor.removeprefix("uid ") if record.actor else "stockade"
    made: dict[str, JsonValue] = {
        "category_uid": 6,
        "category_name": "Application Activity",
        "class_uid": _CLASS,
        "class_name": "API Activity",
        "activity_id": activity,
        "activity_name": _ACTIVITIES[activity],
        "type_uid": _CLASS * 100 + activity,
        "severity_id": severity_id,
        "status_id": status_id,
        "time": record.at_ms,
        "metadata": {
            "version": OCSF_VERSION,
            "uid": line.hash,
            "sequence": record.seq,
            "event_code": record.kind.value,
            "product": {"name": "Stockade", "version": VERSION},
            **({"tenant_uid": record.tenant} if record.tenant else {}),
        },
        "actor": {
            "user": {"uid": uid},
            **({"invoked_by": record.client} if record.client else {}),
        },
        "api": {
            "operation": record.tool or record.kind.value,
            "service": {"name": "stockade"},
            **({"request": {"uid": record.request_id}} if record.request_id else {}),
            **({"response": {"error": record.code}} if record.code else {}),
        },
        # Clients come over a unix socket of the same host.
        "src_endpoint": {"name": "localhost"},
        "unmapped": record.model_dump(mode="json", exclude=set(_MAPPED), exclude_none=True),
    }
    if record.lease_id:
        made["resources"] = [{"type": "lease", "uid": record.lease_id}]
    if record.status:
        made["status"] = record.status
    if record.rule:
        made["status_detail"] = record.rule
    return made


def _status(record: AuditRecord) -> tuple[int, int]:
    """`status_id` (0 unknown, 1 success, 2 failure) and `severity_id` (1 informational, 2 low)."""
    if record.kind is AuditKind.REFUSALS:
        return 2, 2
    if record.kind is AuditKind.CALL_INTENT or record.status == Status.UNKNOWN:
        return 0, 1
    if record.status is None or record.status in (Status.SUCCEEDED, Status.PARTIAL):
        return 1, 1
    refused = record.status in (Status.DENIED, Status.APPROVAL_REQUIRED)
    return 2, 2 if refused else 1
