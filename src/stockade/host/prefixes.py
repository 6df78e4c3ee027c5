"""Makes the directories that a plan mounts, inside a tree that a sandbox can change.

A granted prefix that does not exist is made as an empty directory; a denied path that does not
exist too, because a denial must hold while its object is absent (CVE-2026-25725). Every step is by
descriptor and refuses symlinks: a link that an earlier call left can't choose what is mounted.
"""

from __future__ import annotations

import errno
import os
import stat
from typing import Final

from stockade.terms.fault import Code, failure
from stockade.terms.pathname import to_bytes, to_text

_MODE: Final = 0o755


def ensure(root_fd: int, path: str, owner: int, *, denied: bool = False) -> str:
    """Make the directory `path` (absolute, below the lease root) where it is missing, owned by host
    id `owner`, mode 0755, and give the path to mount.

    For a `denied` path an existing regular file will do, also as one of its parents (`.git` of a
    worktree is a file): while that file is held read-only nothing can come below it, so its own
    path is given. Raises Failure(unenforceable) when a component is a symlink or no directory,
    Failure(disk_full).
    """
    rule = "deny" if denied else "scope"
    parts = [part for part in to_bytes(path).split(b"/") if part]
    current = os.open(".", os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC, dir_fd=root_fd)
    try:
        for index, part in enumerate(parts):
            found = _open(current, part, owner)
            os.close(current)
            current = found
            mode = os.fstat(found).st_mode
            if denied and stat.S_ISREG(mode):
                return to_text(b"/" + b"/".join(parts[: index + 1]))
            if not stat.S_ISDIR(mode):
                kind = "a symlink" if stat.S_ISLNK(mode) else "not a directory"
                raise failure(
                    Code.UNENFORCEABLE,
                    f"{path} can't be mounted: {to_text(part)} in it is {kind}",
                    rule=rule,
                )
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise failure(Code.DISK_FULL, "the lease's disk is full; nothing ran") from error
        raise failure(
            Code.UNENFORCEABLE, f"{path} can't be mounted: {error.strerror}", rule=rule
        ) from error
    finally:
        os.close(current)
    return path


def _open(directory: int, name: bytes, owner: int) -> int:
    flags = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
    try:
        return os.open(name, flags, dir_fd=directory)
    except FileNotFoundError:
        try:
            os.mkdir(name, _MODE, dir_fd=directory)
        except FileExistsError:
            return os.open(name, flags, dir_fd=directory)
        made = os.open(name, flags, dir_fd=directory)
        if stat.S_ISDIR(os.fstat(made).st_mode):
            # By the descriptor: it is what mkdir made, or a directory of the same lease that somebody
            # put there since. Through /proc, because O_PATH descriptors take neither call.
            os.chown(f"/proc/self/fd/{made}", owner, owner)
            os.chmod(f"/proc/self/fd/{made}", _MODE)  # mkdir's was cut by the daemon's umask
        return made
