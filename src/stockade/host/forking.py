"""The copy of a lease's workspace as it is now: what it takes along, and what it may take up.

The tree is hostile and what finished calls left running may go on in it: the walk goes by
descriptors (`treecopy`), data is counted piece by piece before it is written, never by what a file
said of its size, and names that are gone or became something else end the copy.

The copy counts against the new lease's own disk: its disk image is smaller by what the copy takes
up. The kernel enforces the rest, and copy and image together are never more than the lease may use.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from stockade.host.disks import BLOCK_BYTES, MIN_BYTES
from stockade.host.space import SpaceCheck
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.lease import UID_RANGE
from stockade.terms.pathname import WORKSPACE, to_bytes
from stockade.terms.plan import Limits

# The overlay's own directories, and what the file system keeps for itself.
_OWN_INODES: Final = 64


def may_be_read(read: Sequence[str], path: bytes) -> bool:
    """Whether a path relative to the workspace is at or below one of the container paths `read`,
    or a directory on the way to one."""
    wanted = to_bytes(WORKSPACE) + b"/" + path + b"/"
    return any(
        wanted.startswith(prefix) or prefix.startswith(wanted)
        for prefix in (to_bytes(each).rstrip(b"/") + b"/" for each in read)
    )


def moved_ids(origin: int, new: int) -> Callable[[int], int]:
    """A host id of the range at `origin` becomes the same one of the range at `new`; any other,
    which no sandbox can make, the first."""
    return lambda host_id: new + (host_id - origin if 0 <= host_id - origin < UID_RANGE else 0)


class DiskShare:
    """Counts what a copy takes up. Raises Failure(disk_full) when the lease's disk would have no
    room left, Failure(storage_unavailable) when the host's has none."""

    def __init__(self, limits: Limits, space: SpaceCheck) -> None:
        self._limits = limits
        self._space = space
        self.bytes = 0
        self.inodes = 0

    def data(self, size: int) -> None:
        """`size` bytes of a file are about to be written."""
        self.bytes += size + -size % BLOCK_BYTES
        if self.bytes > self._limits.disk_bytes - MIN_BYTES:
            raise self._full("disk_bytes")
        self._space.take(size)

    def entry(self, size: int) -> None:
        """A file, link or directory is about to be made; `size` is what it takes beside data."""
        self.inodes += 1
        if self.inodes > self._limits.inodes - _OWN_INODES:
            raise self._full("inodes")
        self.data(size)

    def _full(self, limit: str) -> Failure:
        return failure(
            Code.DISK_FULL,
            f"a copy of the workspace does not fit the new lease's disk (per_lease.{limit})",
            rule=f"per_lease.{limit}",
        )
