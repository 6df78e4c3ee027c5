"""Starting a sandbox's processes: its script, its bundle, the launcher and the runtime.

The launcher (sandbox/launch.c) carries out the script in the mount namespace that holds the lease's
mounts, then in one of its own, and becomes the runtime, which detaches when the guest runs.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable, Mapping, Sequence, Set
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.engines.oci import spec, staging
from stockade.engines.oci.ahead import Ahead
from stockade.engines.oci.filters import Filters, section_of, with_program
from stockade.engines.oci.image import SystemImage
from stockade.engines.oci.places import (
    cover,
    empty_file,
    holds,
    keep,
    listen,
    make_layers,
    remove_dead_layers,
)
from stockade.engines.oci.toolbox import INSIDE
from stockade.host import processes
from stockade.host.cgroup import Hierarchies
from stockade.host.guest_link import GuestLink
from stockade.host.mounts import MountHolder
from stockade.host.reasons import without_place
from stockade.host.sealed import sealed_copy
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.patience import Patience
from stockade.terms.plan import SandboxPlan
from stockade.terms.ports import LeaseTree

START_TIMEOUT_S: Final = 20.0
KILL_S: Final = 1.0
# What the guest has at least, however long the runtime took: it has begun by then.
_GREETING_S: Final = 0.5
# The launcher puts what the runtime is to have at 0 to 3.
_LOWEST: Final = 64
# Directories that every Debian and Ubuntu has; one is covered in the launcher's own namespace.
_STAGES: Final = ("/mnt", "/media", "/srv", "/opt")


@dataclass(frozen=True, slots=True)
class Setup:
    """What the engine is made of; built by the composition root. `amend` changes the runtime's
    configuration of every sandbox. The selftest alone sets it, to take one wall away at a time.
    `persistent` sandboxes outlive this process. `system` names the directory below
    `state_dir`/system that holds the toolbox and the images of this start: those of an earlier one
    stay while its sandboxes do."""

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
    persistent: bool = False
    system: str = ""


class Launcher:
    """`runtime_dir` is where the runtime keeps its own state. Raises
    Failure(engine_unavailable)."""

    def __init__(self, setup: Setup, holder: MountHolder, runtime_dir: Path, ahead: Ahead) -> None:
        self._setup = setup
        self._holder = holder
        self._runtime_dir = runtime_dir
        self._ahead = ahead
        self._filters = Filters()
        self._stage = next(
            path for path in _STAGES if os.path.isdir(path) and not holds(path, setup.state_dir)
        )
        self._cover = cover(setup.hierarchies)
        try:
            self._sealed = sealed_copy(setup.runtime, _LOWEST)
        except OSError as error:
            raise failure(
                Code.ENGINE_UNAVAILABLE, f"{setup.runtime} can't be read: {error.strerror}"
            ) from error

    def close(self) -> None:
        if self._sealed is not None:
            os.close(self._sealed)

    def start(
        self,
        name: str,
        directory: Path,
        tree: LeaseTree,
        plan: SandboxPlan,
        entered: Sequence[Path],
        live: Set[str],
        patience: Patience,
    ) -> GuestLink:
        """Returns when the guest has greeted. `entered` are the groups to be in, `live` the
        sandboxes whose layers stay. Raises Failure(sandbox_unavailable, and what `patience` ends
        with), OSError."""
        image = self._setup.images.get(plan.image)
        layers = f"{tree.disk_path}/sys/{name}"
        names = staging.layer_names(plan, image)
        if names:
            owner = spec.map_id(tree.uid_base, plan.uid, 0)
            remove_dead_layers(self._holder, f"{tree.disk_path}/sys", live)
            self._holder.run(lambda: make_layers(layers, names, owner))
        network = self._ahead.network()
        opened = [network]
        try:
            nothing = keep(opened, empty_file())
            log = keep(
                opened, os.open(directory / "log", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
            )
            listener = keep(opened, listen(directory))
            config = self._config(plan, tree.uid_base, network)
            section = section_of(config)
            program = self._filters.known(section)
            if program is not None:
                config = with_program(config, program)
            (directory / "config.json").write_text(json.dumps(config))
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
            own = str(nothing), str(log), str(listener)
            inherited, executed = list(opened), self._setup.runtime
            if self._sealed is not None:
                inherited.append(self._sealed)
                executed = f"/proc/self/fd/{self._sealed}"
            runtime = self._runtime(directory, name)
            script = staging.script(plan, place, image, [*own, executed, *runtime])
            try:
                until = time.monotonic() + min(START_TIMEOUT_S, patience.left_s())
                self._run(script, inherited, log, until, patience)
                left_s = max(_GREETING_S, until - time.monotonic())
                link = GuestLink.connect(str(directory / "guest.sock"), left_s, patience)
            except Failure as error:
                if program is not None and error.fault.code is Code.SANDBOX_UNAVAILABLE:
                    self._filters.distrust()
                raise
            if section is not None and program is None:
                self._filters.keep(section, self._runtime_dir / name / "seccomp.bpf")
            return link
        finally:
            for fd in opened:
                os.close(fd)

    def _config(self, plan: SandboxPlan, uid_base: int, network: int) -> spec.Json:
        made = spec.config(
            plan,
            uid_base=uid_base,
            netns_path=f"/proc/{os.getpid()}/fd/{network}",
            rootfs=f"{self._stage}/{spec.ROOTFS}",
            guest=f"{INSIDE}/guest",
            persistent=self._setup.persistent,
            seccomp=self._setup.seccomp[plan.seccomp],
        )
        return self._setup.amend(made)

    def _runtime(self, directory: Path, name: str) -> list[str]:
        """The runtime's argument vector."""
        return [
            self._setup.runtime,
            *("--root", str(self._runtime_dir), "--cgroup-manager=disabled"),
            *("run", "-d", "--preserve-fds", "1", "--bundle", str(directory), name),
        ]

    def _run(
        self, script: bytes, fds: Sequence[int], log: int, until: float, patience: Patience
    ) -> None:
        memory = os.memfd_create("stockade-stage", os.MFD_CLOEXEC)
        try:
            os.write(memory, script)
            process = self._holder.spawn(
                [self._setup.launcher, str(memory)], pass_fds=(memory, *fds), stderr=log
            )
            # The guest and a spare are moved next; and the time until then is nobody else's.
            self._ahead.expect()
            status = processes.wait_exit(
                process, max(0.0, until - time.monotonic()), patience.cancel.fileno()
            )
            if status is None:
                process.kill()
                # Nobody is kept waiting for one that the kernel does not let go of.
                processes.wait_exit(process, KILL_S)
                if patience.cancel.reason() is not None:
                    raise patience.over("the sandbox was made")
                limit_s = min(START_TIMEOUT_S, patience.limit_s)
                raise failure(Code.SANDBOX_UNAVAILABLE, f"the runtime hung for {limit_s:.3g} s")
        finally:
            os.close(memory)
        if status:
            said = os.pread(log, 4096, 0).decode("utf-8", "replace").strip().replace("\n", "; ")
            said = without_place(said, self._setup.state_dir)[:500]
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                f"the runtime could not start the sandbox (status {status}): {said}",
            )
