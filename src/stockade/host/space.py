"""Whether the host's file system has room, asked rarely enough to cost nothing."""

from __future__ import annotations

import os
from typing import Final

from stockade.terms.fault import Code, failure

_STEP_BYTES: Final = 64 * 1024 * 1024
_FILE_BYTES: Final = 4096  # what a file costs at least: an inode and a block


class SpaceCheck:
    """Keeps `reserve_bytes` free on the file system of `path`. Raises
    Failure(storage_unavailable) when it is made on a full one, and from `take`."""

    def __init__(self, path: str, reserve_bytes: int) -> None:
        self._path = path
        self._reserve = reserve_bytes
        self._granted = 0
        self.take(0)

    def take(self, size: int) -> None:
        """Announce that `size` bytes will be written. The file system is asked again after every
        64 MiB, so that the reserve may be missed by as much as others write meanwhile."""
        self._granted -= size + _FILE_BYTES
        if self._granted >= 0:
            return
        info = os.statvfs(self._path)
        spare = info.f_bavail * info.f_frsize - self._reserve
        if spare < size:
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                "the host's disk is full up to its reserve",
                free_bytes=info.f_bavail * info.f_frsize,
                reserve_bytes=self._reserve,
            )
        self._granted = min(spare - size, _STEP_BYTES)
