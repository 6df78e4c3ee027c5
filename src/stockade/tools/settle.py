"""What became of a call that a crash has cut off: the pure part, one rule for each way of knowing.

A tool says in its definition which one is its own. An edit is settled by the file: whoever edits
writes down both versions beforehand, and one edit of a file follows the other. A command is settled
by what is left of it, which is for the engine to say.
"""

from __future__ import annotations

from collections.abc import Collection
from enum import StrEnum

from stockade.terms.outcome import EditOutcome


class Probe(StrEnum):
    """How an interrupted call of a tool is settled: not at all (it has no effect), by the version
    of the file, by evidence of the engine."""

    NONE = "none"
    VERSION = "version"
    EVIDENCE = "evidence"


class Found(StrEnum):
    EXECUTED = "executed"
    NOT_EXECUTED = "not_executed"
    UNKNOWN = "unknown"


def settle_edit(foreseen: EditOutcome, current: str | None, later: Collection[str] = ()) -> Found:
    """`current` is the version of the file now, None when there is no such file; `later` are the
    versions that later edits of it began with."""
    if foreseen.new_version == current or foreseen.new_version in later:
        return Found.EXECUTED
    return Found.NOT_EXECUTED if foreseen.old_version == current else Found.UNKNOWN
