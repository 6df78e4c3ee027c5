"""What the flow needs from the layers below it, as structural types.

`flow` knows these and no implementation. Each has at least two: the real one and the fake of
`stockade.testing`, which pass the same conformance suite.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import BinaryIO, Final, Protocol

from stockade.terms.authority import Revocation
from stockade.terms.call import EditOperation, ExecOperation, ViewOperation
from stockade.terms.claim import Evidence
from stockade.terms.grant import Check
from stockade.terms.lease import LeaseRecord
from stockade.terms.moment import Moment
from stockade.terms.outcome import CapturedArtifact, EditOutcome, ExecOutcome, ViewOutcome
from stockade.terms.patience import CancelSignal, Patience
from stockade.terms.plan import Limits, SandboxPlan
from stockade.terms.result import EngineRef


@dataclass(frozen=True, slots=True)
class PathScope:
    """Where a file tool may go, as container path prefixes (from the permit), and the checks that
    the path which is reached must satisfy."""

    read: tuple[str, ...]
    write: tuple[str, ...]
    deny: tuple[str, ...]
    checks: tuple[Check, ...] = ()


class ArtifactSink(Protocol):
    """Receives one stream's raw bytes while they are read. Writes never raise: a full disk makes
    the artifact incomplete and the call goes on. When a write returns the bytes outlive the process,
    but for those that are held back."""

    @property
    def id(self) -> str:
        """The id that the artifact has if there is one."""

    def write(self, data: bytes | memoryview) -> None: ...
    def finish(self) -> CapturedArtifact | None:
        """The artifact, or None when nothing had to be kept (the text holds every byte)."""


# Bytes of an artifact that are read at once.
MAX_ARTIFACT_READ: Final = 4 * 1024 * 1024


class ArtifactStore(Protocol):
    def open(self, lease_id: str, name: str, keep_from: int, limit_bytes: int) -> ArtifactSink:
        """A sink that keeps nothing until more than `keep_from` bytes came, then up to
        `limit_bytes`: the first half and the last half of the stream."""

    def resume(
        self,
        lease_id: str,
        artifact_id: str,
        name: str,
        keep_from: int,
        limit_bytes: int,
        offset: int,
    ) -> ArtifactSink:
        """Go on with the artifact of a process that has died, from the stream's `offset` on: 0 or
        more than `keep_from`, and no more than was written. Bytes that were may come again."""

    def read(self, lease_id: str, artifact_id: str, offset: int, length: int) -> bytes:
        """Bytes from stream offset `offset`, at most `length` and
        `MAX_ARTIFACT_READ`; empty at the end of the stream.
        Inside the part that was not kept: Failure(not_found) whose details name its borders."""

    def remove(self, lease_id: str) -> None: ...
    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]:
        """Like `Engine.sweep`."""


# stream number (1 stdout, 2 stderr) and bytes as they are read; must not keep the view
Tee = Callable[[int, memoryview], None]


class CpuMeter(Protocol):
    """Holds one command to budgets of processor time. Whoever runs it asks when it starts and
    again whenever the time of the last answer is over."""

    def more(self, used_ms: int) -> int | None:
        """For how many milliseconds of time the command may go on, having used `used_ms` of
        processor time in all; None: it must be ended now. Never raises."""


@dataclass(frozen=True, slots=True)
class ExecContext:
    """What an execution is given beside its operation. `stdin` is a descriptor or None (empty).
    `deadline` of the lease is watched by the flow through `cancel`. With `cpu` nothing of the call
    may outlive it: what it leaves running would use time that nobody accounts for.

    `starting(sandbox, call)` is called before a command is given to a sandbox, and again if that
    one turns out not to have read it: the names under which `Engine.evidence` knows it later, until
    `Engine.forget`. What it raises ends the call, and nothing has run. Without it nothing is kept
    once the call has returned."""

    lease_id: str
    cancel: CancelSignal
    artifacts: ArtifactStore
    tee: Tee | None = None
    stdin: int | None = None
    cpu: CpuMeter | None = None
    starting: Callable[[str, str], None] | None = None


class Sandbox(Protocol):
    """A running container that carries out one plan for one lease. Thread-safe."""

    @property
    def digest(self) -> str: ...
    def alive(self) -> bool: ...
    def execute(self, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        """Run to a verdict. Returns only when the program has ended and been drained, or its
        whole tree is dead. Raises Failure(sandbox_unavailable) if nothing was started."""

    def close(self) -> None:
        """Kill everything and confirm it. Idempotent."""

    def busy(self) -> bool:
        """Whether a command of an earlier process goes on in it."""

    def leave(self) -> None:
        """Let go of it as it is: the next process on this state directory takes it back. No call is
        running in it."""


class LeftCall(Protocol):
    """A command that an earlier process gave to a sandbox and that nobody has forgotten. `sandbox`
    and `call` are its names; `asked` says that `Engine.evidence` was asked for it."""

    @property
    def sandbox(self) -> str: ...
    @property
    def call(self) -> str: ...
    @property
    def lease_id(self) -> str: ...
    @property
    def asked(self) -> bool: ...
    def evidence(self) -> Evidence:
        """See `Engine.evidence`."""


@dataclass(frozen=True, slots=True)
class Survivor:
    """A sandbox that an earlier process made. One that is not `current` was made by another version
    of the program: it finishes what runs in it and takes no new call."""

    lease_id: str
    sandbox: Sandbox
    current: bool


@dataclass(frozen=True, slots=True)
class LeaseTree:
    """The mounted tree of a lease: `root_fd` is a directory that holds `workspace` and `tmp`,
    `path` the same directory in the mount namespace that the workspaces keep, and `disk_path` the
    lease's size-limited file system there, for the writable layers of its sandboxes. `limits` are
    the lease's own: what all its sandboxes together may use."""

    lease_id: str
    uid_base: int
    root_fd: int
    path: str
    disk_path: str
    limits: Limits


class Engine(Protocol):
    def describe(self) -> EngineRef: ...
    def check(self, plan: SandboxPlan) -> None:
        """Raises Failure(unenforceable) when a part of the plan can't be enforced here."""

    def expect(self) -> None:
        """A lease is being made: a sandbox will be asked for in a moment. What any of them needs
        may be begun. Returns at once, raises nothing and may be called at any time: nothing depends
        on it, and nothing of it belongs to a lease."""

    def create(
        self, tree: LeaseTree, plan: SandboxPlan, digest: str, patience: Patience
    ) -> Sandbox:
        """Raises Failure: sandbox_unavailable, engine_unavailable, disk_full, unenforceable; and
        when `patience` is over before it is made. What was begun is ended then, or left to
        `release` and `sweep` where it does not end."""

    def evidence(self, sandbox: str, call: str) -> Evidence:
        """What is known of a command that an earlier process gave to a sandbox, by the names that
        `ExecContext.starting` was called with. Raises Failure when it can't be looked at now."""

    def forget(self, sandbox: str, call: str) -> None:
        """The outcome of a command is where it belongs, or nobody wants it. Unknown names are
        fine."""

    def release(self, lease_id: str) -> None:
        """Remove what the lease's sandboxes shared. Every sandbox of it is closed."""

    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]:
        """Remove what belongs to this instance and to no live lease; what could not be removed
        is returned by name and tried again by the next sweep. First list what is there, then ask
        `live`, which looks at the moment it is asked: a lease is recorded before anything of it
        is made, so what was found and is not live belongs to nobody, also while leases are made."""

    def close(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WorkspaceSpec:
    lease_id: str
    uid_base: int
    source: str | None
    excludes: tuple[str, ...]
    limits: Limits
    tmp_bytes: int


@dataclass(frozen=True, slots=True)
class SourceReport:
    """`skipped` are sockets, devices and FIFOs of the source, which are not copied."""

    files: int
    bytes: int
    skipped: int


@dataclass(frozen=True, slots=True)
class Change:
    """One path that differs from the source: kind is added, modified, deleted or type_changed."""

    path: bytes
    kind: str


class Files(Protocol):
    """File tools on the host below an openat2 root. Authority is checked on the resolved path."""

    def view(self, operation: ViewOperation, scope: PathScope) -> ViewOutcome: ...
    def edit(
        self,
        operation: EditOperation,
        scope: PathScope,
        before: Callable[[EditOutcome], None] = ...,
    ) -> EditOutcome:
        """`before` is called with what the edit is about to do, before it does it; again when the
        file was changed meanwhile. What it raises ends the edit, and nothing has changed."""

    def tidy(self, edit: EditOutcome, scope: PathScope) -> None:
        """Remove what an `edit` that was cut off can have left beside its file. Raises Failure."""

    def look(self, path: str, scope: PathScope) -> None:
        """Raises Failure for a path that `view` would refuse, directories excepted."""

    def read(self, path: str, scope: PathScope) -> tuple[int, Iterator[bytes]]:
        """Size and content of a regular file. Raises Failure."""

    def write(self, path: str, content: Iterator[bytes], scope: PathScope) -> str:
        """Create or replace a whole file atomically; parents are made. Gives the new version."""


@dataclass(frozen=True, slots=True)
class GivenBack:
    """`size` is that of a patch in bytes, of an export in files and links. `skipped` could not be
    given back; `left_out` names them with the reason, a bounded number of lines."""

    size: int
    skipped: int
    left_out: tuple[str, ...]


class Workspace(Protocol):
    """The attached workspace of one lease."""

    @property
    def tree(self) -> LeaseTree: ...
    @property
    def files(self) -> Files: ...
    def changes(self) -> Iterator[Change]:
        """One by one, because there may be as many as the lease has inodes. To be exhausted."""

    def patch(self, out: BinaryIO) -> GivenBack:
        """Write a git-applicable patch of the changes."""

    def export(self, target: str) -> GivenBack:
        """Apply the changes to host directory `target`, with the source's owner."""


class Workspaces(Protocol):
    def create(self, spec: WorkspaceSpec) -> SourceReport: ...
    def fork(self, spec: WorkspaceSpec, origin: WorkspaceSpec, read: Sequence[str]) -> SourceReport:
        """As `create`, with what the workspace of `origin` holds now below the container paths
        `read` in place of a source. The copy counts against the new one's own disk and inodes.
        Raises Failure: disk_full, busy (it was changed meanwhile), storage_unavailable,
        workspace_unavailable; nothing is left then."""

    def attach(self, spec: WorkspaceSpec) -> Workspace:
        """Mount, or give the one that is mounted. Idempotent, also after a restart."""

    def reset(self, spec: WorkspaceSpec) -> Workspace:
        """Drop everything written since create. No sandbox of the lease may be alive."""

    def remove(self, lease_id: str) -> None: ...
    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]: ...
    def close(self) -> None: ...


class Ledger(Protocol):
    """Durable state. Every method is one transaction; raises Failure(storage_unavailable)."""

    def add_lease(self, record: LeaseRecord) -> None: ...
    def put_lease(self, record: LeaseRecord) -> None: ...
    def lease(self, lease_id: str) -> LeaseRecord | None: ...
    def find_lease(self, tenant: str, trajectory: str, name: str) -> LeaseRecord | None:
        """The lease that is not released, if any."""

    def leases(self, tenant: str | None = None) -> Sequence[LeaseRecord]:
        """Every lease that is not released, oldest first."""

    def sharing(self, lease_id: str) -> Sequence[LeaseRecord]:
        """Every lease whose `shares` is this one and that is not released, oldest first."""

    def next_uid_slot(self) -> int: ...
    def tidy(self) -> None:
        """What keeps it fast; called once a second, by one thread."""

    def sweep(self, now: Moment) -> None:
        """Forget sums of blocks that ended long before, and approvals of leases that ended."""

    @property
    def forgotten_before_s(self) -> float:
        """Blocks that ended before this are of no more use, as of the last `sweep`. No step of the
        wall clock forward moves it."""

    def add_revocation(self, made: Revocation, ended_before_s: float) -> None:
        """Idempotent. Drops the rows of blocks that ended before `ended_before_s`."""

    def revocations(self) -> Sequence[Revocation]:
        """Every block that is revoked, oldest first."""

    def close(self) -> None: ...


Clock = Callable[[], float]  # seconds since the epoch
