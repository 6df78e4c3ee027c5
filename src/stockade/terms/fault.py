"""The closed registry of everything that can go wrong, and the value that says so.

A `Code` is what a caller branches on. The registry below gives each code exactly one status, one
fault (whose doing it is), one retry advice and one hint (what to do next). Inside the process a
fault travels as the exception `Failure`, raised where the fault is known and turned into a result
once, by the pipeline; a foreign exception is translated into a `Failure` by the module that owns
the foreign package.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import Final


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
    WIDER_BLOCK = "wider_block"
    CEILING_EXCEEDED = "ceiling_exceeded"
    TOOL_NOT_GRANTED = "tool_not_granted"
    RIGHT_NOT_GRANTED = "right_not_granted"
    LEASE_NOT_GRANTED = "lease_not_granted"
    STALE_GENERATION = "stale_generation"
    PEER_NOT_ALLOWED = "peer_not_allowed"
    LEASE_EXPIRED = "lease_expired"
    UNENFORCEABLE = "unenforceable"
    # rejected: a precondition does not hold, nothing changed
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


@dataclass(frozen=True, slots=True)
class Entry:
    """One row of the registry."""

    status: Status
    blame: Blame
    retry: Retry
    hint: str


def _rows() -> dict[Code, Entry]:
    s, b, r, c = Status, Blame, Retry, Code
    changed, never, later, same, reconcile = (
        r.CHANGED_CALL,
        r.NEVER,
        r.LATER,
        r.SAME_CALL,
        r.RECONCILE,
    )
    table: list[tuple[Code, Status, Blame, Retry, str]] = [
        (
            c.MALFORMED_JSON,
            s.INVALID,
            b.CALLER,
            changed,
            "Send one JSON object: UTF-8, no duplicate keys, no NaN, integers below 2^53.",
        ),
        (
            c.BODY_TOO_LARGE,
            s.INVALID,
            b.CALLER,
            changed,
            "Send less than 4 MiB; use the file upload for larger content.",
        ),
        (
            c.UNKNOWN_FIELD,
            s.INVALID,
            b.CALLER,
            changed,
            "Remove the field; the valid ones are listed in details.",
        ),
        (c.MISSING_FIELD, s.INVALID, b.CALLER, changed, "Add the field named in details."),
        (
            c.INVALID_ARGUMENT,
            s.INVALID,
            b.CALLER,
            changed,
            "Correct the argument named in details.",
        ),
        (
            c.ARGUMENT_TOO_LARGE,
            s.INVALID,
            b.CALLER,
            changed,
            "Write the content to a file and pass its path.",
        ),
        (
            c.INVALID_PATTERN,
            s.INVALID,
            b.CALLER,
            changed,
            "Correct the regular expression; escape a literal ( [ { . * + ? with a backslash.",
        ),
        (
            c.NO_CHANGE,
            s.INVALID,
            b.CALLER,
            changed,
            "old_str and new_str are equal; leave the edit out.",
        ),
        (c.UNKNOWN_TOOL, s.INVALID, b.CALLER, changed, "Use one of the tools listed in details."),
        (c.UNKNOWN_ROUTE, s.INVALID, b.CALLER, changed, "Use a route of /v1."),
        (c.TOKEN_MISSING, s.DENIED, b.CALLER, changed, "Send the lease's capability token."),
        (
            c.TOKEN_MALFORMED,
            s.DENIED,
            b.CALLER,
            changed,
            "Send the token exactly as it was issued.",
        ),
        (
            c.TOKEN_NOT_CANONICAL,
            s.DENIED,
            b.CALLER,
            changed,
            "Send the token exactly as it was issued.",
        ),
        (c.TOKEN_TOO_LONG, s.DENIED, b.CALLER, changed, "Use a token with fewer blocks."),
        (
            c.TOKEN_UNKNOWN_KEY,
            s.DENIED,
            b.CALLER,
            never,
            "Ask the operator for a token of this installation.",
        ),
        (c.BAD_SIGNATURE, s.DENIED, b.CALLER, never, "Send the token exactly as it was issued."),
        (c.TOKEN_EXPIRED, s.DENIED, b.CALLER, changed, "Ask for a new token."),
        (c.TOKEN_NOT_YET_VALID, s.DENIED, b.CALLER, later, "Wait until the token's not_before_s."),
        (
            c.TOKEN_UNSUPPORTED,
            s.DENIED,
            b.CALLER,
            changed,
            "This version cannot enforce the component named in details; use a token without it.",
        ),
        (
            c.WIDER_BLOCK,
            s.DENIED,
            b.CALLER,
            changed,
            "Narrow the component named in details to what its parent grants.",
        ),
        (
            c.CEILING_EXCEEDED,
            s.DENIED,
            b.CALLER,
            changed,
            "Ask for no more than the tenant's ceiling in the component named in details.",
        ),
        (
            c.TOOL_NOT_GRANTED,
            s.DENIED,
            b.CALLER,
            changed,
            "Use a granted tool, or ask for a wider capability.",
        ),
        (
            c.RIGHT_NOT_GRANTED,
            s.DENIED,
            b.CALLER,
            changed,
            "Stay inside the granted paths, or ask for a wider capability.",
        ),
        (
            c.LEASE_NOT_GRANTED,
            s.DENIED,
            b.CALLER,
            changed,
            "Check the lease id and the token; use the token that lease create printed.",
        ),
        (
            c.STALE_GENERATION,
            s.DENIED,
            b.CALLER,
            changed,
            "Another owner took the lease over; create the lease again to get the current token.",
        ),
        (
            c.PEER_NOT_ALLOWED,
            s.DENIED,
            b.CALLER,
            never,
            "Ask the operator to map this user in the daemon's configuration.",
        ),
        (c.LEASE_EXPIRED, s.DENIED, b.CALLER, changed, "Create a new lease."),
        (
            c.UNENFORCEABLE,
            s.DENIED,
            b.HOST,
            changed,
            "This host or engine cannot enforce that part; run stockade doctor.",
        ),
        (
            c.NO_MATCH,
            s.REJECTED,
            b.CALLER,
            changed,
            "View the file and copy old_str from it exactly.",
        ),
        (
            c.MULTIPLE_MATCHES,
            s.REJECTED,
            b.CALLER,
            changed,
            "Add lines around old_str until it is unique, or set allow_multiple.",
        ),
        (
            c.VERSION_CONFLICT,
            s.REJECTED,
            b.CALLER,
            changed,
            "View the file again and edit its current version.",
        ),
        (
            c.NOT_FOUND,
            s.REJECTED,
            b.CALLER,
            changed,
            "Check the path; list the directory with bash_execute.",
        ),
        (
            c.NOT_A_REGULAR_FILE,
            s.REJECTED,
            b.CALLER,
            changed,
            "Only regular files can be viewed or edited.",
        ),
        (
            c.NOT_A_TEXT_FILE,
            s.REJECTED,
            b.CALLER,
            changed,
            "Inspect binary files with bash_execute.",
        ),
        (
            c.OUTSIDE_WORKSPACE,
            s.REJECTED,
            b.CALLER,
            changed,
            "File tools see /workspace and /tmp only.",
        ),
        (
            c.READ_ONLY_FILE,
            s.REJECTED,
            b.CALLER,
            changed,
            "Make the file writable first, or edit another file.",
        ),
        (
            c.FILE_TOO_LARGE,
            s.REJECTED,
            b.CALLER,
            changed,
            "Work on a file of this size with bash_execute: sed, head, tail or a script.",
        ),
        (
            c.SHELL_NOT_FOUND,
            s.REJECTED,
            b.CALLER,
            changed,
            "Use an image with bash or sh, or run a program by its path.",
        ),
        (
            c.COMMAND_NOT_FOUND,
            s.REJECTED,
            b.CALLER,
            changed,
            "Check the program's name and the image's PATH.",
        ),
        (c.KEY_REUSED, s.REJECTED, b.CALLER, changed, "Use a new call id for other arguments."),
        (
            c.DEPENDENCY_FAILED,
            s.REJECTED,
            b.CALLER,
            changed,
            "An earlier item failed; correct it first.",
        ),
        (
            c.SOURCE_UNUSABLE,
            s.REJECTED,
            b.CALLER,
            changed,
            "Give an existing, readable directory as the source.",
        ),
        (
            c.NONZERO_EXIT,
            s.FAILED,
            b.PROGRAM,
            changed,
            "Read stdout and stderr; the program decided this.",
        ),
        (
            c.KILLED_BY_SIGNAL,
            s.FAILED,
            b.PROGRAM,
            changed,
            "The program died by a signal of its own; read stdout and stderr.",
        ),
        (
            c.DEADLINE_EXCEEDED,
            s.TIMED_OUT,
            b.LIMIT,
            changed,
            "Give a larger timeout_ms or less work; everything the call started is dead.",
        ),
        (
            c.CANCELLED,
            s.CANCELLED,
            b.CALLER,
            same,
            "Cancelled on request; everything the call started is dead.",
        ),
        (c.MEMORY_EXCEEDED, s.LIMITED, b.LIMIT, changed, "Use less memory, or a lease with more."),
        (
            c.PIDS_EXCEEDED,
            s.LIMITED,
            b.LIMIT,
            changed,
            "Start fewer processes, or use a lease with more.",
        ),
        (
            c.DISK_FULL,
            s.LIMITED,
            b.LIMIT,
            changed,
            "Delete files, or use a lease with a larger disk.",
        ),
        (
            c.LEASE_EXPIRED_IN_CALL,
            s.LIMITED,
            b.LIMIT,
            changed,
            "Renew the lease before long calls; everything the call started is dead.",
        ),
        (
            c.IN_FLIGHT,
            s.UNAVAILABLE,
            b.HOST,
            same,
            "The same call is still running; repeat it to join.",
        ),
        (c.BUSY, s.UNAVAILABLE, b.HOST, later, "Repeat after retry_after_ms."),
        (c.SHUTTING_DOWN, s.UNAVAILABLE, b.HOST, later, "Repeat after the daemon has restarted."),
        (
            c.SANDBOX_UNAVAILABLE,
            s.UNAVAILABLE,
            b.SANDBOX,
            same,
            "Repeat the call; a new sandbox is made for it.",
        ),
        (c.ENGINE_UNAVAILABLE, s.UNAVAILABLE, b.HOST, later, "Run stockade doctor on the host."),
        (
            c.WORKSPACE_UNAVAILABLE,
            s.UNAVAILABLE,
            b.HOST,
            later,
            "Repeat later, or reset or release the lease.",
        ),
        (
            c.STORAGE_UNAVAILABLE,
            s.UNAVAILABLE,
            b.HOST,
            later,
            "Free disk space on the host; nothing ran.",
        ),
        (
            c.DAEMON_UNREACHABLE,
            s.UNAVAILABLE,
            b.HOST,
            later,
            "Start the daemon with: stockade serve",
        ),
        (
            c.INTERNAL,
            s.UNAVAILABLE,
            b.HOST,
            later,
            "A fault of Stockade before anything ran; its log names the request_id.",
        ),
        (
            c.IN_DOUBT,
            s.UNKNOWN,
            b.HOST,
            reconcile,
            "Look at the workspace before repeating; the call may have run.",
        ),
        (
            c.SANDBOX_LOST,
            s.UNKNOWN,
            b.SANDBOX,
            reconcile,
            "The sandbox died during the call; look at the workspace before repeating.",
        ),
        (
            c.CONNECTION_LOST,
            s.UNKNOWN,
            b.HOST,
            reconcile,
            "The reply was lost; look at the workspace before repeating.",
        ),
    ]
    return {code: Entry(status, blame, retry, hint) for code, status, blame, retry, hint in table}


REGISTRY: Final[dict[Code, Entry]] = _rows()

# Details are small scalars and lists of strings: numbers a program can use, never free objects.
DetailValue = int | str | bool | tuple[str, ...] | tuple[int, ...]


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing that went wrong. `rule` names what decided (a capability component, a check)."""

    code: Code
    message: str
    rule: str | None = None
    retry_after_ms: int | None = None
    details: dict[str, DetailValue] = field(default_factory=dict)

    @property
    def status(self) -> Status:
        return REGISTRY[self.code].status


class Failure(Exception):
    """Carries a `Fault` from where it is known to the pipeline, which answers with it."""

    def __init__(self, fault: Fault) -> None:
        super().__init__(f"{fault.code}: {fault.message}")
        self.fault = fault


def failure(
    code: Code,
    message: str,
    *,
    rule: str | None = None,
    retry_after_ms: int | None = None,
    **details: DetailValue,
) -> Failure:
    """Build a `Failure`; `details` become `error.details`."""
    return Failure(Fault(code, message, rule, retry_after_ms, details))
