"""The composition root: plain constructor calls, from a state directory to a working runtime.

`open_runtime` takes the state directory's lock, ends whatever a dead process of the same directory
left running, brings every lease back to `ready` or `released`, and only then lets a call in.
`serve` puts the HTTP server before it; `local` hands the SDK an in-process transport instead.
"""

from __future__ import annotations

import logging
import os
import platform
import re
import secrets
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Final

from stockade.decide.grant_file import CeilingFile
from stockade.decide.policy import Policy
from stockade.decide.seccomp import compile_seccomp
from stockade.edge.api import Api
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
from stockade.edge.flow_service import FlowService, Parts
from stockade.edge.server import http, logs
from stockade.edge.server.config import (
    DEFAULT_CEILING,
    Config,
    Defaults,
    Retention,
    ceilings_of,
    peers,
)
from stockade.edge.server.http import HttpServer
from stockade.engines.oci import image, toolbox
from stockade.engines.oci.engine import OciEngine, Setup
from stockade.flow.adoption import Adoption
from stockade.flow.approvals import Approvals
from stockade.flow.authority import Authority
from stockade.flow.claims import Claims
from stockade.flow.gate import Gate
from stockade.flow.leases import Leases
from stockade.flow.minting import Minter
from stockade.flow.pipeline import Pipeline
from stockade.flow.running import Running
from stockade.flow.sandboxes import Sandboxes
from stockade.flow.settlement import Settlement
from stockade.flow.spending import Spending
from stockade.flow.steps import LeaseSteps
from stockade.flow.sweeper import Sweeper, kept
from stockade.flow.told import Teller
from stockade.flow.user_ids import UID_SLOTS
from stockade.host import cgroup, doctor, instance, leasedir, leftovers, processes
from stockade.host.cancel import EventfdCancel
from stockade.host.data import data_directory, native_program
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.instance import Instance
from stockade.host.keeper import Keeper
from stockade.host.mounts import MountHolder
from stockade.host.policy_files import load_policy
from stockade.host.workspaces import LocalWorkspaces
from stockade.ledger import keys
from stockade.ledger.approval_table import ApprovalTable
from stockade.ledger.artifacts import FileArtifacts
from stockade.ledger.claim_table import ClaimTable
from stockade.ledger.spend_table import SpendTable
from stockade.ledger.store import SqliteLedger
from stockade.terms.fault import Code, failure
from stockade.terms.version import VERSION

NO_CEILINGS: Final[Mapping[str, str]] = MappingProxyType({})
DEFAULTS: Final = Defaults()
RETENTION: Final = Retention()
# Disk images are sparse files: not below /tmp, which may be memory.
EMBEDDED: Final = Path("/var/tmp/stockade")
LOG: Final = logging.getLogger("stockade.daemon")
VERSION_TIMEOUT_S: Final = 10.0
_BACKGROUND_THREADS: Final = 4


@dataclass(frozen=True, slots=True)
class Runtime:
    """Everything that runs on one state directory. `close` ends it in order; `undo` are the parts
    to close, last made first. `left` are the leases whose sandboxes outlive it: their mounts stay."""

    running: Running
    sandboxes: Sandboxes
    leases: Leases
    sweeper: Sweeper
    adoption: Adoption
    left: set[str]
    api: Api
    undo: ExitStack

    def close(self, grace_s: float = 10.0, *, keep: bool = False) -> None:
        """Let running calls finish for `grace_s` seconds, cancel the rest, end every sandbox, or
        `keep` them for the next start. Leases stay in any case."""
        self.api.stop()
        with self.undo:
            self.sweeper.stop()
            self.running.drain(grace_s)
            self.adoption.wait()
            self.left.clear()
            if keep:
                self.left.update(self.sandboxes.leave())
            else:
                self.sandboxes.close()


def open_runtime(
    state_dir: Path,
    *,
    owned: Instance | None = None,
    persistent: bool = False,
    defaults: Defaults = DEFAULTS,
    ceilings: Mapping[str, str] = NO_CEILINGS,
    retention: Retention = RETENTION,
    clock: Callable[[], float] = time.time,
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
        return _compose(
            state_dir,
            owned,
            undo,
            persistent,
            defaults,
            ceilings,
            retention,
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
    clock: Callable[[], float],
    random_hex: Callable[[int], str],
    fault_point: Callable[[str], None],
) -> Runtime:
    processes.become_subreaper()
    policy = load_policy()
    key_file = state_dir / "keys.json"
    root_keys = keys.load_or_create(key_file, random_hex)
    ledger = SqliteLedger(str(state_dir / "ledger.db"))
    undo.callback(ledger.close)
    artifacts = FileArtifacts(str(state_dir / "artifacts"), random_hex)
    unified = cgroup.detect(Path("/proc/self/mountinfo").read_text()).unified
    keeper = Keeper(native_program("keep"), unified, owned.id)
    holder = MountHolder(state_dir / "mounts", keeper if persistent else None)
    left: set[str] = set()
    undo.callback(lambda: holder.close(keep=bool(left)))
    background = ThreadPoolExecutor(_BACKGROUND_THREADS, thread_name_prefix="background")
    undo.callback(background.shutdown)
    # Of this start: sandboxes of an earlier one still use that one's.
    setup = engine_setup(state_dir, owned, policy, persistent=persistent, system=random_hex(4))
    engine = OciEngine(setup, holder, background, random_hex)
    undo.callback(engine.close)
    # Before any workspace is mounted: a sandbox of a dead process may still hold its disk.
    recovered = engine.recover(kept(ledger.leases(), clock()))
    left.update(survivor.lease_id for survivor in recovered.survivors)
    workspaces = LocalWorkspaces(
        state_dir,
        holder,
        lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
        boot=leasedir.current_boot(),
    )
    undo.callback(lambda: workspaces.close(left))
    running = Running(EventfdCancel)
    authority = Authority(
        root_keys,
        save=lambda changed: keys.save(key_file, changed),
        ledger=ledger,
        running=running,
        random_hex=random_hex,
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
    )

    def ceiling_for(tenant: str) -> CeilingFile:
        return policy.ceiling(ceilings.get(tenant, DEFAULT_CEILING))

    minter = Minter(authority, grant_named=policy.grant, ceiling_for=ceiling_for)
    approvals = Approvals(ApprovalTable(ledger), clock)
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
        ClaimTable(ledger),
        clock=clock,
        boot=leasedir.current_boot(),
        boottime=lambda: time.clock_gettime(time.CLOCK_BOOTTIME),
    )
    settlement = Settlement(
        claims,
        Teller(engine.describe(), clock, VERSION),
        leases=leases,
        engine=engine,
        running=running,
        artifacts=artifacts,
    )
    sweeper = Sweeper(
        steps,
        clock=clock,
        settle=settlement.tick,
        forget=lambda: claims.book.sweep(clock(), retention.claims_s),
    )
    sweeper.recover()
    settlement.recover()
    adoption = Adoption(running, sandboxes, artifacts)
    adoption.begin(recovered.calls)
    pipeline = Pipeline(
        leases=leases,
        running=running,
        sandboxes=sandboxes,
        artifacts=artifacts,
        gate=gate,
        claims=claims,
        policy=policy,
        image_env={name: item.recipe.env for name, item in setup.images.items()},
        verify=authority.verify,
        engine=engine.describe(),
        clock=clock,
        version=VERSION,
        fault_point=fault_point,
    )
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
            engine=engine.describe(),
            state_dir=str(state_dir),
            defaults=defaults,
            clock=clock,
            version=VERSION,
        )
    )
    api = Api(service, lambda: f"rq_{random_hex(8)}", VERSION)
    sweeper.start()
    return Runtime(running, sandboxes, leases, sweeper, adoption, left, api, undo.pop_all())


def engine_setup(
    state_dir: Path,
    owned: Instance,
    policy: Policy,
    *,
    persistent: bool = False,
    system: str = "",
) -> Setup:
    """What the native engine is made of on this host. Raises Failure(engine_unavailable)."""
    place = state_dir / "system" / system
    runtime, runtime_version = find_runtime()
    recipe = image.parse_recipe((data_directory("images") / "host.json").read_bytes())
    return Setup(
        state_dir=state_dir,
        instance=owned.id,
        runtime=runtime,
        runtime_version=runtime_version,
        launcher=str(native_program("launch")),
        toolbox=toolbox.build(
            place / "toolbox",
            native_program("guest"),
            native_program("hold.so"),
            native_program("regular.so"),
        ),
        images={recipe.name: image.build(recipe, place / "images")},
        hierarchies=cgroup.detect(Path("/proc/self/mountinfo").read_text()),
        seccomp={
            ref: compile_seccomp(item, platform.machine()).to_json()
            for ref, item in policy.seccomp.items()
        },
        persistent=persistent,
        system=system,
    )


def find_runtime() -> tuple[str, str]:
    """Path and version of crun. Raises Failure(engine_unavailable) when it is missing or does not
    work."""
    path = shutil.which("crun", path="/usr/local/bin:/usr/bin:/usr/sbin:/bin")
    if path is None:
        raise failure(Code.ENGINE_UNAVAILABLE, "crun is not installed: apt-get install crun")
    try:
        said = subprocess.run(
            [path, "--version"],
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=VERSION_TIMEOUT_S,
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        raise failure(
            Code.ENGINE_UNAVAILABLE, f"{path} --version does not work: {error}"
        ) from error
    found = re.match(rb"crun version ([0-9A-Za-z.+~-]{1,64})\s", said.stdout)
    if said.returncode or found is None:
        raise failure(
            Code.ENGINE_UNAVAILABLE,
            f"{path} --version gives no version (status {said.returncode})",
        )
    return path, found[1].decode()


def check_host() -> None:
    """Raises Failure(engine_unavailable) with what to do where no sandbox could ever be made: said
    at the start, not by the first call (docs/cli.md, `doctor`, has the whole list)."""
    found = doctor.impossible()
    if found is not None:
        advice = "" if found.remedy is None else f": {found.remedy}"
        raise failure(Code.ENGINE_UNAVAILABLE, f"{found.name}: {found.detail}{advice}")


def open_local(place: Path = EMBEDDED) -> InProcessTransport:
    """A runtime in this process with a state directory of its own below `place`, which `close`
    removes. Any number at once. Makes this process a subreaper (PR_SET_CHILD_SUBREAPER(2const))."""
    check_host()
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
    logs.configure()
    known = peers(config, os.getuid())
    check_host()
    ceilings = ceilings_of(config, load_policy().ceilings)
    runtime = open_runtime(
        Path(config.state_dir),
        persistent=True,
        defaults=config.defaults,
        ceilings=ceilings,
        retention=config.retention,
    )
    keep = True
    try:
        limits = config.limits
        server = HttpServer(runtime.api, known, calls=limits.calls, queue=limits.queue)
        came = http.serve(
            server,
            config.socket,
            config.socket_mode,
            float(limits.shutdown_grace_s),
            ready=lambda: LOG.info("listening on %s", config.socket),
            overdue=lambda: runtime.running.drain(0),
        )
        keep = came != signal.SIGINT
    finally:
        runtime.close(grace_s=0, keep=keep)
