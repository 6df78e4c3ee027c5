"""Attempts to use more than was given. Each asks for twice the limit that it is tried against, so
that little happens where no limit holds, as in its control.
"""

from __future__ import annotations

from typing import Final

from stockade.selftest import drives
from stockade.selftest.amendments import with_mount_options, with_resource_limit
from stockade.selftest.attempt import Attempt, Drive
from stockade.selftest.scene import TIGHT, Scene
from stockade.selftest.scenes import PLAIN
from stockade.terms.plan import SandboxPlan

_GROUP: Final = "resources"


def _slow(plan: SandboxPlan) -> SandboxPlan:
    return plan.model_copy(update={"limits": plan.limits.model_copy(update={"cpu_millis": 50})})


_TIGHT_PLAN: Final = Scene("tight_plan", plan_room=TIGHT)
_TIGHT_LEASE: Final = Scene("tight_lease", room=TIGHT)
_ROOMY: Final = Scene("roomy", taken="the tight limits: they are four times as high")
_SLOW: Final = Scene("slow", reshape=_slow)
_FAST: Final = Scene("fast", taken="the quota of processor time")
_DEV: Final = Scene(
    "dev_roomy",
    taken="the size of /dev",
    amend=with_mount_options("/dev", "nosuid", "noexec", "mode=755", "size=16m"),
)
_NO_DEADLINE: Final = Scene("no_deadline", taken="the time limit of the call", deadline_ms=60_000)
_KEEPS_ALL: Final = Scene(
    "keeps_all", taken="the bound of what is kept of an output", keep_bytes=16 << 20
)


def _limit(name: str, value: int) -> Scene:
    return Scene(
        f"limit_{name.lower()}",
        taken=f"the limit RLIMIT_{name}: it is higher",
        amend=with_resource_limit(f"RLIMIT_{name}", value),
    )


_FILES: Final = _limit("NOFILE", 8192)
_CORE: Final = _limit("CORE", 1 << 20)


def _at(
    name: str,
    attack: str,
    defence: str,
    scene: Scene,
    control: Scene,
    action: str | Drive,
) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, scene, control, action)


def _plan(name: str, attack: str, defence: str, action: str) -> Attempt:
    return _at(name, attack, defence, _TIGHT_PLAN, _ROOMY, action)


def _lease(name: str, attack: str, defence: str, action: str) -> Attempt:
    return _at(name, attack, defence, _TIGHT_LEASE, _ROOMY, action)


ATTEMPTS: Final = (
    _plan(
        "fork_bomb",
        "start 128 processes where 64 may be",
        "the sandbox's limit of pids",
        "forks 128",
    ),
    _plan(
        "thread_bomb",
        "start 128 threads where 64 may be",
        "the sandbox's limit of pids",
        "threads 128",
    ),
    _plan(
        "memory_hog",
        "use 128 MiB of memory where 64 may be",
        "the sandbox's limit of memory",
        "memory 128",
    ),
    _plan(
        "memory_in_sockets",
        "use 128 MiB in sockets that nobody reads",
        "memory of the kernel counts as well",
        "kernel-memory 128",
    ),
    _plan(
        "memory_in_segments",
        "use 128 MiB of System V shared memory",
        "shared memory counts as well",
        "system-v-memory 128",
    ),
    _plan(
        "shm_fill",
        "write 12 MiB to /dev/shm of 6 MiB",
        "/dev/shm is sized",
        "fill /dev/shm/flood 12",
    ),
    _plan("home_fill", "write 24 MiB to HOME of 12 MiB", "HOME is sized", "fill /root/flood 24"),
    _plan(
        "home_files",
        "make 4,000 files in HOME where 512 may be",
        "HOME has a limit of files",
        "many-files /root 4000",
    ),
    _lease(
        "fork_bomb_of_a_lease",
        "start 128 processes in a sandbox that may, of a lease that may not",
        "the lease's limit of pids",
        "forks 128",
    ),
    _lease(
        "memory_hog_of_a_lease",
        "use 128 MiB in a sandbox that may, of a lease that may not",
        "the lease's limit of memory",
        "memory 128",
    ),
    _lease(
        "disk_fill",
        "write 32 MiB to a disk of 16 MiB",
        "each lease has a disk of its size",
        "fill /workspace/flood 32",
    ),
    _lease(
        "disk_fill_by_the_system",
        "write them to the system instead of the workspace",
        "the writable system is on the lease's disk",
        "fill /usr/flood 32",
    ),
    _lease(
        "inode_fill",
        "make 1,024 files where 512 may be",
        "the disk has so many inodes",
        "many-files /workspace/open 1024",
    ),
    _lease("tmp_fill", "write 8 MiB to /tmp of 4 MiB", "/tmp is sized", "fill /tmp/flood 8"),
    _at(
        "dev_fill",
        "write 1 MiB to /dev",
        "/dev has room for its nodes",
        PLAIN,
        _DEV,
        "fill /dev/flood 1",
    ),
    _at(
        "dev_files",
        "make 400 files in /dev",
        "/dev has room for its nodes",
        PLAIN,
        _DEV,
        "many-files /dev 400",
    ),
    _at(
        "open_files",
        "open 5,000 files",
        "RLIMIT_NOFILE is 4,096",
        PLAIN,
        _FILES,
        "open-files 5000",
    ),
    _at(
        "raise_open_files",
        "raise the limit of open files",
        "a hard limit can't be raised",
        PLAIN,
        _FILES,
        "raise-limit 7 5000",
    ),
    _at(
        "core_dump",
        "allow core dumps, which land where the host says",
        "RLIMIT_CORE is 0",
        PLAIN,
        _CORE,
        "raise-limit 4 4096",
    ),
    _at(
        "processor_hog",
        "take a processor where a twentieth is given",
        "the quota of processor time",
        _SLOW,
        _FAST,
        "processor 800 15",
    ),
    _at(
        "outlive_the_deadline",
        "leave a process in a session of its own that ignores signals",
        "at the deadline the call's group is killed until it is empty",
        PLAIN,
        _NO_DEADLINE,
        drives.outlive_the_deadline,
    ),
    _at(
        "output_flood",
        "fill the host's memory with 4 MiB of output",
        "output is read to the end and kept to a bound",
        PLAIN,
        _KEEPS_ALL,
        drives.flood_output,
    ),
)
