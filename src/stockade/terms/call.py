"""A call as it passes through the pipeline: what was asked, and what it was allowed."""

from __future__ import annotations

from dataclasses import dataclass

from stockade.terms.grant import Grant, Total
from stockade.terms.plan import Kind


@dataclass(frozen=True, slots=True)
class Permit:
    """A verified chain and what it comes to. Only `decide` makes one; nothing runs without it.

    `grant` is the last block's components: `verify` has checked that each block is no wider than
    the one before, so the last one is the meet of the chain. `chain` are block ids, root first;
    `totals` are the blocks' budgets in the same order, because what is spent under a block counts
    against each one before it too. `ends` are their `not_after_s`. `bound_at` is the place in
    `chain` of the block that set the lease binding which is in force at the end.
    """

    tenant: str
    trajectory: str
    chain: tuple[str, ...]
    totals: tuple[Total, ...]
    ends: tuple[int, ...]
    grant: Grant
    lease_id: str | None
    generation: int | None
    not_after_s: int
    bound_at: int | None = None


@dataclass(frozen=True, slots=True)
class Right:
    """One thing a call needs: a right on an object ("read" on "/workspace/a"), from the tool's
    target table. For file tools the object is checked again on the resolved path."""

    right: str
    object: str


@dataclass(frozen=True, slots=True)
class Capture:
    """Bounds of one output stream. Kept text is `head_bytes` + `tail_bytes`; the artifact holds
    up to `artifact_bytes` (half head, half tail); 0 keeps no artifact. `context_bytes` are kept beyond
    each of the two cuts, to be searched and never shown."""

    head_bytes: int
    tail_bytes: int
    artifact_bytes: int
    context_bytes: int = 0


@dataclass(frozen=True, slots=True)
class ExecOperation:
    """Start one program in a sandbox of `kind`.

    `paths` are tried in order until one exists (execve(2) gives ENOENT, ENOTDIR or EACCES for the
    others), so that the host never looks a name up in a tree that the sandbox can change.

    `late` says that the last argument is text which the program reads when it runs and not before:
    the program may be started ahead of it.

    `searches` is the container path that a search begins at. It must lead to a directory or a
    regular file when the program starts: it would wait on a FIFO until its time is over.
    """

    kind: Kind
    paths: tuple[bytes, ...]
    argv: tuple[bytes, ...]
    env: tuple[tuple[bytes, bytes], ...]
    cwd: bytes
    timeout_ms: int
    capture: Capture
    searches: str | None = None
    late: bool = False


@dataclass(frozen=True, slots=True)
class ViewOperation:
    path: str
    offset: int
    limit: int
    max_bytes: int
    max_line_chars: int


@dataclass(frozen=True, slots=True)
class EditOperation:
    path: str
    old: bytes
    new: bytes
    allow_multiple: bool
    expected_version: str | None
    max_diff_bytes: int


Operation = ExecOperation | ViewOperation | EditOperation
