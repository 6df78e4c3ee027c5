"""Control groups of this host: where they are mounted, and what is done with any of them.

The unified (cgroup2) hierarchy ends and accounts calls everywhere, with or without controllers in
it; limits are in it on cgroup2 hosts and in the v1 hierarchies on hybrid ones (cgroups(7)).

One write to cgroup.kill can miss the child of a fork in progress: `kill` repeats until empty.
"""

from __future__ import annotations

import errno
import os
import select
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from tenacity import retry, retry_if_exception, stop_after_delay, wait_fixed

from stockade.host.hurry import Hurry
from stockade.terms.fault import Code, failure

V1_CONTROLLERS: Final = ("memory", "pids", "cpu")
PREFIX: Final = "stockade-"
# Beside an instance's leases: the keeper of their mounts. No lease id looks like it.
KEEPER: Final = "mounts-1"
# What is not empty by then is hurried: a tree that has a processor is, mostly.
PROMPT_S: Final = 0.01


@dataclass(frozen=True, slots=True)
class Hierarchies:
    """Where this host mounts its groups. `v1` maps a controller to its mount; empty on cgroup2."""

    unified: Path
    v1: dict[str, Path]

    @property
    def hybrid(self) -> bool:
        return bool(self.v1)


def detect(mountinfo: str) -> Hierarchies:
    """Read /proc/self/mountinfo text (proc_pid_mountinfo(5)).
    Raises Failure(engine_unavailable) naming what is missing."""
    unified: Path | None = None
    v1: dict[str, Path] = {}
    for line in mountinfo.splitlines():
        left, _, right = line.partition(" - ")
        fields, kind = left.split(), right.split()
        if kind[0] == "cgroup2":
            unified = Path(fields[4])
        elif kind[0] == "cgroup":
            for option in kind[2].split(","):
                if option in V1_CONTROLLERS:
                    v1[option] = Path(fields[4])
    if unified is None:
        raise failure(
            Code.ENGINE_UNAVAILABLE,
            "no cgroup2 hierarchy is mounted; mount one: "
            "mkdir -p /sys/fs/cgroup/unified && mount -t cgroup2 none /sys/fs/cgroup/unified",
        )
    if not v1:
        available = (unified / "cgroup.controllers").read_text().split()
        missing = {"memory", "pids", "cpu"} - set(available)
    else:
        missing = set(V1_CONTROLLERS) - set(v1)
    if missing:
        raise failure(
            Code.ENGINE_UNAVAILABLE,
            f"the cgroup controllers {', '.join(sorted(missing))} are not available on this host",
        )
    return Hierarchies(unified, v1)


def of_this_host() -> Hierarchies:
    """Raises as `detect`."""
    return detect(Path("/proc/self/mountinfo").read_text())


def write(path: Path, text: str) -> None:
    """One write(2) to a group's interface file. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def counter(text: str, key: str) -> int:
    """A value of a flat keyed file; 0 when the key is absent."""
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        if name == key:
            return int(value)
    return 0


def populated(group: Path) -> bool:
    """Whether a process lives in the group or below it. A group that is gone holds none."""
    try:
        return "populated 1" in (group / "cgroup.events").read_text()
    except FileNotFoundError:
        return False


def kill(group: Path, timeout_s: float, quotas: Sequence[Path] = ()) -> bool:
    """Kill everything in the group and below, and confirm it: True when it is empty. `quotas` are
    the files with the quotas of processor time that hold for it (`host.hurry`).

    cgroup.kill raises a sequence number and then walks the tasks; the child of a task not yet
    visited can be added behind the walk (seen in 1 of 50 to 1 of 200 fork chains), hence the loop.
    """
    began = time.monotonic()
    hurry = Hurry(group, quotas)
    try:
        events = os.open(group / "cgroup.events", os.O_RDONLY | os.O_CLOEXEC)
    except FileNotFoundError:
        return True
    try:
        poller = select.poll()
        poller.register(events, select.POLLPRI | select.POLLERR)
        while True:
            prompt = time.monotonic() < began + PROMPT_S
            waiting = [] if prompt else hurry.waiting()
            write(group / "cgroup.kill", "1")
            if b"populated 0" in os.pread(events, 256, 0):
                return True
            if time.monotonic() > began + timeout_s:
                return False
            if not prompt:
                hurry.along(waiting)
            poller.poll(5)
            if b"populated 0" in os.pread(events, 256, 0):
                return True
    finally:
        os.close(events)


def remove_tree(root: Path) -> list[str]:
    """Remove a group and those below it; gives the ones that are still in use."""
    left: list[str] = []
    for directory, _, _ in os.walk(root, topdown=False):
        try:
            _remove(directory)
        except FileNotFoundError:
            continue
        except OSError:
            left.append(directory)
    return left


# A task that was killed leaves its v1 groups a moment after it is gone from cgroup.procs.
@retry(
    retry=retry_if_exception(lambda error: getattr(error, "errno", 0) == errno.EBUSY),
    stop=stop_after_delay(0.2),
    wait=wait_fixed(0.002),
    reraise=True,
)
def _remove(directory: str) -> None:
    os.rmdir(directory)


def leases_of(hierarchies: Hierarchies, instance: str) -> set[str]:
    """Lease ids that have groups under this instance, in any hierarchy."""
    found: set[str] = set()
    for root in (hierarchies.unified, *hierarchies.v1.values()):
        directory = root / f"{PREFIX}{instance}"
        if directory.is_dir():
            found |= {entry.name for entry in directory.iterdir() if entry.is_dir()}
    return found - {KEEPER}
