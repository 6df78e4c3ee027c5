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
import fcntl
import json
import os
import shutil
import socket
from collections.abc import Callable, Mapping, Sequence, Set
from concurrent.futures import Executor
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.engines.oci import spec, staging
from stockade.engines.oci.image import SystemImage
from stockade.engines.oci.sandbox import OciSandbox
from stockade.engines.oci.spares import Spares
from stockade.engines.oci.toolbox import INSIDE
from stockade.host import cgroup, netns, prefixes, processes, trees
from stockade.host.anchors import Anchors
from stockade.host.cgroup import Hierarchies
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import LeaseGroups, SandboxGroups
from stockade.host.mounts import MountHolder
from stockade.terms.claim import Evidence, Unknown
from stockade.terms.fault import Code, failure
from stockade.terms.grant import Tier
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import LeaseTree
from stockade.terms.result import EngineRef

START_TIMEOUT_S: Final = 20.0
_REAP_S: Final = 1.0
# Directories that every Debian and Ubuntu has; one is covered in the launcher's own namespace.
_STAGES: Final = ("/mnt", "/media", "/srv", "/opt")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the engine is made of; built by the composition root. `amend` changes the runtime's
    configuration of every sandbox. The selftest alone sets it, to take one wall away at a time."""

    state_dir: Path
    instance: str
    runtime: str
    runtime_version: str
    launcher: str
    toolbox: Path
    images: Mapping[str, SystemImage]
    hierarchies: Hierarchies
    seccomp: Mapping[str, spec.Json]
    amend: Callable[[spec.Json], spec.Json] = lambda config: config


class OciEngine:
    """Implements `terms.ports.Engine` on crun."""

    def __init__(
        self,
        setup: Setup,
        holder: MountHolder,
        background: Executor,
        random_hex: Callable[[int], str],
    ) -> None:
        self._setup = setup
        self._holder = holder
        self._background = background
        self._random_hex = random_hex
        self._sandboxes_dir = setup.state_dir / "sandboxes"
        self._runtime_dir = setup.state_dir / "runtime"
        for directory in (self._sandboxes_dir, self._runtime_dir):
            directory.mkdir(mode=0o700, exist_ok=True)
        self._stage = next(
            path for path in _STAGES if os.path.isdir(path) and not _holds(path, setup.state_dir)
        )
        self._cover = _cover(setup.hierarchies)
        self._live: set[str] = set()

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

    def create(self, tree: LeaseTree, plan: SandboxPlan, digest: str) -> OciSandbox:
        name = f"sb_{self._random_hex(4)}"
        lease = LeaseGroups(self._setup.hierarchies, self._setup.instance, tree.lease_id)
        lease.create(tree.limits)
        groups = lease.sandbox(name)
        before = processes.children()
        try:
            with ExitStack() as undo:
                undo.callback(self._remove, name, groups)
                undo.callback(lambda: processes.collect(_orphans(before, name), _REAP_S))
                undo.callback(groups.kill, START_TIMEOUT_S)
                sandbox = self._start(name, tree, plan, digest, groups, before, undo)
                undo.pop_all()
        except OSError as error:
            if error.errno in (errno.ENOSPC, errno.EDQUOT):
                raise failure(Code.DISK_FULL, f"a disk is full ({error}); nothing ran") from error
            raise failure(
                Code.SANDBOX_UNAVAILABLE, f"the sandbox could not be made: {error}"
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
        self._launch(name, directory, tree, plan, entered)
        link = GuestLink.connect(str(directory / "guest.sock"), START_TIMEOUT_S)
        undo.callback(link.close)
        pidfd = os.pidfd_open(link.pid)
        undo.callback(os.close, pidfd)
        anchors = Anchors.drop(
            tree.root_fd,
            f"/proc/{link.pid}/root",
            [mount.path for mount in staging.tree_mounts(plan)],
        )
        undo.callback(anchors.close)
        helpers = processes.collect(_orphans(before, name) - {link.pid}, 0)
        groups.exempt(link.pid)
        spares = Spares(link, groups, self._background, tree.uid_base)
        undo.callback(spares.close)
        spares.prepare()
        return OciSandbox(
            name=name,
            digest=digest,
            env=plan.env,
            owner=tree.uid_base,
            link=link,
            groups=groups,
            spares=spares,
            anchors=anchors,
            on_close=lambda: self._close(name, groups, pidfd, helpers),
        )

    def evidence(self, sandbox: str, call: str) -> Evidence:
        """Nothing of an earlier process is adopted (`recover`), so nothing is known."""
        return Unknown()

    def release(self, lease_id: str) -> None:
        groups = LeaseGroups(self._setup.hierarchies, self._setup.instance, lease_id)
        # Empty already, unless a sandbox could not be closed in time: then a repetition ends it.
        cgroup.kill(groups.unified, START_TIMEOUT_S)
        left = groups.remove()
        if left:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, f"cgroups of the lease are still in use: {left[0]}"
            )

    def sweep(self, live: Set[str]) -> tuple[str, ...]:
        """After a crash nothing of an earlier process is adopted: all its sandboxes end here."""
        left: list[str] = []
        found = cgroup.leases_of(self._setup.hierarchies, self._setup.instance)
        for lease_id in sorted(found - live):
            groups = LeaseGroups(self._setup.hierarchies, self._setup.instance, lease_id)
            if cgroup.kill(groups.unified, 10.0):
                left += groups.remove()
            else:
                left.append(str(groups.unified))
        return tuple(left)

    def recover(self) -> tuple[str, ...]:
        """Called once, before the first sandbox: end and remove everything of this instance."""
        left = self.sweep(frozenset())
        for directory in (self._sandboxes_dir, self._runtime_dir):
            for entry in directory.iterdir():
                shutil.rmtree(entry)
        return left

    def close(self) -> None:
        LeaseGroups(self._setup.hierarchies, self._setup.instance, "none").remove_instance()

    def _launch(
        self,
        name: str,
        directory: Path,
        tree: LeaseTree,
        plan: SandboxPlan,
        entered: Sequence[Path],
    ) -> None:
        image = self._setup.images.get(plan.image)
        layers = f"{tree.disk_path}/sys/{name}"
        names = staging.layer_names(plan, image)
        if names:
            owner = spec.map_id(tree.uid_base, plan.uid, 0)
            self._remove_dead_layers(tree)
            self._holder.run(lambda: _make_layers(layers, names, owner))
        network = netns.create()
        opened = [network]
        try:
            nothing = _keep(opened, _nothing())
            log = _keep(
                opened, os.open(directory / "log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
            listener = _keep(opened, _listen(directory))
            config = spec.config(
                plan,
                uid_base=tree.uid_base,
                netns_path=f"/proc/{os.getpid()}/fd/{network}",
                rootfs=f"{self._stage}/{spec.ROOTFS}",
                guest=f"{INSIDE}/guest",
                seccomp=self._setup.seccomp[plan.seccomp],
            )
            (directory / "config.json").write_text(json.dumps(self._setup.amend(config)))
            place = staging.Place(
                uid_base=tree.uid_base,
                tree_path=tree.path,
                layers=layers if names else None,
                toolbox=self._setup.toolbox,
                stage=self._stage,
                cover=self._cover,
                groups=tuple(entered),
                netns_fd=network,
            )
            runtime = [
                self._setup.runtime,
                "--root",
                str(self._runtime_dir),
                "--cgroup-manager=disabled",
                "run",
                "-d",
                "--preserve-fds",
                "1",
                "--bundle",
                str(directory),
                name,
            ]
            script = staging.script(
                plan, place, image, [str(nothing), str(log), str(listener), *runtime]
            )
            self._run_launcher(script, opened, log)
        finally:
            for fd in opened:
                os.close(fd)

    def _remove_dead_layers(self, tree: LeaseTree) -> None:
        """Writable layers of sandboxes that have died, from the lease's disk."""
        place = f"{tree.disk_path}/sys"
        fd = self._holder.run(lambda: _open_directory(place))
        try:
            for name in os.listdir(fd):
                if name not in self._live:
                    trees.remove_tree(fd, os.fsencode(name))
        finally:
            os.close(fd)

    def _run_launcher(self, script: bytes, fds: Sequence[int], log: int) -> None:
        memory = os.memfd_create("stockade-stage", os.MFD_CLOEXEC)
        try:
            os.write(memory, script)
            process = self._holder.spawn(
                [self._setup.launcher, str(memory)], pass_fds=(memory, *fds), stderr=log
            )
            status = processes.wait_exit(process, START_TIMEOUT_S)
            if status is None:
                process.kill()
                process.wait()
                raise failure(
                    Code.SANDBOX_UNAVAILABLE, f"the runtime hung for {START_TIMEOUT_S:.0f} s"
                )
        finally:
            os.close(memory)
        if status:
            said = os.pread(log, 500, 0).decode("utf-8", "replace").strip().replace("\n", "; ")
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                f"the runtime could not start the sandbox (status {status}): {said}",
            )

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


def _orphans(before: Set[int], name: str) -> frozenset[int]:
    """Children that came since `before` and were started in the sandbox's own group: the guest,
    and what the runtime left behind when it detached."""
    came = processes.children() - before
    return frozenset(p for p in came if processes.unified_group(p).endswith(f"/guests/{name}"))


def _keep(opened: list[int], fd: int) -> int:
    opened.append(fd)
    return fd


def _holds(directory: str, path: Path) -> bool:
    return path.is_relative_to(directory)


def _cover(hierarchies: Hierarchies) -> tuple[tuple[str, str], ...]:
    """(parent, name) of what the runtime must not see. crun 1.8 refuses a hybrid host whose cgroup2
    hierarchy holds a controller, and would leave directories in whatever is not a mount."""
    if not hierarchies.hybrid:
        return ()
    root = hierarchies.unified.parent
    covered = [
        (str(root), entry.name)
        for entry in sorted(root.iterdir())
        if entry == hierarchies.unified
        or (entry.is_dir() and not entry.is_symlink() and not entry.is_mount())
    ]
    return tuple(covered)


def _nothing() -> int:
    """Standard input and output of the runtime: an empty file that can't be written. Not /dev/null,
    because crun gives its standard streams to the sandbox's user (fchown(2)): the host's device
    would belong to root inside, who could then change its mode for everybody."""
    fd = os.memfd_create("stockade-nothing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def _listen(directory: Path) -> int:
    """The guest's listening socket. By a descriptor of the directory: sun_path holds 108 bytes."""
    holder = os.open(directory, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        with listener:
            listener.bind(f"/proc/self/fd/{holder}/guest.sock")
            listener.listen(1)
            return listener.detach()
    finally:
        os.close(holder)


def _make_layers(layers: str, names: Sequence[str], owner: int) -> None:
    """upper and work of each writable layer; in the namespace that holds the lease's disk."""
    os.makedirs(layers, mode=0o711)
    for name in names:
        for part in ("upper", "work"):
            path = f"{layers}/{name}/{part}"
            os.makedirs(path, mode=0o755)
            os.chown(path, owner, owner)


def _open_directory(path: str) -> int:
    os.makedirs(path, mode=0o711, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
