"""What lies in the workspaces of the selftest, and a group of the kernel to escape to."""

from __future__ import annotations

import os
from pathlib import Path

from stockade.engines.oci.engine import Setup
from stockade.host.lease_groups import LeaseGroups
from stockade.terms.ports import LeaseTree


def furnish(tree: LeaseTree, uid: int, program: Path, mark: str) -> None:
    """The attack program, and files and directories to attack, of user `uid`."""
    for name in ("bin", "open", "open/way", "part", "other", "devices"):
        os.mkdir(f"workspace/{name}", 0o755, dir_fd=tree.root_fd)
        os.chown(f"workspace/{name}", uid, uid, dir_fd=tree.root_fd)
    put(tree, "workspace/bin/attack", program.read_bytes(), 0o755, uid)
    put(tree, "workspace/kept", "kept\n", 0o644, uid)
    put(tree, "workspace/other/secret", f"{mark}\n", 0o644, uid)
    os.mknod("workspace/devices/null", 0o020600, os.makedev(1, 3), dir_fd=tree.root_fd)
    os.chown("workspace/devices/null", uid, uid, dir_fd=tree.root_fd)


def private(bait: Path, mark: str, uid: int) -> None:
    """A file of the other lease's user, in a directory that an attacker may be given."""
    directory = bait / "private"
    directory.mkdir(mode=0o755)
    secret = directory / "secret"
    secret.write_text(f"{mark}\n")
    os.chown(secret, uid, uid)
    secret.chmod(0o600)


def put(tree: LeaseTree, name: str, content: str | bytes, mode: int, uid: int) -> None:
    data = content.encode() if isinstance(content, str) else content
    flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    fd = os.open(name, flags, mode, dir_fd=tree.root_fd)
    with open(fd, "wb") as file:
        file.write(data)
        os.fchown(fd, uid, uid)
        os.fchmod(fd, mode)


def escape(setup: Setup, tree: LeaseTree) -> tuple[str, Path]:
    """A group of the lease beside those that limit its calls, and the directory to be mounted."""
    groups = LeaseGroups(setup.hierarchies, setup.instance, tree.lease_id)
    v1 = setup.hierarchies.v1.get("pids")
    if v1 is None:
        group = groups.unified / "limits"
    else:
        group = v1 / groups.unified.relative_to(setup.hierarchies.unified)
    return str(group), group / "escape"


def delegate(group: Path, uid: int) -> None:
    """To be entered, a group must be the user's, and so must the one above (cgroups(7))."""
    group.mkdir(exist_ok=True)
    for directory in (group.parent, group):
        os.chown(directory / "cgroup.procs", uid, uid)
