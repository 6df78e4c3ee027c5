"""The native engine: sandboxes by an OCI runtime's command line, without an engine daemon.

One sandbox is: groups, a network namespace with loopback only, a listening socket in the state
directory, a bundle with config.json, and the launcher, which stages the root file system in a mount
namespace of its own and becomes `crun run -d`. When the guest has answered on the socket it is taken
out of the limits and the first spare is placed; both moves share one RCU grace period.

Nothing of the sandbox is in the host's mount table and no name of it is in the runtime's cgroups
(`--cgroup-manager=disabled`: the launcher has entered the groups already). So ending a sandbox is
killing its groups; the runtime's own state is a directory of ours, removed with the bundle.
"""

from __future__ import annotations

import errno
import logging
import os
import shutil
from collections.abc import Callable, Sequence, Set
from concurrent.futures import Executor
from contextlib import ExitStack
from typing import Final

from stockade.engines.oci import staging
from stockade.engines.oci.adopted import (
    Adopted,
    LeftCalls,
    Recovered,
    anchors_of,
    end_sandboxes,
    find,
)
from stockade.engines.oci.ahead import Ahead
from stockade.engines.oci.journal import CallJournal
from stockade.engines.oci.launching import KILL_S, START_TIMEOUT_S, Launcher
from stockade.engines.oci.launching import Setup as Setup
from stockade.engines.oci.places import open_directory, orphans
from stockade.engines.oci.records import Record, read_records, remove_systems
from stockade.engines.oci.sandbox import OciSandbox
from stockade.engines.oci.spares import Spares
from stockade.host import cgroup, prefixes, processes
from stockade.host.anchors import Anchors
from stockade.host.call_group import CallGroup
from stockade.host.clocks import current_boot
from stockade.host.guest_link import GuestLink
from stockade.host.keeper import Keeper
from stockade.host.lease_groups import LeaseGroups, SandboxGroups
from stockade.host.mounts import MountHolder
from stockade.host.reasons import reason
from stockade.terms.claim import Evidence, Unknown
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Tier
from stockade.terms.patience import Patience
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import LeaseTree, Survivor
from stockade.terms.result import EngineRef
from stockade.terms.version import VERSION

_REAP_S: Final = 1.0

_log: Final = logging.getLogger(__name__)


class OciEngine:
    """Implements `terms.ports.Engine` on crun."""

    def __init__(
        self,
        setup: Setup,
        holder: MountHolder,
        background: Executor,
        random_hex: Callable[[int], str],
        keeper: Keeper | None = None,
    ) -> None:
        self._setup = setup
        self._holder = holder
        self._background = background
        self._random_hex = random_hex
        self._sandboxes_dir = setup.state_dir / "sandboxes"
        self._runtime_dir = setup.state_dir / "runtime"
        for directory in (self._sandboxes_dir, self._runtime_dir):
            directory.mkdir(mode=0o700, exist_ok=True)
        self._ahead = Ahead(background, keeper)
        self._launcher = Launcher(setup, holder, self._runtime_dir, self._ahead)
        self._live: set[str] = set()
        self._journal = CallJournal(setup.state_dir / "calls", current_boot())
        self._left: LeftCalls | None = None

    def describe(self) -> EngineRef:
        return EngineRef(
            name="oci", version=f"crun {self._setup.runtime_version}", tier=Tier.CONTAINER
        )

    def check(self, plan: SandboxPlan) -> None:
        problems = (
            (
                plan.tier_min is not Tier.CONTAINER,
                "system.tier_min",
                "this engine has the tier container",
            ),
            (bool(plan.connect), "scope.connect", "network access is not enforced by this version"),
            (
                plan.kind is Kind.COMMAND and plan.image not in self._setup.images,
                "system.images",
                f"there is no image {plan.image}",
            ),
            (
                plan.seccomp not in self._setup.seccomp,
                "system.profile",
                "its seccomp set is unknown",
            ),
        )
        for wrong, rule, message in problems:
            if wrong:
                raise failure(Code.UNENFORCEABLE, message, rule=rule)
        for path in plan.system_execute:
            # A link is not followed: the grant covers what it says and not where that leads.
            reason = self._setup.images[plan.image].why_not(path)
            if reason is not None:
                message = f"{path} of the image can't be made executable alone: {reason}"
                raise failure(Code.UNENFORCEABLE, message, rule="scope.execute")

    def expect(self) -> None:
        self._ahead.expect()

    def create(
        self, tree: LeaseTree, plan: SandboxPlan, digest: str, patience: Patience
    ) -> OciSandbox:
        self._ahead.expect()
        name = f"sb_{self._random_hex(4)}"
        lease = LeaseGroups(self._setup.hierarchies, self._setup.instance, tree.lease_id)
        lease.create(tree.limits)
        groups = lease.sandbox(name)
        before = processes.children()
        try:
            with ExitStack() as undo:
                undo.callback(self._remove, name, groups)
                undo.callback(lambda: processes.collect(orphans(before, name), _REAP_S))
                undo.callback(groups.kill, KILL_S)
                sandbox = self._start(name, tree, plan, digest, groups, before, undo, patience)
                undo.pop_all()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise failure(
                    Code.DISK_FULL, f"a disk is full ({reason(error)}); nothing ran"
                ) from error
            raise failure(
                Code.SANDBOX_UNAVAILABLE, f"the sandbox could not be made: {reason(error)}"
            ) from error
        return sandbox

    def _start(
        self,
        name: str,
        tree: LeaseTree,
        plan: SandboxPlan,
        digest: str,
        groups: SandboxGroups,
        before: Set[int],
        undo: ExitStack,
        patience: Patience,
    ) -> OciSandbox:
        entered = groups.create(plan.limits)
        directory = self._sandboxes_dir / name
        directory.mkdir(mode=0o700)
        self._live.add(name)
        for mount in plan.trees:
            prefixes.ensure(tree.root_fd, mount.path, tree.uid_base)
        held = {
            prefixes.ensure(tree.root_fd, path, tree.uid_base, denied=True) for path in plan.deny
        }
        plan = plan.model_copy(update={"deny": tuple(sorted(held))})
        link = self._launcher.start(name, directory, tree, plan, entered, self._live, patience)
        undo.callback(link.close)
        pidfd = os.pidfd_open(link.pid)
        undo.callback(os.close, pidfd)
        mounts = tuple(mount.path for mount in staging.tree_mounts(plan))
        anchors = Anchors.drop(tree.root_fd, f"/proc/{link.pid}/root", mounts)
        undo.callback(anchors.close)
        helpers = processes.collect(orphans(before, name) - {link.pid}, 0)
        groups.exempt(link.pid)
        spares = self._spares(name, link, groups, tree.uid_base)
        undo.callback(spares.close)
        spares.prepare()
        record = Record(
            version=VERSION,
            lease_id=tree.lease_id,
            digest=digest,
            env=plan.env,
            uid_base=tree.uid_base,
            system=self._setup.system,
            mounts=mounts,
        )
        record.write(directory)
        return self._sandbox(
            name,
            record,
            link,
            groups,
            spares,
            anchors,
            lambda: self._close(name, groups, pidfd, helpers),
        )

    def _spares(
        self,
        name: str,
        link: GuestLink,
        groups: SandboxGroups,
        owner: int,
        left: Sequence[CallGroup] = (),
    ) -> Spares:
        return Spares(
            link,
            groups,
            self._background,
            owner,
            lambda: int(self._random_hex(8), 16),
            lambda: self._journal.refused(name),
            persistent=self._setup.persistent,
            left=left,
        )

    def _sandbox(
        self,
        name: str,
        record: Record,
        link: GuestLink,
        groups: SandboxGroups,
        spares: Spares,
        anchors: Anchors | None,
        on_close: Callable[[], None],
    ) -> OciSandbox:
        return OciSandbox(
            name=name,
            digest=record.digest,
            env=record.env,
            link=link,
            groups=groups,
            spares=spares,
            journal=self._journal,
            anchors=anchors,
            on_close=on_close,
        )

    def evidence(self, sandbox: str, call: str) -> Evidence:
        return Unknown() if self._left is None else self._left.evidence(sandbox, call)

    def forget(self, sandbox: str, call: str) -> None:
        self._journal.forget(call)

    def release(self, lease_id: str) -> None:
        groups = self._groups(lease_id)
        # Empty already, unless a sandbox could not be closed in time: then a repetition ends it.
        cgroup.kill(groups.unified, START_TIMEOUT_S)
        left = groups.remove()
        if left:
            _log.warning("still in use: %s", left[0])
            raise failure(Code.WORKSPACE_UNAVAILABLE, "cgroups of the lease are still in use")

    def sweep(self, live: Set[str]) -> tuple[str, ...]:
        left: list[str] = []
        found = cgroup.leases_of(self._setup.hierarchies, self._setup.instance)
        for lease_id in sorted(found - live):
            groups = self._groups(lease_id)
            if cgroup.kill(groups.unified, 10.0):
                left += groups.remove()
            else:
                left.append(str(groups.unified))
        return tuple(left)

    def recover(self, kept: Set[str] = frozenset()) -> Recovered:
        """Called once, before the first sandbox: take back what lives of the leases `kept`, end and
        remove everything else of this instance. Nothing is taken back whose lease's mounts are not
        (`MountHolder.inherited`), and nothing of a program that kept the journal in another layout:
        what runs there, and for whom, can't be told."""
        told = self._holder.inherited and self._journal.whole
        records = read_records(self._sandboxes_dir) if told else {}
        left = self.sweep(kept & {record.lease_id for record in records.values()})
        adopted: dict[str, Adopted] = {}
        given = self._journal.by_sandbox()
        for name, record in records.items():
            if record.lease_id in kept:
                taken = self._adopt(name, record, given.get(name, frozenset()))
                if taken is not None:
                    adopted[name] = taken
        used = frozenset(records[name].lease_id for name in adopted)
        left += self.sweep(used)
        for lease_id in used:
            end_sandboxes(self._groups(lease_id), keep=adopted.keys())
        for directory in (self._sandboxes_dir, self._runtime_dir):
            for entry in directory.iterdir():
                if entry.name not in adopted:
                    shutil.rmtree(entry)
        self._live.update(adopted)
        systems = {records[name].system for name in adopted} | {self._setup.system}
        remove_systems(self._setup.state_dir, systems)
        survivors = tuple(
            Survivor(records[name].lease_id, taken.sandbox, records[name].version == VERSION)
            for name, taken in adopted.items()
        )
        self._left = LeftCalls(self._journal, adopted)
        return Recovered(survivors, tuple(self._left.all), left)

    def _adopt(self, name: str, record: Record, given: Set[int]) -> Adopted | None:
        groups = self._groups(record.lease_id).sandbox(name)
        socket_path = str(self._sandboxes_dir / name / "guest.sock")
        found = find(name, socket_path, groups, given)
        if found is None:
            return None
        spares = self._spares(name, found.link, groups, record.uid_base, found.idle)
        spares.refill()
        root = f"{self._holder.path}/{record.lease_id}/root"
        root_fd = self._holder.run(lambda: open_directory(root))
        anchors = anchors_of(root_fd, found.link.pid, record.mounts)

        def on_close() -> None:
            os.close(root_fd)
            self._close(name, groups, found.pidfd, frozenset())

        sandbox = self._sandbox(name, record, found.link, groups, spares, anchors, on_close)
        return Adopted(sandbox, found.link, found.kept, found.groups)

    def _groups(self, lease_id: str) -> LeaseGroups:
        return LeaseGroups(self._setup.hierarchies, self._setup.instance, lease_id)

    def close(self) -> None:
        self._journal.close()
        self._launcher.close()
        self._ahead.close()
        LeaseGroups(self._setup.hierarchies, self._setup.instance, "none").remove_instance()

    def _close(self, name: str, groups: SandboxGroups, pidfd: int, helpers: Set[int]) -> None:
        processes.reap(pidfd, _REAP_S)
        os.close(pidfd)
        processes.collect(helpers, _REAP_S)
        self._remove_directories(name)
        # Letting go of the pages of what commands wrote takes 100 to 190 ms (measured), which
        # nobody has to wait for. What can't be removed is found by `release` or `recover`.
        self._background.submit(groups.remove)

    def _remove(self, name: str, groups: SandboxGroups) -> None:
        self._remove_directories(name)
        groups.remove()

    def _remove_directories(self, name: str) -> None:
        """What can't be removed now is found by the next `recover`."""
        self._live.discard(name)
        shutil.rmtree(self._sandboxes_dir / name, ignore_errors=True)
        shutil.rmtree(self._runtime_dir / name, ignore_errors=True)
