"""What carrying out an operation gave, before it is shaped into a result. No text, no advice."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from stockade.terms.spend import Shortage


class End(StrEnum):
    """Why an execution ended."""

    EXITED = "exited"
    SIGNALED = "signaled"
    DEADLINE = "deadline"
    CANCELLED = "cancelled"
    LEASE_EXPIRED = "lease_expired"
    BUDGET = "budget"  # no budget was left for it to go on
    NOT_FOUND = "not_found"  # none of the paths could be executed; nothing ran
    LOST = "lost"  # the sandbox died under the call


@dataclass(frozen=True, slots=True)
class Captured:
    """One stream as read: `head` and `tail` are adjacent or have `total - len` bytes between.

    `after_head` and `before_tail` are bytes beyond the two cuts, to be searched and never shown.
    `shown` is what stands in the place of head and tail where something in them is hidden.
    """

    head: bytes
    tail: bytes
    total_bytes: int
    artifact: CapturedArtifact | None = None
    after_head: bytes = b""
    before_tail: bytes = b""
    shown: tuple[bytes, bytes] | None = None

    @property
    def whole(self) -> bool:
        return self.total_bytes <= len(self.head) + len(self.tail)


@dataclass(frozen=True, slots=True)
class CapturedArtifact:
    id: str
    bytes: int
    complete: bool


@dataclass(frozen=True, slots=True)
class ExecOutcome:
    """`value` is the exit code or the signal number. Counters are deltas of this call; None where
    this host cannot measure them. `kill_confirmed_ms` is the time from deadline to confirmed death; `left_ended`
    are processes that were left running and were ended as a fork bomb.
    `shortage` is what ended it, where that is a budget and known."""

    end: End
    value: int | None
    stdout: Captured
    stderr: Captured
    wall_ms: int
    cpu_ms: int | None = None
    peak_memory_bytes: int | None = None
    oom_kills: int = 0
    pids_refused: int = 0
    left_running: int = 0
    left_ended: int = 0
    kill_confirmed_ms: int | None = None
    errno: int | None = None
    shortage: Shortage | None = None


@dataclass(frozen=True, slots=True)
class ViewOutcome:
    """`lines` are raw bytes with their line endings, at most the operation's bounds; `cut` are the
    1-based numbers of lines that were longer than the bound. `path` is the resolved one.
    `total_lines_at_least` says that `total_lines` is a lower bound: the file is too large to count."""

    path: str
    lines: tuple[bytes, ...]
    first_line: int
    total_lines: int
    bytes: int
    version: str
    line_endings: str
    final_newline: bool
    bom: bool
    cut: tuple[int, ...]
    stopped_at_bytes: bool
    total_lines_at_least: bool = False


@dataclass(frozen=True, slots=True)
class EditOutcome:
    path: str
    replacements: int
    old_version: str
    new_version: str
    diff: str
    diff_truncated: bool
