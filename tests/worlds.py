"""Worlds for the conformance suite: the fake, and crun on this host's real kernel."""

from __future__ import annotations

import platform
import secrets
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from stockade.decide.compile import compile_plan, lease_limits, lease_tmp_bytes, plan_digest
from stockade.decide.seccomp import compile_seccomp
from stockade.engines.oci import image, toolbox
from stockade.engines.oci.engine import OciEngine, Setup
from stockade.host import cgroup, instance
from stockade.host.cancel import EventfdCancel
from stockade.host.clocks import current_boot
from stockade.host.data import data_directory, native_program
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.mounts import MountHolder
from stockade.host.policy_files import load_policy
from stockade.host.workspaces import LocalWorkspaces
from stockade.ledger.artifacts import FileArtifacts
from stockade.terms.patience import CancelSignal, Patience
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import Engine, LeaseTree, WorkspaceSpec
from stockade.testing.clock import ManualClock
from stockade.testing.conformance import COMMANDS
from stockade.testing.fake_engine import FakeEngine, Script
from stockade.testing.fake_workspaces import FakeWorkspaces
from tests.kernel import RUNTIMES_OWN

UID_BASE = 1_073_741_824 + 65_536 * 7


def spec_for(lease_id: str) -> WorkspaceSpec:
    per_lease = load_policy().grant("agent").per_lease
    limits, tmp_bytes = lease_limits(per_lease), lease_tmp_bytes(per_lease)
    return WorkspaceSpec(lease_id, UID_BASE, None, (), limits, tmp_bytes)


class _Base:
    engine: Engine

    def __init__(self, directory: Path) -> None:
        self.artifacts = FileArtifacts(str(directory / "artifacts"), secrets.token_hex)
        self.policy = load_policy()
        self._never = EventfdCancel()
        self._cancels = [self._never]

    def plan(self, kind: Kind) -> tuple[SandboxPlan, str]:
        plan = compile_plan(
            self.policy.grant("agent"),
            kind,
            self.policy,
            image="host",
            image_env={"PATH": "/usr/bin:/bin"},
            lease_env=(),
        )
        return plan, plan_digest(plan)

    def cancel(self) -> CancelSignal:
        self._cancels.append(EventfdCancel())
        return self._cancels[-1]

    def patience(self) -> Patience:
        return Patience(self._never, 60.0, time.monotonic)

    def close(self) -> None:
        for cancel in self._cancels:
            cancel.close()


class FakeWorld(_Base):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        self._clock = ManualClock()
        self._engines = directory / "engine"
        fake = FakeEngine(str(self._engines), self._clock)
        for command in COMMANDS:
            fake.scripts[command.line.encode()] = Script(
                stdout=command.stdout,
                stderr=command.stderr,
                code=command.code,
                signal=command.signal,
                takes_s=command.seconds,
                left_running=command.left_running,
                cpu_ms=command.cpu_ms,
            )
        self.engine = fake
        self._workspaces = FakeWorkspaces(
            str(directory / "workspaces"),
            lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
        )

    def lease(self) -> LeaseTree:
        spec = spec_for(f"ls_{secrets.token_hex(8)}")
        self._workspaces.create(spec)
        return self._workspaces.attach(spec).tree

    def let_pass(self, seconds: float) -> None:
        while not self._clock.waiting():
            pass
        self._clock.advance(seconds)

    def left(self, lease_id: str) -> list[str]:
        return [str(path) for path in self._engines.glob(lease_id)]


class OciWorld(_Base):
    def __init__(self, directory: Path) -> None:
        super().__init__(directory)
        directory.chmod(0o711)
        self.state = directory / "state"
        self.instance = instance.acquire(self.state, secrets.token_hex)
        self.holder = MountHolder(self.state / "mounts")
        self.background = ThreadPoolExecutor(4)
        self.hierarchies = cgroup.of_this_host()
        recipe = image.parse_recipe((data_directory("images") / "host.json").read_bytes())
        self.engine = self.oci = OciEngine(
            Setup(
                state_dir=self.state,
                instance=self.instance.id,
                runtime="/usr/bin/crun",
                runtime_version="test",
                launcher=str(native_program("launch")),
                toolbox=toolbox.build(
                    self.state / "toolbox",
                    native_program("guest"),
                    native_program("hold.so"),
                    native_program("regular.so"),
                ),
                images={"host": image.build(recipe, self.state / "images")},
                hierarchies=self.hierarchies,
                seccomp={
                    ref: compile_seccomp(item, platform.machine()).to_json()
                    for ref, item in self.policy.seccomp.items()
                },
            ),
            self.holder,
            self.background,
            secrets.token_hex,
        )
        self.workspaces = LocalWorkspaces(
            self.state,
            self.holder,
            lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
            boot=current_boot(),
        )

    def lease(self) -> LeaseTree:
        spec = spec_for(f"ls_{secrets.token_hex(8)}")
        self.workspaces.create(spec)
        return self.workspaces.attach(spec).tree

    def let_pass(self, seconds: float) -> None:
        """Real time passes by itself."""

    def left(self, lease_id: str) -> list[str]:
        roots = [self.hierarchies.unified, *self.hierarchies.v1.values()]
        groups = [
            str(group)
            for root in roots
            for group in root.glob(f"stockade-{self.instance.id}/{lease_id}")
        ]
        sandboxes = [str(path) for path in (self.state / "sandboxes").iterdir()]
        kept = [path for path in (self.state / "runtime").iterdir() if path.name != RUNTIMES_OWN]
        return groups + sandboxes + [str(path) for path in kept]

    def close(self) -> None:
        super().close()
        self.oci.recover()
        self.background.shutdown()
        self.workspaces.close()
        self.holder.close()
        self.oci.close()
        self.instance.release()
