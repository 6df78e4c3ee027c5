"""Whether a directory's file system can have idmapped mounts, found by making one that is thrown away.

Sandboxes see the host's files through such mounts (sandbox/launch.c, attribute `i`). The kernel
allows them by type of file system and by version (mount_setattr(2): EINVAL), and on no mount that
is idmapped already (EPERM), so that a list of names would say less than one try.
"""

from __future__ import annotations

import os
import select
import subprocess
from typing import Final

from stockade.host import syscalls

_GIVE_UP_S: Final = 10.0


def user_namespace(search_path: str) -> int:
    """A descriptor of a new user namespace with a map in it, as idmapped mounts need. It costs 2 ms.

    A program makes it: of a process with threads the kernel takes no unshare(CLONE_NEWUSER). Raises
    CalledProcessError with what unshare(1) said, TimeoutExpired, OSError.
    """
    argv = ["unshare", "--user", "--map-root-user", "--", "sh", "-c", "echo; read -r _"]
    with subprocess.Popen(
        argv,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env={"PATH": search_path, "LC_ALL": "C"},
    ) as child:
        assert child.stdout is not None
        try:
            # Not select(2): the caller may have more than 1,024 descriptors.
            poller = select.poll()
            poller.register(child.stdout, select.POLLIN)
            if not poller.poll(_GIVE_UP_S * 1000):
                raise subprocess.TimeoutExpired(argv, _GIVE_UP_S)
            said = os.read(child.stdout.fileno(), 1)
            if said == b"\n":
                return os.open(f"/proc/{child.pid}/ns/user", os.O_RDONLY | os.O_CLOEXEC)
            said += child.stdout.read()
        finally:
            child.kill()
    raise subprocess.CalledProcessError(child.returncode, argv, said)


def attempt(directory: str, userns_fd: int) -> None:
    """Idmap a detached clone of the mount of `directory`. Raises OSError where that can't be."""
    clone = syscalls.open_tree(syscalls.AT_FDCWD, os.fsencode(directory), syscalls.OPEN_TREE_CLONE)
    try:
        syscalls.mount_setattr(clone, syscalls.MOUNT_ATTR_IDMAP, userns_fd)
    finally:
        os.close(clone)
