"""A fake service, an API over it, a real HTTP server on a real socket, and clients of it."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import pytest

from stockade.edge.api import Api
from stockade.edge.audit_wire import AuditRecords, AuditStatus, ExportedRequest, RecordsQuery
from stockade.edge.authority_wire import (
    KeyList,
    KeyView,
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
    BlockSpend,
    BudgetView,
    Left,
    SpendReport,
)
from stockade.edge.claim_wire import CallList, CallRecord, CallsQuery, CallView, SettleRequest
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role, Write
from stockade.edge.refusal import refusal
from stockade.edge.secret_wire import SecretAdd, SecretList, SecretRemove, SecretView
from stockade.edge.server.http import HttpServer
from stockade.edge.service import Context
from stockade.edge.wire import (
    ArtifactRange,
    CallRequest,
    CancelRequest,
    DoctorReport,
    LeaseCreate,
    LeaseExport,
    LeaseGranted,
    LeaseRenew,
    LeaseReply,
    LeaseView,
    RunRequest,
)
from stockade.terms.approval import ApprovalState
from stockade.terms.audit import Acting
from stockade.terms.claim import ClaimState
from stockade.terms.fault import Code, Fault, Status, failure
from stockade.terms.ids import CallRef
from stockade.terms.ports import Tee
from stockade.terms.result import Exit, ExportData, ToolResult
from tests.raw import ask

LEASE = "ls_0123456789abcdef"
TOKEN = "st1.token.of-the-lease"
BLOCK = "0123456789abcdef" * 2
REVOKED = RevocationView(
    block=BLOCK,
    revoked_at="2025-01-01T00:00:00Z",
    revoked_by="uid 0",
    reason="leaked",
    not_after=None,
)
APPROVAL = ApprovalView(
    id="ap_" + BLOCK,
    tenant="acme",
    lease_id=LEASE,
    tool="run",
    arguments={"argv": ["\x1b[2J"]},
    state=ApprovalState.ASKED,
    asked_at="2025-01-01T00:00:00Z",
    decided_at=None,
    decided_by=None,
    reason=None,
)
SPEND = SpendReport(
    left=Left(calls=3, cost_micro=None, cpu_ms=None, egress_bytes=None),
    blocks=[
        BlockSpend(
            block=BLOCK,
            not_after_s=10,
            budgets=[BudgetView(component="calls", total=4, spent=1)],
        )
    ],
)
CALL_VIEW = CallView(
    id="cl_" + BLOCK,
    state=ClaimState.IN_DOUBT,
    call=CallRef(lease_id=LEASE, trajectory_id="t1", turn=1, call_id="c1", tool="run"),
    tenant="acme",
    created_at="2025-01-01T00:00:00Z",
    settled_at=None,
    settled_by=None,
    reason="its sandbox\x1b[2J ended",
)
CALL_RECORD = CallRecord(
    **dict(CALL_VIEW),
    key=BLOCK * 2,
    arguments={"argv": ["\x1b[2J"]},
    request_id="rq_1",
    generation=1,
    workspace_version="1",
    image="host",
    plan_digest=None,
    capability_chain=[BLOCK],
    result=None,
)
KEYS = KeyList(keys=[KeyView(kid="k1", current=True, leases=2)])
GATE_S = 20  # a test that waits longer than this has failed


class ResultOf(Protocol):
    """`make_result`, as the fixture gives it."""

    def __call__(
        self,
        request_id: str,
        status: Status = Status.SUCCEEDED,
        code: Code | None = None,
        *,
        tool: str = "bash_execute",
        exit_: Exit | None = None,
        data: ExportData | None = None,
    ) -> ToolResult: ...


def make_result(
    request_id: str,
    status: Status = Status.SUCCEEDED,
    code: Code | None = None,
    *,
    tool: str = "bash_execute",
    exit_: Exit | None = None,
    data: ExportData | None = None,
) -> ToolResult:
    """A result of any status, with the shape of a real one."""
    call = CallRef(lease_id=LEASE, trajectory_id="t1", turn=None, call_id=None, tool=tool)
    blank = refusal(Fault(code or Code.INTERNAL, "told by the fake"), request_id, "0", call)
    update: dict[str, object] = {"status": status, "exit": exit_, "data": data}
    if code is None:
        update["error"] = None
    return blank.model_copy(update=update)


def view(trajectory: str = "t1") -> LeaseView:
    return LeaseView(
        lease_id=LEASE,
        tenant="acme",
        trajectory=trajectory,
        name="main",
        state="ready",
        generation=1,
        image="host",
        source=None,
        created_at="2025-01-01T00:00:00Z",
        expires_at="2025-01-01T01:00:00Z",
        not_after="2025-01-02T00:00:00Z",
    )


EXPORTED = ExportData(kind="export", added=1, modified=2, deleted=0, skipped=0, patch_bytes=None)


@dataclass
class FakeAudit:
    """Three records that are none of a chain."""

    denied: list[tuple[str | None, str, Code]] = field(default_factory=list)

    def status(self, context: Context) -> AuditStatus:
        return AuditStatus(
            first=1, last=3, hash="0" * 64, exported=0, key="1" * 64, checkpoint=None
        )

    def records(self, context: Context, query: RecordsQuery) -> Iterator[bytes]:
        return iter((b"{}\n",) * 3)

    def show(self, context: Context, call: str) -> AuditRecords:
        return AuditRecords(records=[])

    def refused(self, who: Acting, peer: Peer | None, what: str, fault: Fault) -> None:
        self.denied.append((who.actor, what, fault.code))

    def seal(self, context: Context) -> AuditStatus:
        return self.status(context)

    def exported(self, context: Context, request: ExportedRequest) -> AuditStatus:
        return self.status(context)


@dataclass
class FakeAuthority:
    """One key, one capability, and one revocation of whatever is asked."""

    seen: list[tuple[str, object]] = field(default_factory=list)

    def mint(self, context: Context, request: MintRequest) -> MintReply:
        self.seen.append(("mint", request))
        return MintReply(token=TOKEN, cut=[])

    def revoke(self, context: Context, request: RevokeRequest) -> RevocationView:
        self.seen.append(("revoke", request))
        return REVOKED

    def revocations(self, context: Context) -> RevocationList:
        return RevocationList(revocations=[REVOKED])

    def keys(self, context: Context) -> KeyList:
        return KEYS

    def rotate(self, context: Context) -> KeyList:
        self.seen.append(("rotate", None))
        return KEYS

    def retire(self, context: Context, request: RetireRequest) -> KeyList:
        self.seen.append(("retire", request))
        return KEYS


@dataclass
class FakeBudgets:
    """One request for approval, and four calls of which three are left."""

    seen: list[tuple[str, object]] = field(default_factory=list)

    def spend(self, context: Context, lease: str | None) -> SpendReport:
        self.seen.append(("spend", (context.token, lease)))
        return SPEND

    def approvals(self, context: Context) -> ApprovalList:
        return ApprovalList(approvals=[APPROVAL])

    def approval(self, context: Context, approval_id: str) -> ApprovalView:
        self.seen.append(("approval", approval_id))
        return APPROVAL

    def decide(
        self, context: Context, approval_id: str, request: ApprovalDecision, *, granted: bool
    ) -> ApprovalView:
        self.seen.append(("decide", (approval_id, request.reason, granted)))
        return APPROVAL


SECRET = SecretView(name="TOKEN", redact_only=True, added_at="2025-01-01T00:00:00Z")


@dataclass
class FakeSecrets:
    """Implements `edge.service.SecretVerbs`."""

    seen: list[tuple[str, str, str]] = field(default_factory=list)

    def add(self, context: Context, lease: str, request: SecretAdd) -> SecretView:
        self.seen.append(("add", lease, request.value_base64))
        return SECRET

    def list(self, context: Context, lease: str) -> SecretList:
        self.seen.append(("list", lease, ""))
        return SecretList(secrets=[SECRET])

    def remove(self, context: Context, lease: str, request: SecretRemove) -> SecretList:
        self.seen.append(("remove", lease, request.name))
        return SecretList(secrets=[])


@dataclass
class FakeClaims:
    """One call in doubt."""

    seen: list[tuple[str, object]] = field(default_factory=list)

    def calls(self, context: Context, query: CallsQuery) -> CallList:
        self.seen.append(("calls", query))
        return CallList(calls=[CALL_VIEW])

    def call_record(self, context: Context, claim_id: str) -> CallRecord:
        self.seen.append(("call", (context.token, claim_id)))
        return CALL_RECORD

    def settle(self, context: Context, claim_id: str, request: SettleRequest) -> CallView:
        self.seen.append(("settle", (claim_id, request)))
        return CALL_VIEW


@dataclass
class FakeWatching:
    """One figure; ready unless a test says why not."""

    reasons: list[str] = field(default_factory=list)

    def metrics(self, context: Context) -> tuple[bytes, str]:
        context.operators_only("read figures")
        return b"stockade_leases 1.0\n", "text/plain"

    def not_ready(self) -> Sequence[str]:
        return self.reasons


@dataclass
class FakeService:
    """Answers everything at once. A test replaces one verb by assigning to `on_call` and so on,
    and reads what arrived from `seen`."""

    seen: list[tuple[str, Any]] = field(default_factory=list)
    authority: FakeAuthority = field(default_factory=FakeAuthority)
    budgets: FakeBudgets = field(default_factory=FakeBudgets)
    claims: FakeClaims = field(default_factory=FakeClaims)
    audit: FakeAudit = field(default_factory=FakeAudit)
    secrets: FakeSecrets = field(default_factory=FakeSecrets)
    watching: FakeWatching = field(default_factory=FakeWatching)
    contexts: list[Context] = field(default_factory=list)
    files: dict[str, bytes] = field(default_factory=dict)
    artifact: bytes = bytes(range(256)) * 32
    patch_parts: Sequence[bytes] = (b"diff --git a/x b/x\n", b"+1\n")
    export: ExportData = EXPORTED
    on_call: Callable[[Context, CallRequest], ToolResult] | None = None
    on_run: Callable[[Context, RunRequest, Tee, int | None], ToolResult] | None = None
    on_cancel: Callable[[CancelRequest], int] | None = None
    on_patch: Callable[[Write], None] | None = None
    on_create: Callable[[LeaseCreate], LeaseReply] | None = None
    on_write_file: Callable[[str, Iterator[bytes]], str] | None = None

    def note(self, verb: str, context: Context, value: object) -> None:
        self.seen.append((verb, value))
        self.contexts.append(context)

    def verbs(self) -> list[str]:
        return [verb for verb, _ in self.seen]

    def call(self, context: Context, request: CallRequest) -> ToolResult:
        self.note("call", context, request)
        if self.on_call is not None:
            return self.on_call(context, request)
        return make_result(context.request_id, tool=request.tool)

    def run(self, context: Context, request: RunRequest, tee: Tee, stdin: int | None) -> ToolResult:
        self.note("run", context, request)
        if self.on_run is not None:
            return self.on_run(context, request, tee, stdin)
        tee(1, memoryview(b"out\n"))
        tee(2, memoryview(b"err\n"))
        return make_result(
            context.request_id, tool="run", exit_=Exit(kind="exited", code=0, signal=None)
        )

    def cancel(self, context: Context, request: CancelRequest) -> int:
        self.note("cancel", context, request)
        return self.on_cancel(request) if self.on_cancel is not None else 1

    @property
    def leases(self) -> FakeLeases:
        return FakeLeases(self)

    def read_file(self, context: Context, lease: str, path: str) -> tuple[int, Iterator[bytes]]:
        self.note("read_file", context, (lease, path))
        if path not in self.files:
            raise failure(Code.NOT_FOUND, "there is no such file")
        content = self.files[path]
        return len(content), iter([content[i : i + 65536] for i in range(0, len(content), 65536)])

    def write_file(self, context: Context, lease: str, path: str, content: Iterator[bytes]) -> str:
        self.note("write_file", context, (lease, path))
        if self.on_write_file is not None:
            return self.on_write_file(path, content)
        self.files[path] = b"".join(content)
        return "ab" * 16

    def read_artifact(self, context: Context, request: ArtifactRange) -> bytes:
        self.note("artifact", context, request)
        return self.artifact[request.offset : request.offset + request.length]

    def doctor(self, context: Context) -> DoctorReport:
        return DoctorReport(ok=True, checks=[])


@dataclass
class FakeLeases:
    """Implements `edge.service.LeaseVerbs` with what is set in `of`."""

    of: FakeService

    def create(self, context: Context, request: LeaseCreate) -> LeaseReply:
        self.of.note("create", context, request)
        if self.of.on_create is not None:
            return self.of.on_create(request)
        granted = LeaseGranted(
            lease_id=LEASE, token=TOKEN, generation=1, expires_at="2025-01-01T01:00:00Z"
        )
        return LeaseReply(result=make_result(context.request_id), lease=granted)

    def all(self, context: Context) -> Sequence[LeaseView]:
        self.of.note("leases", context, None)
        return [view()]

    def show(self, context: Context, lease: str) -> LeaseView:
        self.of.note("lease", context, lease)
        if lease.endswith("unknown"):
            raise failure(Code.LEASE_NOT_GRANTED, "no such lease for you")
        return view()

    def renew(self, context: Context, lease: str, request: LeaseRenew) -> ToolResult:
        self.of.note("renew", context, (lease, request))
        return make_result(context.request_id)

    def reset(self, context: Context, lease: str) -> ToolResult:
        self.of.note("reset", context, lease)
        return make_result(context.request_id)

    def export(self, context: Context, lease: str, request: LeaseExport) -> ToolResult:
        self.of.note("export", context, (lease, request))
        return make_result(context.request_id, data=self.of.export)

    def release(self, context: Context, lease: str) -> ToolResult:
        self.of.note("release", context, lease)
        return make_result(context.request_id)

    def patch(self, context: Context, lease: str, write: Write) -> None:
        self.of.note("patch", context, lease)
        if self.of.on_patch is not None:
            self.of.on_patch(write)
            return
        for part in self.of.patch_parts:
            write(part)


@dataclass
class Running:
    """A server and where it listens."""

    path: str
    server: HttpServer
    stopped: bool = False

    def ask(
        self,
        method: str,
        target: str,
        body: bytes | str | Iterator[bytes] | None = None,
        headers: Mapping[str, str] | None = None,
    ) -> tuple[int, Any]:
        return ask(self.path, method, target, body, headers)

    def stop(self, grace_s: float = GATE_S) -> bool:
        if self.stopped:
            return True
        self.stopped = True
        return self.server.stop(grace_s)


class Start(Protocol):
    """Starts a server; a second one under another name, or after the first has stopped."""

    def __call__(self, peers: Mapping[int, Peer] | None = None, name: str = "s") -> Running: ...


@pytest.fixture
def service() -> FakeService:
    return FakeService()


@pytest.fixture
def result_of() -> ResultOf:
    return make_result


def make_api(service: FakeService) -> Api:
    numbers = iter(range(1, 1_000_000))
    return Api(service, lambda: f"rq_{next(numbers)}", "9.9.9")


@pytest.fixture
def api(service: FakeService) -> Api:
    return make_api(service)


@pytest.fixture
def socket_dir() -> Iterator[Path]:
    """Short: a socket's path has at most 107 bytes."""
    made = Path(tempfile.mkdtemp(prefix="stk"))
    yield made
    shutil.rmtree(made)


@pytest.fixture
def start(service: FakeService, socket_dir: Path) -> Iterator[Start]:
    """Start a server; the peers default to this process as the operator."""
    started: list[Running] = []

    def make(peers: Mapping[int, Peer] | None = None, name: str = "s") -> Running:
        own = Peer(os.geteuid(), None, Role.OPERATOR, own=True)
        path = str(socket_dir / name)
        allowed = {own.uid: own} if peers is None else peers
        server = HttpServer(make_api(service), allowed)
        running = Running(path, server)
        started.append(running)
        server.start(path, 0o600)
        return running

    yield make
    for running in started:
        running.stop()


@pytest.fixture
def server(start: Start) -> Running:
    return start()


@pytest.fixture
def stockade(server: Running) -> Iterator[Stockade]:
    with Stockade.connect(server.path) as made:
        yield made


@pytest.fixture
def local(api: Api) -> Iterator[Stockade]:
    own = Peer(os.geteuid(), None, Role.OPERATOR, own=True)
    with Stockade(InProcessTransport(api, own, lambda: None)) as made:
        yield made
