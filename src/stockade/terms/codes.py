"""The closed sets of words that a fault is described with."""

from __future__ import annotations

from enum import StrEnum


class Status(StrEnum):
    """The twelve verdicts. No new one comes within result schema /1."""

    SUCCEEDED = "succeeded"
    FAILED = "failed"
    PARTIAL = "partial"
    REJECTED = "rejected"
    INVALID = "invalid"
    DENIED = "denied"
    APPROVAL_REQUIRED = "approval_required"
    TIMED_OUT = "timed_out"
    LIMITED = "limited"
    CANCELLED = "cancelled"
    UNAVAILABLE = "unavailable"
    UNKNOWN = "unknown"


class Blame(StrEnum):
    """Whose doing it is (`error.fault`)."""

    CALLER = "caller"
    PROGRAM = "program"
    LIMIT = "limit"
    SANDBOX = "sandbox"
    HOST = "host"


class Retry(StrEnum):
    """What repeating can bring (`error.retry`)."""

    SAME_CALL = "same_call"
    CHANGED_CALL = "changed_call"
    LATER = "later"
    NEVER = "never"
    RECONCILE = "reconcile"


class Code(StrEnum):
    """Every `error.code`. A code never changes its meaning; new ones may come."""

    # invalid: nothing ran
    MALFORMED_JSON = "malformed_json"
    BODY_TOO_LARGE = "body_too_large"
    UNKNOWN_FIELD = "unknown_field"
    MISSING_FIELD = "missing_field"
    INVALID_ARGUMENT = "invalid_argument"
    ARGUMENT_TOO_LARGE = "argument_too_large"
    INVALID_PATTERN = "invalid_pattern"
    NO_CHANGE = "no_change"
    UNKNOWN_TOOL = "unknown_tool"
    UNKNOWN_ROUTE = "unknown_route"
    # denied: nothing ran
    TOKEN_MISSING = "token_missing"
    TOKEN_MALFORMED = "token_malformed"
    TOKEN_NOT_CANONICAL = "token_not_canonical"
    TOKEN_TOO_LONG = "token_too_long"
    TOKEN_UNKNOWN_KEY = "token_unknown_key"
    BAD_SIGNATURE = "bad_signature"
    TOKEN_EXPIRED = "token_expired"
    TOKEN_NOT_YET_VALID = "token_not_yet_valid"
    TOKEN_UNSUPPORTED = "token_unsupported"
    TOKEN_REVOKED = "token_revoked"
    WIDER_BLOCK = "wider_block"
    CEILING_EXCEEDED = "ceiling_exceeded"
    TOOL_NOT_GRANTED = "tool_not_granted"
    RIGHT_NOT_GRANTED = "right_not_granted"
    LEASE_NOT_GRANTED = "lease_not_granted"
    STALE_GENERATION = "stale_generation"
    PEER_NOT_ALLOWED = "peer_not_allowed"
    LEASE_EXPIRED = "lease_expired"
    CHECK_FAILED = "check_failed"
    BUDGET_EXHAUSTED = "budget_exhausted"
    APPROVAL_DENIED = "approval_denied"
    UNENFORCEABLE = "unenforceable"
    # rejected: a precondition does not hold, nothing changed
    APPROVAL_NEEDED = "approval_needed"
    NO_MATCH = "no_match"
    MULTIPLE_MATCHES = "multiple_matches"
    VERSION_CONFLICT = "version_conflict"
    NOT_FOUND = "not_found"
    NOT_A_REGULAR_FILE = "not_a_regular_file"
    NOT_A_TEXT_FILE = "not_a_text_file"
    OUTSIDE_WORKSPACE = "outside_workspace"
    READ_ONLY_FILE = "read_only_file"
    FILE_TOO_LARGE = "file_too_large"
    SHELL_NOT_FOUND = "shell_not_found"
    COMMAND_NOT_FOUND = "command_not_found"
    KEY_REUSED = "key_reused"
    KEY_IN_USE = "key_in_use"
    DEPENDENCY_FAILED = "dependency_failed"
    SOURCE_UNUSABLE = "source_unusable"
    # failed: the program's own verdict
    NONZERO_EXIT = "nonzero_exit"
    KILLED_BY_SIGNAL = "killed_by_signal"
    # timed_out, cancelled
    DEADLINE_EXCEEDED = "deadline_exceeded"
    CANCELLED = "cancelled"
    # limited
    MEMORY_EXCEEDED = "memory_exceeded"
    PIDS_EXCEEDED = "pids_exceeded"
    DISK_FULL = "disk_full"
    LEASE_EXPIRED_IN_CALL = "lease_expired_in_call"
    BUDGET_EXCEEDED = "budget_exceeded"
    # unavailable: no effect happened
    IN_FLIGHT = "in_flight"
    BUSY = "busy"
    SHUTTING_DOWN = "shutting_down"
    SANDBOX_UNAVAILABLE = "sandbox_unavailable"
    ENGINE_UNAVAILABLE = "engine_unavailable"
    WORKSPACE_UNAVAILABLE = "workspace_unavailable"
    STORAGE_UNAVAILABLE = "storage_unavailable"
    DAEMON_UNREACHABLE = "daemon_unreachable"
    INTERNAL = "internal"
    # unknown
    IN_DOUBT = "in_doubt"
    SANDBOX_LOST = "sandbox_lost"
    CONNECTION_LOST = "connection_lost"
