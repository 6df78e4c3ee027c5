"""Where the selftest lives: a state directory of its own, and engines that differ by scene.

The parts are those of the daemon (`native.engine_setup`, its policy and its seccomp list). Each scene
gets a lease, and an engine of its own over the same set-up, whose `amend` is the scene's. So what is
attacked is what the daemon makes, and what a control lacks is written down in one place: the scene.
"""

from __future__ import annotations

import secrets
import shutil
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, closing, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Final

from stockade import native
from stockade.decide.compile import compile_plan, plan_digest
from stockade.embedded import EMBEDDED
from stockade.engines.oci import image
from stockade.engines.oci.engine import OciEngine, Setup
from stockade.flow.user_ids import UID_FLOOR, UID_SLOTS
from stockade.host import cgroup, leftovers, processes
from stockade.host.cancel import EventfdCancel
from stockade.host.clocks import current_boot
from stockade.host.data import native_program
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.lease_groups import LeaseGroups
from stockade.host.mounts import MountHolder
from stockade.host.policy_files import load_policy
from stockade.host.workspaces import LocalWorkspaces
from stockade.ledger.artifacts import FileArtifacts
from stockade.selftest import bait, door, furniture, neighbour
from stockade.selftest.scene import Facts, Room, Scene
from stockade.selftest.stage import PROGRAM, Stage
from stockade.terms.lease import UID_RANGE
from stockade.terms.patience import Patience
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import LeaseTree, Sandbox, Workspace, WorkspaceSpec

_GRANT: Final = "agent"
_THREADS: Final = 2
_PATIENCE_S: Final = 60.0
_NEIGHBOUR: Final = Scene("neighbour")


class House:
    """Use `opened`. Not thread-safe: one scene at a time, beside the neighbour's."""

    def __init__(self, state_dir: Path, instance: str, setup: Setup, undo: ExitStack) -> None:
        self._setup = setup
        self._policy = load_policy()
        self._holder = MountHolder(state_dir / "mounts")
        undo.callback(self._holder.close)
        self._background = ThreadPoolExecutor(_THREADS)
        undo.callback(self._background.shutdown)
        self._artifacts = FileArtifacts(str(state_dir / "artifacts"), secrets.token_hex)
        self._workspaces = LocalWorkspaces(
            state_dir,
            self._holder,
            lambda root_fd, owner: LeaseFiles(root_fd, FileLocks(), owner),
            boot=current_boot(),
        )
        undo.callback(self._workspaces.close)
        slot = int(instance, 16)
        self.uid = UID_FLOOR + slot % UID_SLOTS * UID_RANGE
        self._neighbour_uid = UID_FLOOR + (slot + 1) % UID_SLOTS * UID_RANGE
        self.program = state_dir / "attack"
        shutil.copyfile(native_program("attack"), self.program)
        self.program.chmod(0o755)
        # As it is in every sandbox, but for the guest: that one may be read and traced.
        self._readable = state_dir / "toolbox-readable"
        shutil.copytree(setup.toolbox, self._readable)
        shutil.copyfile(native_program("guest-control"), self._readable / "guest")
        (self._readable / "guest").chmod(0o755)
        (self._readable / "hold.so").chmod(0o666)
        self.facts: dict[str, str] = {
            "toolbox_copy": str(self._readable),
            "state": str(state_dir),
            "program": PROGRAM,
            "capabilities": bait.own_capabilities(),
            "uid": str(self.uid),
        }
        self._other: LeaseTree | None = None
        undo.callback(lambda: self._engine(_NEIGHBOUR, {}).close())

    def learn(self, facts: Facts) -> None:
        self.facts |= facts

    @contextmanager
    def neighbour(self) -> Iterator[None]:
        """The other lease, with its program running."""
        mark = f"neighbour-{secrets.token_hex(8)}"
        self.learn({"neighbour_mark": mark})
        with self._lease(_NEIGHBOUR.room, self._neighbour_uid) as workspace:
            tree = workspace.tree
            for name in ("workspace/secret", "tmp/secret"):
                furniture.put(tree, name, f"{mark}\n", 0o600, self._neighbour_uid)
            furniture.private(Path(self.facts["bait"]), mark, self._neighbour_uid)
            with (
                self._staged(_NEIGHBOUR, workspace, tree) as stage,
                neighbour.living(stage) as facts,
            ):
                self.learn(facts)
                self._other = tree
                yield

    @contextmanager
    def enter(self, scene: Scene) -> Iterator[Stage]:
        """The scene's sandbox, to the end of the context. Raises Failure, OSError, ValueError."""
        with self._lease(scene.room, self.uid) as workspace:
            tree = workspace.tree
            if scene.tree == "neighbour":
                assert self._other is not None
                tree = self._other
            if scene.ids == "neighbour":
                tree = replace(tree, uid_base=self._neighbour_uid)
            with self._staged(scene, workspace, tree) as stage:
                yield stage

    @contextmanager
    def _staged(self, scene: Scene, workspace: Workspace, tree: LeaseTree) -> Iterator[Stage]:
        group, escape = furniture.escape(self._setup, tree)
        facts = self.facts | {"group": group, "uid": str(tree.uid_base)} | dict(scene.facts)
        made: list[Sandbox] = []

        def again(other: Scene) -> Sandbox:
            plan = self._plan(other)
            with closing(EventfdCancel()) as cancel:
                patience = Patience(cancel, _PATIENCE_S, time.monotonic)
                made.append(
                    self._engine(other, facts).create(tree, plan, plan_digest(plan), patience)
                )
            return made[-1]

        try:
            LeaseGroups(self._setup.hierarchies, self._setup.instance, tree.lease_id).create(
                tree.limits
            )
            furniture.delegate(escape, tree.uid_base)
            sandbox = again(scene)
            yield Stage(
                scene=scene,
                facts=facts,
                tree=tree,
                files=workspace.files,
                sandbox=sandbox,
                artifacts=self._artifacts,
                again=again,
            )
        finally:
            for sandbox in reversed(made):
                sandbox.close()
            if scene.tree == "own":
                self._engine(scene, facts).release(tree.lease_id)

    @contextmanager
    def _lease(self, room: Room, uid: int) -> Iterator[Workspace]:
        lease_id = f"ls_{secrets.token_hex(8)}"
        spec = WorkspaceSpec(
            lease_id=lease_id,
            uid_base=uid,
            source=None,
            excludes=(),
            limits=room.limits,
            tmp_bytes=room.tmp_bytes,
        )
        self._workspaces.create(spec)
        try:
            workspace = self._workspaces.attach(spec)
            furniture.furnish(workspace.tree, uid, self.program, self.facts.get("mark", ""))
            yield workspace
        finally:
            self._workspaces.remove(lease_id)

    def _plan(self, scene: Scene) -> SandboxPlan:
        grant = self._policy.grant(_GRANT)
        limits = scene.plan_room.limits
        given = {"read": scene.read, "write": scene.write, "execute": scene.execute}
        scope = {name: paths for name, paths in given.items() if paths is not None}
        grant = grant.model_copy(
            update={
                "scope": grant.scope.model_copy(update=scope),
                "deny": grant.deny if scene.deny is None else scene.deny,
                "system": grant.system.model_copy(update={"profile": scene.profile}),
                "per_lease": grant.per_lease.model_copy(update=limits.model_dump()),
            }
        )
        plan = compile_plan(
            grant,
            Kind.COMMAND,
            self._policy,
            image="host",
            image_env=self._setup.images["host"].recipe.env,
            lease_env=(),
        )
        return scene.reshape(plan)

    def _engine(self, scene: Scene, facts: Facts) -> OciEngine:
        setup = replace(
            self._setup,
            toolbox=self._readable if scene.guest == "readable" else self._setup.toolbox,
            amend=lambda config: scene.amend(config, facts),
        )
        return OciEngine(setup, self._holder, self._background, secrets.token_hex)


@contextmanager
def opened() -> Iterator[House]:
    """A house with its baits, and nothing of it afterwards. Raises Failure(engine_unavailable)."""
    place = EMBEDDED
    native.check_host(place)
    leftovers.collect(place, cgroup.of_this_host())
    state_dir, owned = leftovers.new_state(place)
    with ExitStack() as undo:
        undo.callback(leftovers.remove_state, state_dir, owned)
        processes.become_subreaper()
        undo.enter_context(bait.leaks())
        files = bait.make_files(state_dir / "bait", f"mark-{secrets.token_hex(8)}")
        setup = native.engine_setup(state_dir, owned, load_policy())
        setup = replace(setup, images=_with_layer(setup, f"{files['bait']}/layer", state_dir))
        house = House(state_dir, owned.id, setup, undo)
        house.learn(files | {"bait_below": files["bait"][1:]})
        house.learn({"handle": bait.handle(house.program, Path(files["bait"]) / "secret")})
        house.learn(undo.enter_context(bait.processes(house.program, house.facts, house.uid)))
        house.learn(undo.enter_context(door.opened(house.uid, house.facts["mark"])))
        undo.enter_context(house.neighbour())
        yield house


def _with_layer(setup: Setup, layer: str, state_dir: Path) -> dict[str, image.SystemImage]:
    """The images, each with one more host directory below its writable layer: the bait's."""
    mount = image.ImageMount(path=layer, system=True, reason="the selftest writes to it")
    return {
        name: image.build(
            item.recipe.model_copy(update={"mounts": (*item.recipe.mounts, mount)}),
            state_dir / "bait-images",
        )
        for name, item in setup.images.items()
    }
