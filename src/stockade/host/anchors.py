"""Whether the directories that a sandbox has mounted are still where its plan says they are.

A mount holds a directory, not a name. Inside, a mount point can't be moved or removed; but another
sandbox of the same lease whose plan has no mount there can do both, and the kernel lets the mount go
along with the directory, or drops it. A denial of `.git/hooks` was gone from a living sandbox after
`mv .git g; mkdir -p .git/hooks` in a wider one, and a subtree stayed mounted under its old name.

So a sandbox keeps a descriptor of each mounted directory, opened from inside when nothing of a
tenant has run there yet, and before each use the plan's paths are looked up in the lease's tree
again: another inode means that its walls hang on the wrong thing, and the sandbox must be replaced.
The descriptors pin the inodes, so a removed one's number can't come back.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from typing import Final, Self

from stockade.host.openat2 import open_below
from stockade.terms.fault import Code, failure
from stockade.terms.pathname import TMP, WORKSPACE, to_bytes

_TOPS: Final = (WORKSPACE, TMP)
_MOUNT_ID: Final = re.compile(r"^mnt_id:\s*(\d+)$", re.MULTILINE)
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW


class Anchors:
    """The mounts of one sandbox below `/workspace` and `/tmp`, the two tops excepted, which no
    sandbox can move. `root_fd` is the lease's root and stays the caller's."""

    def __init__(self, root_fd: int, held: Sequence[tuple[bytes, int]]) -> None:
        self._root_fd = root_fd
        self._held = tuple(held)

    @classmethod
    def drop(cls, root_fd: int, inside: str, paths: Sequence[str]) -> Self:
        """Open `paths` (container paths of mounts) below `inside`, the sandbox's root directory.
        Raises Failure(sandbox_unavailable) when one is no mount of its own or not what the lease's
        tree has there: a call in another sandbox of the lease moved it meanwhile."""
        places = [path for path in paths if path not in _TOPS]
        anchors = cls(root_fd, ())
        if not places:
            return anchors
        inside_fd = os.open(inside, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            tops = {_top_id(inside_fd, top) for top in _TOPS}
            for path in places:
                name = to_bytes(path[1:])
                anchors._held += ((name, open_below(inside_fd, name, _LOOK)),)
            # A path that is no mount point has the mount of what it lies in, which is in the list.
            mounts = [*tops, *(_mount_id(fd) for _, fd in anchors._held)]
            moved = len({*mounts}) != len(mounts) or not anchors.hold()
        except OSError:
            moved = True
        finally:
            os.close(inside_fd)
        if moved:
            anchors.close()
            raise failure(
                Code.SANDBOX_UNAVAILABLE,
                "a directory that the sandbox mounts was moved while it started; nothing ran",
            )
        return anchors

    def hold(self) -> bool:
        """Whether each path still leads to what is mounted there."""
        return all(_same(fd, self._root_fd, name) for name, fd in self._held)

    def close(self) -> None:
        for _, fd in self._held:
            os.close(fd)
        self._held = ()


def _same(fd: int, root_fd: int, name: bytes) -> bool:
    try:
        found = open_below(root_fd, name, _LOOK)
        try:
            # Both now: the numbers of a file may change when the overlay copies it up.
            return os.path.samestat(os.fstat(fd), os.fstat(found))
        finally:
            os.close(found)
    except OSError:
        return False


def _top_id(inside_fd: int, top: str) -> int:
    fd = open_below(inside_fd, to_bytes(top[1:]), _LOOK)
    try:
        return _mount_id(fd)
    finally:
        os.close(fd)


def _mount_id(fd: int) -> int:
    with open(f"/proc/self/fdinfo/{fd}") as info:
        found = _MOUNT_ID.search(info.read())
    assert found is not None
    return int(found[1])
