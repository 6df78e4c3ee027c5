"""A plan as a script for the launcher: the root file system, mount by mount. Pure.

The launcher (sandbox/launch.c) carries the script out without choices of its own. Order matters:
groups are entered first, so that the cgroup namespace has its root there; subtrees of the workspace
are cloned while the launcher is still in the namespace that holds them; then it leaves for its own,
covers what the runtime must not see, and attaches everything below one staging directory.

A denied path below a writable tree is a read-only mount, and every directory between it and the
root of the outermost tree is a mount point of its own: renaming a parent would otherwise move the
denial away (`mv .git g; mkdir -p .git/hooks` worked without it). So is every directory between a
writable tree, or a private /tmp, and a tree in it: programs of an executable part would otherwise
run below any other name that its parent is given.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import Final

from stockade.engines.oci.image import SystemImage
from stockade.engines.oci.spec import id_map, map_id
from stockade.engines.oci.toolbox import INSIDE
from stockade.terms.pathname import to_bytes
from stockade.terms.plan import Kind, SandboxPlan, TreeMount

SKELETON_BYTES: Final = 1 << 20
_EMPTY: Final = "empty"
# What the runtime looks for in /dev of the launcher's namespace and binds into the sandbox's.
_DEVICES: Final = {
    "null": (1, 3),
    "zero": (1, 5),
    "full": (1, 7),
    "random": (1, 8),
    "urandom": (1, 9),
    "tty": (5, 0),
}


@dataclass(slots=True)
class Script:
    """Records of the launcher's language: count, operation, arguments, each NUL-terminated."""

    _out: bytearray = field(default_factory=bytearray)
    _slots: int = 0

    def add(self, operation: str, *arguments: str | int | bytes) -> None:
        for part in (len(arguments), operation, *arguments):
            text = part if isinstance(part, bytes) else str(part).encode()
            if b"\0" in text:
                raise ValueError(f"a NUL byte in a launcher argument of {operation}")
            self._out += text + b"\0"

    def slot(self) -> int:
        self._slots += 1
        return self._slots - 1

    def clone(self, directory: str, below: str | bytes, attributes: str) -> int:
        slot = self.slot()
        self.add("clone", slot, directory, below, attributes)
        return slot

    def filesystem(self, kind: str, attributes: str, **options: str | int) -> int:
        slot = self.slot()
        pairs = [part for pair in options.items() for part in pair]
        self.add("filesystem", slot, kind, attributes, *pairs)
        return slot

    def finish(self) -> bytes:
        return bytes(self._out)


@dataclass(frozen=True, slots=True)
class Place:
    """Host-side facts of one sandbox. `stage` is an existing directory that the private namespace
    may cover; `layers` the sandbox's directory for writable system layers, or None."""

    uid_base: int
    tree_path: str
    layers: str | None
    toolbox: Path
    stage: str
    cover: tuple[tuple[str, str], ...]
    groups: tuple[Path, ...]
    netns_fd: int


def tree_mounts(plan: SandboxPlan) -> list[TreeMount]:
    """The plan's trees, denied paths and pinned ancestors as mounts, parents before children."""
    mounts = {tree.path: tree for tree in plan.trees}
    for path in (*plan.deny, *mounts):
        # What is around it: it may be a tree itself.
        owner = _owner(plan.trees, str(PurePosixPath(path).parent))
        if owner is None or not owner.writable:
            continue
        # Up to the outermost tree: one that lies in another (it is executable, say) moves with the
        # directories of that one. What is denied is read-only: in it nothing moves.
        for parent in map(str, PurePosixPath(path).parents):
            around = _owner(plan.trees, parent)
            if around is not None and around.writable and not _held(plan.deny, parent):
                mounts.setdefault(parent, around.model_copy(update={"path": parent}))
        if path in plan.deny:
            held = TreeMount(path=path, writable=False, executable=owner.executable)
            mounts.setdefault(path, held)
    return [mounts[path] for path in sorted(mounts)]


def _below(path: str, prefix: str) -> bool:
    return path.startswith(prefix.rstrip("/") + "/")


def _held(deny: Sequence[str], path: str) -> bool:
    return any(path == denied or _below(path, denied) for denied in deny)


def _owner(trees: Sequence[TreeMount], path: str) -> TreeMount | None:
    """The innermost tree that holds `path`."""
    holding = [t for t in trees if t.path == path or _below(path, t.path)]
    return max(holding, key=lambda tree: len(tree.path), default=None)


def _attributes(writable: bool, executable: bool) -> str:
    return "sd" + ("" if writable else "r") + ("" if executable else "x")


def script(
    plan: SandboxPlan, place: Place, image: SystemImage | None, become: Sequence[str]
) -> bytes:
    """The whole staging of one sandbox. `become` are the launcher's last arguments: descriptor
    numbers of an empty file, log and listening socket, the runtime's program, and its argument
    vector."""
    out = Script()
    for group in place.groups:
        out.add("enter", str(group))
    lines = id_map(place.uid_base, plan.uid)
    out.add("userns", "".join(f"{a} {b} {n}\n" for a, b, n in lines))
    trees = [
        (
            mount,
            out.clone(
                place.tree_path,
                to_bytes(mount.path[1:]),
                _attributes(mount.writable, mount.executable),
            ),
        )
        for mount in tree_mounts(plan)
    ]
    out.add("private")
    for parent, name in place.cover:
        out.add("attach", out.filesystem("tmpfs", "rsdx", size=4096), parent, name)
    _devices(out)
    stage = PurePosixPath(place.stage)
    out.add(
        "attach",
        out.filesystem("tmpfs", "sdx", size=SKELETON_BYTES, mode="0755"),
        str(stage.parent),
        stage.name,
    )
    for name in ("rootfs", _EMPTY):
        out.add("mkdir", f"{stage}/{name}", "0755")
    root = f"{stage}/rootfs"
    if plan.kind is Kind.COMMAND:
        assert image is not None
        _system(out, plan, place, image, str(stage))
        out.add("attach", _sysfs(out, place.netns_fd), root, "sys")
    else:
        _skeleton(out, root, _search_directories(plan))
    for mount in sorted(plan.tmpfs, key=lambda mount: mount.path):
        if not mount.path.startswith("/dev/"):
            slot = out.filesystem(
                "tmpfs",
                _attributes(True, mount.executable),
                size=mount.size_bytes,
                nr_inodes=mount.inodes,
                mode=f"{mount.mode:04o}",
                uid=map_id(place.uid_base, plan.uid, plan.uid),
                gid=map_id(place.uid_base, plan.uid, plan.gid),
            )
            out.add("attach", slot, root, mount.path[1:])
            if mount.path == str(PurePosixPath(INSIDE).parent):
                out.add("mkdir", root + INSIDE, "0755")
    tools = out.clone(str(place.toolbox), ".", "rsd")
    out.add("attach", _covered(out, str(stage), "tools", tools, None, "sd"), root, INSIDE[1:])
    _attach_trees(out, root, trees, private={mount.path for mount in plan.tmpfs})
    if plan.kind is Kind.SEARCH:
        out.add("readonly", root)
    out.add("become", *become)
    return out.finish()


def _devices(out: Script) -> None:
    """Device nodes of the sandbox's own, where the runtime looks for the host's. A lock and an
    inotify watch are on an inode: on the host's /dev/null they were shared with everybody."""
    slot = out.filesystem("tmpfs", "sx", size=SKELETON_BYTES, mode="0755")
    out.add("attach", slot, "/", "dev")
    for name, (major, minor) in _DEVICES.items():
        out.add("device", f"/dev/{name}", major, minor)


def _sysfs(out: Script, netns_fd: int) -> int:
    slot = out.slot()
    out.add("sysfs", slot, netns_fd, "rsdx")
    return slot


def _system(out: Script, plan: SandboxPlan, place: Place, image: SystemImage, stage: str) -> None:
    """The image's root and its mounts; below writable layers where the plan says so."""
    executable = "" if plan.system_executable else "x"
    root = f"{stage}/rootfs"
    attach: list[tuple[str, str, bool]] = [(str(image.root), "", True)]
    attach += [(mount.path, mount.path[1:], mount.system) for mount in image.mounts]
    for index, (source, target, layered) in enumerate(attach):
        layer = None
        if plan.system_writable and layered:
            assert place.layers is not None
            layer = f"{place.layers}/{index}"
        lower = out.clone(source, ".", "irsd" + executable)
        slot = _covered(out, stage, str(index), lower, layer, "sd" + executable)
        if target:
            out.add("attach", slot, root, target)
        else:
            out.add("attach", slot, stage, "rootfs")
    for path in plan.system_execute:
        # X takes noexec away again; every other attribute stays as it is on the clone's origin.
        out.add("attach", out.clone(root, path[1:], "X"), root, path[1:])


def _covered(
    out: Script, stage: str, name: str, lower: int, layer: str | None, letters: str
) -> int:
    """An overlay over files of the host, read-only without a `layer`.

    Never the files themselves, also where nothing may be written: an inode that is shared with the
    host can be watched (inotify showed which programs the host and other leases started) and locked
    (flock(2) needs no right to write), and mountinfo would show the source's path.
    """
    out.add("mkdir", f"{stage}/lower-{name}", "0755")
    out.add("attach", lower, stage, f"lower-{name}")
    if layer is None:
        both = f"{stage}/lower-{name}:{stage}/{_EMPTY}"  # without an upper one it takes two layers
        return out.filesystem("overlay", "r" + letters, lowerdir=both)
    out.add("mkdir", f"{stage}/upper-{name}", "0755")
    # Through a mount of its own: the options are shown inside, and they name the directories.
    out.add("attach", out.clone(layer, ".", "sd"), stage, f"upper-{name}")
    # volatile: a throw-away layer is never synced (33 ms for 100 MB dirty without it).
    return out.filesystem(
        "overlay",
        letters,
        lowerdir=f"{stage}/lower-{name}",
        upperdir=f"{stage}/upper-{name}/upper",
        workdir=f"{stage}/upper-{name}/work",
        volatile="",
    )


def layer_names(plan: SandboxPlan, image: SystemImage | None) -> list[str]:
    """The subdirectories of `Place.layers` that the script expects, each with upper and work."""
    if image is None or not plan.system_writable:
        return []
    flags = [True, *(mount.system for mount in image.mounts)]
    return [str(index) for index, layered in enumerate(flags) if layered]


def _search_directories(plan: SandboxPlan) -> list[str]:
    places = {"/proc", "/dev", "/run", INSIDE, "/workspace", "/tmp"}
    places |= {mount.path for mount in plan.tmpfs if not mount.path.startswith("/dev/")}
    with_parents = {
        str(p) for place in places for p in (PurePosixPath(place), *PurePosixPath(place).parents)
    }
    return sorted(with_parents - {"/"})


def _skeleton(out: Script, root: str, directories: Sequence[str]) -> None:
    stage = PurePosixPath(root)
    slot = out.filesystem("tmpfs", "sd", size=SKELETON_BYTES, mode="0755")
    out.add("attach", slot, str(stage.parent), stage.name)
    for directory in directories:
        out.add("mkdir", root + directory, "0755")


def _attach_trees(
    out: Script, root: str, trees: Sequence[tuple[TreeMount, int]], private: Set[str]
) -> None:
    """Attach the clones. Where only parts of /workspace or /tmp are granted, a read-only directory
    with nothing but their mount points stands for the whole: everything else is absent. Also where
    nothing of it is granted: /workspace of a writable system takes what is written there, and it
    would look kept. A private /tmp stays as it is, with the mount points in it."""
    for top in ("/workspace", "/tmp"):
        mine = [item for item in trees if item[0].path == top or _below(item[0].path, top)]
        partial = not mine or mine[0][0].path != top
        if partial and top not in private:
            slot = out.filesystem("tmpfs", "sdx", size=SKELETON_BYTES, mode="0755")
            out.add("attach", slot, root, top[1:])
        if partial:
            for directory in _points(top, [mount.path for mount, _ in mine]):
                out.add("mkdir", to_bytes(root + directory), "0755")
                if top in private and all(mount.path != directory for mount, _ in mine):
                    pin = out.clone(root, to_bytes(directory[1:]), "sd")
                    out.add("attach", pin, root, to_bytes(directory[1:]))
        for mount, slot in mine:
            out.add("attach", slot, root, to_bytes(mount.path[1:]))
        if partial and top not in private:
            out.add("readonly", root + top)


def _points(top: str, paths: Sequence[str]) -> Iterator[str]:
    """Directories to make below `top`: each path and its parents, except below another path
    (there the mounted tree has it already)."""
    seen: set[str] = set()
    for path in paths:
        if any(_below(path, other) for other in paths):
            continue
        chain = [str(p) for p in reversed((PurePosixPath(path), *PurePosixPath(path).parents))]
        for directory in chain:
            if _below(directory, top) and directory not in seen:
                seen.add(directory)
                yield directory
