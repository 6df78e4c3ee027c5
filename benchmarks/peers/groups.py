"""Control groups that a peer's runtime may leave behind, in every hierarchy of this host."""

from __future__ import annotations

from pathlib import Path

from stockade.host import cgroup


def remove(pattern: str) -> None:
    """Remove every top-level group whose name matches; those still in use stay."""
    for line in Path("/proc/self/mountinfo").read_text().splitlines():
        left, _, right = line.partition(" - ")
        if right.split()[0] in ("cgroup", "cgroup2"):
            for group in Path(left.split()[4]).glob(pattern):
                cgroup.remove_tree(group)
