"""What a sandbox is started with on this host: descriptors, directories, what is covered."""

from __future__ import annotations

import fcntl
import os
import socket
from collections.abc import Sequence, Set
from pathlib import Path

from stockade.host import processes, trees
from stockade.host.cgroup import Hierarchies
from stockade.host.mounts import MountHolder


def holds(directory: str, path: Path) -> bool:
    return path.is_relative_to(directory)


def cover(hierarchies: Hierarchies) -> tuple[tuple[str, str], ...]:
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


def empty_file() -> int:
    """Standard input and output of the runtime: an empty file that can't be written. Not /dev/null,
    because crun gives its standard streams to the sandbox's user (fchown(2)): the host's device
    would belong to root inside, who could then change its mode for everybody."""
    fd = os.memfd_create("stockade-nothing", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    seals = fcntl.F_SEAL_SEAL | fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_WRITE
    fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


def listen(directory: Path) -> int:
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


def make_layers(layers: str, names: Sequence[str], owner: int) -> None:
    """upper and work of each writable layer; in the namespace that holds the lease's disk."""
    os.makedirs(layers, mode=0o711)
    for name in names:
        for part in ("upper", "work"):
            path = f"{layers}/{name}/{part}"
            os.makedirs(path)
            # Whatever the umask is: the upper one's mode is what the directory has inside.
            os.chmod(path, 0o755)  # noqa: S103
            os.chown(path, owner, owner)


def open_directory(path: str) -> int:
    os.makedirs(path, mode=0o711, exist_ok=True)
    return os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)


def remove_dead_layers(holder: MountHolder, place: str, live: Set[str]) -> None:
    """Writable layers below `place`, on a lease's disk, of sandboxes that have died."""
    fd = holder.run(lambda: open_directory(place))
    try:
        for name in os.listdir(fd):
            if name not in live:
                trees.remove_tree(fd, os.fsencode(name))
    finally:
        os.close(fd)


def keep(opened: list[int], fd: int) -> int:
    """Note an open descriptor, and give it."""
    opened.append(fd)
    return fd


def orphans(before: Set[int], name: str) -> frozenset[int]:
    """Children that came since `before` and were started in the sandbox's own group: the guest,
    and what the runtime left behind when it detached."""
    came = processes.children() - before
    return frozenset(p for p in came if processes.unified_group(p).endswith(f"/guests/{name}"))
