"""What the edges need from the runtime, as one structural type.

The daemon implements it over the flow; the tests of the edges over a fake. Methods are called from
many threads at once and may block. `Failure` is how a method refuses; the API turns it into the
reply's shape. `context.peer` is already known to be allowed here; whether it may touch this lease,
and with which token, is for the service to decide.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

from stockade.edge.audit_wire import (
    AuditRecords,
    AuditStatus,
    ExportedRequest,
    RecordsQuery,
)
from stockade.edge.authority_wire import (
    KeyList,
    MintReply,
    MintRequest,
    RetireRequest,
    RevocationList,
    RevocationView,
    RevokeRequest,
)
from stockade.edge.budget_wire import (
    ApprovalDecision,
    ApprovalList,
    ApprovalView,
    SpendReport,
)
from stockade.edge.claim_wire import CallList, CallRecord, CallsQuery, CallView, SettleRequest
from stockade.edge.exchange import Peer, Role, Write
from stockade.edge.secret_wire import SecretAdd, SecretList, SecretRemove, SecretView
from stockade.edge.watching import UNWATCHED, CallWatch
from stockade.edge.wire import (
    ArtifactRange,
    CallRequest,
    CancelRequest,
    DoctorReport,
    LeaseCreate,
    LeaseExport,
    LeaseRenew,
    LeaseReply,
    LeaseView,
    RunRequest,
)
from stockade.terms.audit import Acting
from stockade.terms.fault import Code, Fault, failure
from stockade.terms.ports import Tee
from stockade.terms.result import ToolResult


@dataclass(frozen=True, slots=True)
class Context:
    """Of one attempt: its id (for result, log and audit), who asks, and the token that came."""

    request_id: str
    peer: Peer
    token: str | None
    client: str | None = None
    model: str | None = None
    watch: CallWatch = UNWATCHED

    @property
    def by(self) -> str:
        """Who asks, in a word that is kept."""
        return f"uid {self.peer.uid}"

    @property
    def who(self) -> Acting:
        """As the audit names them."""
        return Acting(self.by, self.request_id, self.client, self.model)

    def operators_only(self, what: str) -> None:
        """Raises Failure(peer_not_allowed) for everybody else."""
        if self.peer.role is not Role.OPERATOR:
            raise failure(Code.PEER_NOT_ALLOWED, f"only an operator may {what}", rule="peer.role")

    def call_token(self) -> str | None:
        """Raises Failure(token_missing) unless the peer may do without."""
        if self.token is None and not self.peer.own:
            raise failure(Code.TOKEN_MISSING, "this user's calls need the lease's token")
        return self.token


class AuditVerbs(Protocol):
    """The audit. Each method knows itself who may call it."""

    def status(self, context: Context) -> AuditStatus: ...
    def records(self, context: Context, query: RecordsQuery) -> Iterator[bytes]:
        """Records as lines, some at a time. Refuses before the first."""

    def show(self, context: Context, call: str) -> AuditRecords: ...
    def refused(self, who: Acting, peer: Peer | None, what: str, fault: Fault) -> None:
        """Record that a request was denied. Never raises Failure."""

    def seal(self, context: Context) -> AuditStatus: ...
    def exported(self, context: Context, request: ExportedRequest) -> AuditStatus: ...


class BudgetVerbs(Protocol):
    """Budgets and approvals. Each method knows itself who may call it."""

    def spend(self, context: Context, lease: str | None) -> SpendReport:
        """Of `lease`'s capability where one is named, else of the one that came."""

    def approvals(self, context: Context) -> ApprovalList: ...
    def approval(self, context: Context, approval_id: str) -> ApprovalView: ...
    def decide(
        self, context: Context, approval_id: str, request: ApprovalDecision, *, granted: bool
    ) -> ApprovalView: ...


class ClaimVerbs(Protocol):
    """Calls that were made. Each method knows itself who may see and settle which."""

    def calls(self, context: Context, query: CallsQuery) -> CallList: ...
    def call_record(self, context: Context, claim_id: str) -> CallRecord: ...
    def settle(self, context: Context, claim_id: str, request: SettleRequest) -> CallView: ...


class AuthorityVerbs(Protocol):
    """Minting, keys and revocation. Each method knows itself who may call it."""

    def mint(self, context: Context, request: MintRequest) -> MintReply: ...
    def revoke(self, context: Context, request: RevokeRequest) -> RevocationView: ...
    def revocations(self, context: Context) -> RevocationList: ...
    def keys(self, context: Context) -> KeyList: ...
    def rotate(self, context: Context) -> KeyList: ...
    def retire(self, context: Context, request: RetireRequest) -> KeyList: ...


class LeaseVerbs(Protocol):
    """Operations on leases."""

    def create(self, context: Context, request: LeaseCreate) -> LeaseReply: ...
    def all(self, context: Context) -> Sequence[LeaseView]: ...
    def show(self, context: Context, lease: str) -> LeaseView: ...
    def renew(self, context: Context, lease: str, request: LeaseRenew) -> ToolResult: ...
    def reset(self, context: Context, lease: str) -> ToolResult: ...
    def export(self, context: Context, lease: str, request: LeaseExport) -> ToolResult: ...
    def release(self, context: Context, lease: str) -> ToolResult: ...
    def patch(self, context: Context, lease: str, write: Write) -> None:
        """Write the lease's changes as a git-applicable patch. Raises before the first byte."""


class SecretVerbs(Protocol):
    """Registered secrets of leases. A value goes in and never comes out."""

    def add(self, context: Context, lease: str, request: SecretAdd) -> SecretView: ...
    def list(self, context: Context, lease: str) -> SecretList: ...
    def remove(self, context: Context, lease: str, request: SecretRemove) -> SecretList: ...


class WatchVerbs(Protocol):
    """Figures and readiness."""

    def metrics(self, context: Context) -> tuple[bytes, str]:
        """Text and its type. Knows itself who may read it."""

    def not_ready(self) -> Sequence[str]:
        """Why no call can be served now; empty when one can."""


class Service(Protocol):
    @property
    def watching(self) -> WatchVerbs: ...
    @property
    def authority(self) -> AuthorityVerbs: ...
    @property
    def budgets(self) -> BudgetVerbs: ...
    @property
    def claims(self) -> ClaimVerbs: ...
    @property
    def audit(self) -> AuditVerbs: ...
    @property
    def secrets(self) -> SecretVerbs: ...
    @property
    def leases(self) -> LeaseVerbs: ...
    def call(self, context: Context, request: CallRequest) -> ToolResult: ...
    def run(self, context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        """`tee` gets every byte while it is read, and blocks while the client is slow. `stdin`
        stays the caller's to close."""

    def cancel(self, context: Context, request: CancelRequest) -> int:
        """Gives how many running calls were told to end; 0 when there is none (any more)."""

    def read_file(self, context: Context, lease: str, path: str) -> tuple[int, Iterator[bytes]]: ...
    def write_file(
        self, context: Context, lease: str, path: str, content: Iterator[bytes]
    ) -> str: ...
    def read_artifact(self, context: Context, request: ArtifactRange) -> bytes: ...
    def doctor(self, context: Context) -> DoctorReport: ...
