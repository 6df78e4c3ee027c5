"""What each code means: one status, one fault (whose doing it is), one retry advice, one hint."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from stockade.terms.codes import Blame, Code, Retry, Status


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
        (
            c.TOKEN_TOO_LONG,
            s.DENIED,
            b.CALLER,
            changed,
            "Use fewer blocks, or shorter lists in them.",
        ),
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
            c.TOKEN_REVOKED,
            s.DENIED,
            b.CALLER,
            never,
            "The capability, or one it was made from, was revoked; ask its issuer for another.",
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
            "Ask for no more than the tenant's ceiling, or for what it leaves (within_ceiling).",
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
            c.CHECK_FAILED,
            s.DENIED,
            b.CALLER,
            changed,
            "Change the argument named in details to what the capability's check allows.",
        ),
        (
            c.BUDGET_EXHAUSTED,
            s.DENIED,
            b.CALLER,
            never,
            "The budget named in details is spent; ask for a capability with a new one.",
        ),
        (
            c.APPROVAL_DENIED,
            s.DENIED,
            b.CALLER,
            never,
            "A person refused this exact call; do something else, or ask them.",
        ),
        (
            c.UNENFORCEABLE,
            s.DENIED,
            b.HOST,
            changed,
            "This host or engine cannot enforce that part; run stockade doctor.",
        ),
        (
            c.APPROVAL_NEEDED,
            s.APPROVAL_REQUIRED,
            b.CALLER,
            same,
            "A person must approve the request named in details; then repeat this exact call.",
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
            "Check the path or the id; directories are listed with bash_execute.",
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
            "If a command took bash and sh away, reset the lease; else use an image with one.",
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
            c.KEY_IN_USE,
            s.REJECTED,
            b.CALLER,
            changed,
            "See key list. Before an older key is retired, take its leases over or wait for their "
            "end; force it to end their tokens at once.",
        ),
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
            changed,
            "Cancelled on request; everything the call started is dead. Under its call id it stays "
            "cancelled; to start it again, use a new one.",
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
            c.BUDGET_EXCEEDED,
            s.LIMITED,
            b.LIMIT,
            never,
            "The budget named in details ran out during the call; ask for a capability with a new one.",
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
            "Free disk space on the host, end what holds the ledger, or mend the file that is "
            "named; nothing ran.",
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
