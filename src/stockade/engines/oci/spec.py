"""A plan as an OCI runtime configuration (runtime-spec 1.0, config.json). Pure.

Only what the runtime must do itself is in it: namespaces, identity, capabilities, seccomp, masks,
and the four mounts that belong to the new pid namespace or to /dev. Everything else is staged below
the root file system by descriptor beforehand (staging.py), so the runtime never opens a path that a
sandbox can change (CVE-2021-30465). No sysfs: with a network namespace joined by path crun binds the
host's /sys read-write instead. No resources and no cgroupsPath: the launcher has entered the groups.
"""

from __future__ import annotations

from typing import Final, TypeAlias

from pydantic import JsonValue

from stockade.terms.lease import UID_RANGE
from stockade.terms.plan import SandboxPlan, TmpfsMount

Json: TypeAlias = JsonValue

ROOTFS: Final = "rootfs"
CONTROL_FD: Final = 3
# 64 device nodes and links need no more; without bounds /dev is a place to fill memory from, and
# a million empty files there leave so little of it that even their removal is killed.
_DEV_BYTES: Final = 65536
_DEV_INODES: Final = 256
# Of 3,072 that the kernel has for all instances together (kernel.pty.max less the host's reserve):
# one sandbox opened them all, and no other one could have a terminal.
_PTYS: Final = 64


def id_map(uid_base: int, owner: int) -> list[tuple[int, int, int]]:
    """(inside, host, length) lines. Files of the lease belong to host id `uid_base`, whoever runs:
    inside, that id is `owner` (0 in the agent profile, 1000 in strict), so one workspace serves
    sandboxes of both; the two ids change places."""
    if owner == 0:
        return [(0, uid_base, UID_RANGE)]
    return [
        (0, uid_base + owner, 1),
        (1, uid_base + 1, owner - 1),
        (owner, uid_base, 1),
        (owner + 1, uid_base + owner + 1, UID_RANGE - owner - 1),
    ]


def map_id(uid_base: int, owner: int, inside: int) -> int:
    """The host id of an inside id under `id_map`."""
    for first, host, length in id_map(uid_base, owner):
        if first <= inside < first + length:
            return host + inside - first
    raise ValueError(f"id {inside} is outside the range of {UID_RANGE}")


def _tmpfs(mount: TmpfsMount) -> Json:
    options: list[Json] = [
        "nosuid",
        "nodev",
        f"mode={mount.mode:o}",
        f"size={mount.size_bytes}",
        f"nr_inodes={mount.inodes}",
    ]
    if not mount.executable:
        options.append("noexec")
    return {"destination": mount.path, "type": "tmpfs", "source": "tmpfs", "options": options}


def config(
    plan: SandboxPlan,
    *,
    uid_base: int,
    netns_path: str,
    rootfs: str,
    guest: str,
    persistent: bool,
    seccomp: Json,
) -> Json:
    """`rootfs` is absolute in the launcher's mount namespace; `guest` is the path inside, and
    `persistent` says that it is to await a next peer."""
    mappings: list[Json] = [
        {"containerID": inside, "hostID": host, "size": length}
        for inside, host, length in id_map(uid_base, plan.uid)
    ]
    capabilities: list[Json] = list(plan.capabilities)
    mounts: list[Json] = [
        {
            "destination": "/proc",
            "type": "proc",
            "source": "proc",
            "options": ["nosuid", "noexec", "nodev"],
        },
        {
            "destination": "/dev",
            "type": "tmpfs",
            "source": "tmpfs",
            "options": [
                "nosuid",
                "noexec",
                "strictatime",
                "mode=755",
                f"size={_DEV_BYTES}",
                f"nr_inodes={_DEV_INODES}",
            ],
        },
        {
            "destination": "/dev/pts",
            "type": "devpts",
            "source": "devpts",
            "options": [
                *("nosuid", "noexec", "newinstance", "ptmxmode=0666", "mode=0620"),
                f"max={_PTYS}",
            ],
        },
        *(_tmpfs(mount) for mount in plan.tmpfs if mount.path.startswith("/dev/")),
    ]
    return {
        "ociVersion": "1.0.0",
        "process": {
            "terminal": False,
            "user": {"uid": plan.uid, "gid": plan.gid},
            "args": [guest, str(CONTROL_FD), *(["--persist"] if persistent else [])],
            "env": [],
            "cwd": "/",
            # Neither inheritable nor ambient: a program that leaves uid 0 leaves them behind.
            "capabilities": {
                "bounding": capabilities,
                "effective": capabilities,
                "permitted": capabilities,
                "inheritable": [],
                "ambient": [],
            },
            "rlimits": [
                {"type": "RLIMIT_NOFILE", "soft": 4096, "hard": 4096},
                {"type": "RLIMIT_CORE", "soft": 0, "hard": 0},
                {"type": "RLIMIT_MEMLOCK", "soft": 8388608, "hard": 8388608},
            ],
            "noNewPrivileges": True,
        },
        "root": {"path": rootfs, "readonly": False},
        "hostname": plan.hostname,
        "mounts": mounts,
        "linux": {
            "uidMappings": mappings,
            "gidMappings": mappings,
            "namespaces": [
                {"type": "pid"},
                {"type": "ipc"},
                {"type": "uts"},
                {"type": "mount"},
                {"type": "cgroup"},
                {"type": "user"},
                {"type": "network", "path": netns_path},
            ],
            # A segment that no process has attached would hold memory of the lease until its reset.
            "sysctl": {"kernel.shm_rmid_forced": "1"},
            "seccomp": seccomp,
            "maskedPaths": list(plan.masked),
            "readonlyPaths": list(plan.readonly),
        },
    }
