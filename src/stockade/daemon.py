"""The composition root: plain constructor calls, from a state directory to a working runtime.

`open_runtime` takes the state directory's lock, ends whatever a dead process of the same directory
left running, brings every lease back to `ready` or `released`, and only then lets a call in.
`serve` puts the HTTP server before it; `local` hands the SDK an in-process transport instead.
"""

from __future__ import annotations

import logging
import os
import secrets
import signal
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stockade.decide import signatures
from stockade.decide.grant_file import CeilingFile
from stockade.edge import reporting
from stockade.edge.api import Api
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.flow_service import FlowService, Parts
from stockade.edge.gauges import runtime_gauges
from stockade.edge.server import http, logs
from stockade.edge.server.config import (
    DEFAULT_CEILING,
    Config,
    Defaults,
    Retention,
    ServerLimits,
    ceilings_of,
    peers,
)
from stockade.edge.server.http import HttpServer
from stockade.edge.watch_service import WatchService
from stockade.edge.watching import Sink, Watcher
from stockade.engines.oci.engine import OciEngine
from stockade.flow.adoption import Adoption
from stockade.flow.approvals import Approvals
from stockade.flow.auditing import Auditor, AuditSettings
from stockade.flow.authority import Authority
from stockade.flow.claims import Claims
from stockade.flow.gate import Gate
from stockade.flow.leases import Leases
from stockade.flow.minting import Minter
from stockade.flow.pipeline import Pipeline
from stockade.flow.places import Places
from stockade.flow.readiness import Readiness
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.secrets import Secrets
from stockade.flow.settlement import Settlement
from stockade.flow.spending import Spending
from stockade.flow.steps import LeaseSteps
from stockade.flow.sweeper import Sweeper, going_on
from stockade.flow.told import Teller
from stockade.flow.user_ids import UID_SLOTS
from stockade.host import cgroup, instance, interpreter, leasedir, leftovers, processes
from stockade.host.cancel import EventfdCancel
from stockade.host.clocks import HostClock
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
from stockade.native import check_host, engine_setup, usable
from stockade.terms.moment import Timekeeper
from stockade.terms.version import VERSION
from stockade.tools.redact import Tokens

NO_CEILINGS: Final[Mapping[str, str]] = MappingProxyType({})
DEFAULTS: Final = Defaults()
RETENTION: Final = Retention()
AUDIT: Final = AuditSettings()
# Disk images are sparse files: not below /tmp, which may be memory.
EMBEDDED: Final = Path("/var/tmp/stockade")
LOG: Final = logging.getLogger("stockade.daemon")
_BACKGROUND_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Options:
    """Limits of calls, skew of tokens, and who gets what is known of each call."""

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
    *,
    owned: Instance | None = None,
    persistent: bool = False,
    defaults: Defaults = DEFAULTS,
    ceilings: Mapping[str, str] = NO_CEILINGS,
    retention: Retention = RETENTION,
    audit: AuditSettings = AUDIT,
    options: Options = OPTIONS,
    clock: Timekeeper | None = None,
    random_hex: Callable[[int], str] = secrets.token_hex,
    fault_point: Callable[[str], None] = lambda name: None,
) -> Runtime:
    """`owned` is the state directory's lock where the caller has it, and stays the caller's.
    `ceilings` names the ceilings of tenants that have one of their own. Sandboxes of a `persistent`
    runtime outlive this process, however it ends.
    Raises Failure: engine_unavailable (what the host lacks), storage_unavailable, busy (another
    process uses the state directory). Nothing runs and nothing is held then."""
    with ExitStack() as undo:
        if owned is None:
            owned = instance.acquire(state_dir, random_hex)
            undo.callback(owned.release)
        clock = clock or HostClock()
        return _compose(
            state_dir,
            owned,
            undo,
            persistent,
            defaults,
            ceilings,
            retention,
            audit,
            options,
            clock,
            random_hex,
            fault_point,
        )


def _compose(
    state_dir: Path,
    owned: Instance,
    undo: ExitStack,
    persistent: bool,
    defaults: Defaults,
    ceilings: Mapping[str, str],
    retention: Retention,
    audit_settings: AuditSettings,
    options: Options,
    clock: Timekeeper,
    random_hex: Callable[[int], str],
    fault_point: Callable[[str], None],
) -> Runtime:
    processes.become_subreaper()
    if persistent:
        processes.allow_open_files()
    policy = load_policy()
    key_file = state_dir / "keys.json"
    root_keys = keys.load_or_create(key_file, random_hex)
    ledger = SqliteLedger(str(state_dir / "ledger.db"))
    undo.callback(ledger.close)
    seed = audit_files.load_or_create_seed(state_dir / audit_files.KEY_FILE, random_hex)
    checkpoint_file = state_dir / audit_files.CHECKPOINT_FILE
    kept = audit_files.load_checkpoint(checkpoint_file)
    audit_key = signatures.public_key(seed)
    table = AuditTable(
        ledger,
        clock,
        audit_key,
        sign=lambda data: signatures.sign(seed, data),
        keep=lambda made: audit_files.save_checkpoint(checkpoint_file, made),
    )
    # A key of its own: who has the ledger alone, or the tokens' keys alone, can open nothing.
    sealing = keys.load_or_create(state_dir / "secret-key.json", random_hex)
    seal = Seal(sealing.secrets[sealing.current], random_hex)
    held = Secrets(SecretTable(ledger, seal), ledger, Tokens(policy.redaction), clock)
    audit = Auditor(table, clock, audit_settings, held.recorded)
    audit.start(VERSION, owned.id, kept)
    artifacts = FileArtifacts(str(state_dir / "artifacts"), random_hex)
    unified = cgroup.detect(Path("/proc/self/mountinfo").read_text()).unified
    keeper = Keeper(native_program("keep"), unified, owned.id)
    holder = MountHolder(state_dir / "mounts", keeper if persistent else None)
    going = going_on(ledger.leases(), clock.moment())
    # A start that fails ends nothing of what the last daemon left for the next.
    left = set(going) if holder.inherited else set()
    undo.callback(lambda: holder.close(keep=bool(left)))
    background = ThreadPoolExecutor(
        _BACKGROUND_THREADS, "background", interpreter.stay if persistent else None
    )
    undo.callback(background.shutdown)
    # Of this start: sandboxes of an earlier one still use that one's.
    setup = engine_setup(state_dir, owned, policy, persistent=persistent, system=random_hex(4))
    engine = OciEngine(setup, holder, background, random_hex, keeper if persistent else None)
    undo.callback(engine.close)
    # Before any workspace is mounted: a sandbox of a dead process may still hold its disk.
    recovered = engine.recover(going)
    left = {survivor.lease_id for survivor in recovered.survivors}
    workspaces = LocalWorkspaces(
        state_dir,
        holder,
        lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
        boot=leasedir.current_boot(),
    )
    undo.callback(lambda: workspaces.close(left))
    running = Running(EventfdCancel)
    limits = options.limits
    places = Places(limits.calls, limits.queue, limits.tenant_calls, limits.queue_s)
    authority = Authority(
        root_keys,
        save=lambda changed: keys.save(key_file, changed),
        ledger=ledger,
        running=running,
        random_hex=random_hex,
        skew_s=options.skew_s,
    )
    sandboxes = Sandboxes(engine)
    for survivor in recovered.survivors:
        sandboxes.adopt(survivor)
    steps = LeaseSteps(
        ledger=ledger,
        workspaces=workspaces,
        engine=engine,
        artifacts=artifacts,
        running=running,
        sandboxes=sandboxes,
        authority=authority,
        ended=held.forget,
    )

    def ceiling_for(tenant: str) -> CeilingFile:
        return policy.ceiling(ceilings.get(tenant, DEFAULT_CEILING))

    minter = Minter(authority, grant_named=policy.grant, ceiling_for=ceiling_for)
    approvals = Approvals(ApprovalTable(ledger), clock, held.arguments)
    spending = Spending(
        SpendTable(ledger),
        lambda tenant: ceiling_for(tenant).price_table(),
        processors=os.cpu_count() or 1,
    )
    gate = Gate(approvals, spending)
    leases = Leases(
        steps,
        minter,
        clock=clock,
        random_hex=random_hex,
        # Ranges of user ids of different instances hardly ever meet; see docs/threat-model.md.
        uid_offset=int(owned.id, 16) % UID_SLOTS,
    )
    claims = Claims(
        ClaimTable(ledger, table),
        clock=clock,
        boot=clock.moment().boot,
        boottime=lambda: clock.moment().boot_s,
    )
    settlement = Settlement(
        claims,
        Teller(engine.describe(), clock, VERSION, held.redactor_of),
        leases=leases,
        engine=engine,
        running=running,
        artifacts=artifacts,
        audit=audit,
        spending=spending,
    )
    sweeper = Sweeper(
        steps,
        clock=clock,
        settle=settlement.tick,
        forget=lambda: claims.book.sweep(clock(), retention.claims_s),
        upkeep=audit.tick,
    )
    sweeper.recover()
    settlement.recover()
    adoption = Adoption(running, sandboxes, artifacts)
    adoption.begin(recovered.calls)
    pipeline = Pipeline(
        leases=leases,
        running=running,
        places=places,
        sandboxes=sandboxes,
        artifacts=artifacts,
        gate=gate,
        claims=claims,
        audit=audit,
        secrets=held,
        policy=policy,
        image_env={name: item.recipe.env for name, item in setup.images.items()},
        verify=authority.verify,
        engine=engine.describe(),
        clock=clock,
        version=VERSION,
        fault_point=fault_point,
    )
    watcher = Watcher(options.sinks)
    probes = {
        "engine": lambda: usable(setup.runtime),
        "ledger": ledger.probe,
        "space": lambda: SpaceCheck(str(state_dir), DEFAULT_RESERVE_BYTES),
    }
    service = FlowService(
        Parts(
            leases=leases,
            pipeline=pipeline,
            running=running,
            artifacts=artifacts,
            authority=authority,
            minter=minter,
            spending=spending,
            approvals=approvals,
            gate=gate,
            settlement=settlement,
            audit=audit,
            audit_key=audit_key,
            secrets=held,
            engine=engine.describe(),
            state_dir=str(state_dir),
            defaults=defaults,
            watching=WatchService(
                watcher.tally,
                runtime_gauges(places, sandboxes, leases, claims.book),
                Readiness(probes, clock),
            ),
            clock=clock,
            version=VERSION,
        )
    )
    api = Api(service, lambda: f"rq_{random_hex(8)}", VERSION, watcher)
    sweeper.start()
    return Runtime(
        running,
        places,
        sandboxes,
        leases,
        sweeper,
        held,
        adoption,
        left,
        api,
        audit,
        undo.pop_all(),
    )


def open_local(place: Path = EMBEDDED) -> InProcessTransport:
    """A runtime in this process with a state directory of its own below `place`, which `close`
    removes. Any number at once. Makes this process a subreaper (PR_SET_CHILD_SUBREAPER(2const))."""
    check_host(place)
    leftovers.collect(place, cgroup.detect(Path("/proc/self/mountinfo").read_text()))
    state_dir, owned = leftovers.new_state(place)
    with ExitStack() as undo:
        undo.callback(leftovers.remove_state, state_dir, owned)
        runtime = open_runtime(state_dir, owned=owned)
        undo.callback(runtime.close)
        undo.callback(_release_all, runtime.leases)
        operator = Peer(os.getuid(), None, Role.OPERATOR, own=True)
        return InProcessTransport(runtime.api, operator, undo.pop_all().close)


def _release_all(leases: Leases) -> None:
    for record in leases.list(None):
        leases.release(None, record.id)


def serve(config: Config) -> None:
    """Be the daemon until a signal ends it. Raises Failure, ConfigError, ListenError."""
    # First: a configuration that can't be used changes nothing of this process.
    known = peers(config, os.getuid())
    ceilings = ceilings_of(config, load_policy().ceilings)
    interpreter.switch_quickly()
    logs.configure(config.log.format)
    check_host(Path(config.state_dir))
    with reporting.sinks(config, VERSION) as sinks:
        runtime = open_runtime(
            Path(config.state_dir),
            persistent=True,
            defaults=config.defaults,
            ceilings=ceilings,
            retention=config.retention,
            audit=AuditSettings(**config.audit.model_dump()),
            options=Options(config.limits, config.tokens.skew_s, sinks),
        )
        interpreter.settle()
        logs.pass_through(runtime.secrets.hide_all)
        keep = True
        try:
            came = http.serve(
                HttpServer(runtime.api, known),
                config.socket,
                config.socket_mode,
                float(config.limits.shutdown_grace_s),
                ready=lambda: LOG.info("listening on %s", config.socket),
                stopping=runtime.stop,
                overdue=lambda: runtime.running.drain(0),
            )
            keep = came != signal.SIGINT
        finally:
            runtime.close(grace_s=0, keep=keep)
