"""Whether a directory is on a file system that is memory: what is synced there is gone with the
power."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Final

_IN_MEMORY: Final = frozenset({"tmpfs", "ramfs", "devtmpfs", "rootfs"})


def in_memory(path: Path) -> str | None:
    """The type of the file system of `path`, which must be there, if it is memory. An overlay above
    one is not seen through. Raises OSError."""
    device = os.stat(path).st_dev
    wanted = f"{os.major(device)}:{os.minor(device)}"
    # proc_pid_mountinfo(5): the device is the third field, the type the first after the hyphen.
    with open("/proc/self/mountinfo", errors="replace") as lines:
        for fields in map(str.split, lines):
            if fields[2] == wanted:
                kind = fields[fields.index("-") + 1]
                return kind if kind in _IN_MEMORY else None
    return None
