"""The composition root: plain constructor calls, from a state directory to a working runtime.

`open_runtime` takes the state directory's lock, ends whatever a dead process of the same directory
left running, brings every lease back to `ready` or `released`, and only then lets a call in.
`daemon` puts the HTTP server before it; `embedded` gives the SDK an in-process transport instead.
"""

from __future__ import annotations

import os
import secrets
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stockade.decide import signatures
from stockade.decide.grant_file import CeilingFile
from stockade.decide.policy import Policy
from stockade.edge.api import Api
from stockade.edge.flow_service import FlowService, Parts
from stockade.edge.gauges import runtime_gauges
from stockade.edge.server.config import DEFAULT_CEILING, Defaults, Retention, ServerLimits
from stockade.edge.watch_service import WatchService
from stockade.edge.watching import Sink, Watcher
from stockade.engines.oci.adopted import Recovered
from stockade.engines.oci.engine import OciEngine, Setup
from stockade.flow.adoption import Adoption
from stockade.flow.assembly import Flow, Ports, Rules, assemble
from stockade.flow.auditing import Auditor, AuditSettings
from stockade.flow.leases import Leases
from stockade.flow.pipeline import Pipeline
from stockade.flow.places import Places
from stockade.flow.readiness import Readiness
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.flow.sweeper import Sweeper, going_on
from stockade.flow.user_ids import UID_SLOTS
from stockade.host import cgroup, instance, interpreter, processes
from stockade.host.cancel import EventfdCancel
from stockade.host.clocks import HostClock, current_boot
from stockade.host.data import native_program
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.instance import Instance
from stockade.host.keeper import Keeper
from stockade.host.mounts import MountHolder
from stockade.host.policy_files import load_policy
from stockade.host.space import SpaceCheck
from stockade.host.workspaces import DEFAULT_RESERVE_BYTES, LocalWorkspaces
from stockade.ledger import audit_files, keys
from stockade.ledger.approval_table import ApprovalTable
from stockade.ledger.artifacts import FileArtifacts
from stockade.ledger.audit_table import AuditTable
from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.secret_rows import Seal
from stockade.ledger.secret_table import SecretTable
from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import SqliteLedger
from stockade.native import engine_setup, usable
from stockade.terms.authority import RootKeys
from stockade.terms.moment import Timekeeper
from stockade.terms.version import VERSION
from stockade.tools.redact import Tokens

KEY_FILE: Final = "keys.json"
# Made when all others have something to do. So many, because a job can wait for seconds for a shell
# inside that does not answer: with 4, one tenant's eight sandboxes held up those of every other.
_BACKGROUND_THREADS: Final = 64


@dataclass(frozen=True, slots=True)
class Options:
    """What an operator configures. `ceilings` names those of tenants that have one of their own,
    `skew_s` is that of tokens, and `sinks` get what is known of each call."""

    defaults: Defaults = field(default_factory=Defaults)
    ceilings: Mapping[str, str] = field(default_factory=dict)
    retention: Retention = field(default_factory=Retention)
    audit: AuditSettings = field(default_factory=AuditSettings)
    limits: ServerLimits = field(default_factory=ServerLimits)
    skew_s: int = 0  # of a runtime whose tokens nobody else makes
    sinks: Sequence[Sink] = ()


OPTIONS: Final = Options()


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that runs on one state directory. `close` ends it in order; `undo` are the parts
    to close, last made first. `left` are the leases whose sandboxes outlive it: their mounts stay."""

    running: Running
    places: Places
    sandboxes: Sandboxes
    leases: Leases
    sweeper: Sweeper
    secrets: Secrets
    adoption: Adoption
    left: set[str]
    api: Api
    audit: Auditor
    undo: ExitStack

    def stop(self) -> None:
        """Refuse new work and send away calls that wait for a place. What runs goes on."""
        self.api.stop()
        self.places.stop()

    def close(self, grace_s: float = 10.0, *, keep: bool = False) -> None:
        """Let running calls finish for `grace_s` seconds, cancel the rest, end every sandbox, or
        `keep` them for the next start. Leases stay in any case."""
        self.stop()
        with self.undo:
            self.sweeper.stop()
            self.running.drain(grace_s)
            self.adoption.wait()
            self.left.clear()
            if keep:
                self.left.update(self.sandboxes.leave())
            else:
                self.sandboxes.close()
            self.audit.stop()


def open_runtime(
    state_dir: Path,
    options: Options = OPTIONS,
    *,
    owned: Instance | None = None,
    persistent: bool = False,
    fault_point: Callable[[str], None] = lambda name: None,
) -> Runtime:
    """`owned` is the state directory's lock where the caller has it, and stays the caller's.
    Sandboxes of a `persistent` runtime outlive this process, however it ends.
    Raises Failure: engine_unavailable (what the host lacks), storage_unavailable, busy (another
    process uses the state directory). Nothing runs and nothing is held then."""
    with ExitStack() as undo:
        if owned is None:
            owned = instance.acquire(state_dir, secrets.token_hex)
            undo.callback(owned.release)
        processes.become_subreaper()
        if persistent:
            processes.allow_open_files()
        start = _Start(
            state_dir, owned, load_policy(), options, persistent, HostClock(), secrets.token_hex
        )
        books = _open_books(start, undo)
        host = _open_host(start, books.ledger, undo)
        return _open_flow(start, books, host, fault_point, undo)


@dataclass(frozen=True, slots=True)
class _Start:
    state_dir: Path
    owned: Instance
    policy: Policy
    options: Options
    persistent: bool
    clock: Timekeeper
    random_hex: Callable[[int], str]

    def ceiling_for(self, tenant: str) -> CeilingFile:
        return self.policy.ceiling(self.options.ceilings.get(tenant, DEFAULT_CEILING))


@dataclass(frozen=True, slots=True)
class _Books:
    """The durable state, and what is known only with it."""

    root_keys: RootKeys
    ledger: SqliteLedger
    table: AuditTable
    audit: Auditor
    audit_key: bytes
    secrets: Secrets
    artifacts: FileArtifacts


@dataclass(frozen=True, slots=True)
class _Host:
    """What makes workspaces and sandboxes. `left` are the leases whose mounts stay at the end."""

    setup: Setup
    engine: OciEngine
    workspaces: LocalWorkspaces
    recovered: Recovered
    left: set[str]


def _open_books(start: _Start, undo: ExitStack) -> _Books:
    root_keys = keys.load_or_create(start.state_dir / KEY_FILE, start.random_hex)
    ledger = SqliteLedger(str(start.state_dir / "ledger.db"))
    undo.callback(ledger.close)
    seed = audit_files.load_or_create_seed(start.state_dir / audit_files.KEY_FILE, start.random_hex)
    checkpoint_file = start.state_dir / audit_files.CHECKPOINT_FILE
    kept = audit_files.load_checkpoint(checkpoint_file)
    audit_key = signatures.public_key(seed)
    table = AuditTable(
        ledger,
        start.clock,
        audit_key,
        sign=lambda data: signatures.sign(seed, data),
        keep=lambda made: audit_files.save_checkpoint(checkpoint_file, made),
    )
    # A key of its own: who has the ledger alone, or the tokens' keys alone, can open nothing.
    sealing = keys.load_or_create(start.state_dir / "secret-key.json", start.random_hex)
    seal = Seal(sealing.secrets[sealing.current], start.random_hex)
    tokens = Tokens(start.policy.redaction)
    held = Secrets(SecretTable(ledger, seal), ledger, tokens, start.clock)
    audit = Auditor(table, start.clock, start.options.audit, held.recorded)
    audit.start(VERSION, start.owned.id, kept)
    artifacts = FileArtifacts(str(start.state_dir / "artifacts"), start.random_hex)
    return _Books(root_keys, ledger, table, audit, audit_key, held, artifacts)


def _open_host(start: _Start, ledger: SqliteLedger, undo: ExitStack) -> _Host:
    persistent = start.persistent
    unified = cgroup.of_this_host().unified
    keeper = Keeper(native_program("keep"), unified, start.owned.id)
    holder = MountHolder(start.state_dir / "mounts", keeper if persistent else None)
    going = going_on(ledger.leases(), start.clock.moment())
    # A start that fails ends nothing of what the last daemon left for the next.
    left = set(going) if holder.inherited else set()
    undo.callback(lambda: holder.close(keep=bool(left)))
    background = ThreadPoolExecutor(
        _BACKGROUND_THREADS, "background", interpreter.stay if persistent else None
    )
    undo.callback(background.shutdown)
    # Of this start: sandboxes of an earlier one still use that one's.
    system = start.random_hex(4)
    setup = engine_setup(
        start.state_dir, start.owned, start.policy, persistent=persistent, system=system
    )
    engine = OciEngine(setup, holder, background, start.random_hex, keeper if persistent else None)
    undo.callback(engine.close)
    # Before any workspace is mounted: a sandbox of a dead process may still hold its disk.
    recovered = engine.recover(going)
    left = {survivor.lease_id for survivor in recovered.survivors}
    workspaces = LocalWorkspaces(
        start.state_dir,
        holder,
        lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
        boot=current_boot(),
    )
    undo.callback(lambda: workspaces.close(left))
    return _Host(setup, engine, workspaces, recovered, left)


def _open_flow(
    start: _Start,
    books: _Books,
    host: _Host,
    fault_point: Callable[[str], None],
    undo: ExitStack,
) -> Runtime:
    options, clock = start.options, start.clock
    flow = assemble(
        Ports(
            ledger=books.ledger,
            claims=ClaimTable(books.ledger, books.table),
            approvals=ApprovalTable(books.ledger),
            spend=SpendTable(books.ledger),
            workspaces=host.workspaces,
            engine=host.engine,
            artifacts=books.artifacts,
            cancel=EventfdCancel,
        ),
        Rules(
            policy=start.policy,
            ceiling_for=start.ceiling_for,
            skew_s=options.skew_s,
            # Ranges of user ids of different instances hardly ever meet; see docs/threat-model.md.
            uid_offset=int(start.owned.id, 16) % UID_SLOTS,
            claims_kept_s=options.retention.claims_s,
            processors=os.cpu_count() or 1,
        ),
        keys=books.root_keys,
        save_keys=lambda changed: keys.save(start.state_dir / KEY_FILE, changed),
        audit=books.audit,
        secrets=books.secrets,
        clock=clock,
        boot=clock.moment().boot,
        boottime=lambda: clock.moment().boot_s,
        random_hex=start.random_hex,
        version=VERSION,
    )
    for survivor in host.recovered.survivors:
        flow.sandboxes.adopt(survivor)
    flow.sweeper.recover()
    flow.settlement.recover()
    adoption = Adoption(flow.running, flow.sandboxes, books.artifacts)
    adoption.begin(host.recovered.calls)
    limits = options.limits
    places = Places(limits.calls, limits.queue, limits.tenant_calls, limits.queue_s)
    watcher = Watcher(options.sinks)
    service = _service(start, books, host, flow, places, watcher, fault_point)
    api = Api(service, lambda: f"rq_{start.random_hex(8)}", VERSION, watcher)
    flow.sweeper.start()
    return Runtime(
        running=flow.running,
        places=places,
        sandboxes=flow.sandboxes,
        leases=flow.leases,
        sweeper=flow.sweeper,
        secrets=books.secrets,
        adoption=adoption,
        left=host.left,
        api=api,
        audit=books.audit,
        undo=undo.pop_all(),
    )


def _service(
    start: _Start,
    books: _Books,
    host: _Host,
    flow: Flow,
    places: Places,
    watcher: Watcher,
    fault_point: Callable[[str], None],
) -> FlowService:
    clock, engine = start.clock, host.engine.describe()
    pipeline = Pipeline(
        leases=flow.leases,
        running=flow.running,
        places=places,
        sandboxes=flow.sandboxes,
        artifacts=books.artifacts,
        gate=flow.gate,
        claims=flow.claims,
        audit=books.audit,
        secrets=books.secrets,
        policy=start.policy,
        image_env={name: item.recipe.env for name, item in host.setup.images.items()},
        verify=flow.authority.verify,
        engine=engine,
        clock=clock,
        version=VERSION,
        fault_point=fault_point,
    )
    probes = {
        "engine": lambda: usable(host.setup.runtime),
        "ledger": books.ledger.probe,
        "space": lambda: SpaceCheck(str(start.state_dir), DEFAULT_RESERVE_BYTES),
    }
    gauges = runtime_gauges(places, flow.sandboxes, flow.leases, flow.claims.book)
    return FlowService(
        Parts(
            leases=flow.leases,
            pipeline=pipeline,
            running=flow.running,
            sandboxes=flow.sandboxes,
            artifacts=books.artifacts,
            authority=flow.authority,
            minter=flow.minter,
            spending=flow.spending,
            approvals=flow.approvals,
            gate=flow.gate,
            settlement=flow.settlement,
            audit=books.audit,
            audit_key=books.audit_key,
            secrets=books.secrets,
            engine=engine,
            state_dir=str(start.state_dir),
            defaults=start.options.defaults,
            watching=WatchService(watcher.tally, gauges, Readiness(probes, clock)),
            clock=clock,
            version=VERSION,
        )
    )
