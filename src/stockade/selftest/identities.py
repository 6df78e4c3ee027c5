"""Attempts to be somebody else: more rights, another group, another name, what was left open."""

from __future__ import annotations

from typing import Final

from stockade.selftest import bait
from stockade.selftest.amendments import (
    both,
    with_mount,
    with_mount_options,
    with_new_privileges,
    without_namespace,
)
from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import NO_USER_NAMESPACE, PLAIN, REAL_ROOT
from stockade.terms.grant import Profile
from stockade.terms.plan import SandboxPlan

_GROUP: Final = "processes"


def _host_variables(plan: SandboxPlan) -> SandboxPlan:
    return plan.model_copy(update={"env": (*plan.env, (bait.VARIABLE, bait.VALUE))})


_STRICT: Final = Scene("strict_identity", profile=Profile.STRICT)
_STRICT_ROOT: Final = Scene(
    "strict_as_root", taken="the unprivileged user: uid 0 with the profile agent's capabilities"
)
_SET_UID: Final = Scene(
    "set_uid_allowed",
    taken="no-new-privileges, and nosuid on /dev/shm",
    amend=both(with_new_privileges, with_mount_options("/dev/shm", "nodev", "mode=1777")),
)
_ENVIRONMENT: Final = Scene(
    "host_environment", taken="the allow-list of variables", reshape=_host_variables
)
_DIRECTORY: Final = Scene(
    "directory_handed_in",
    taken="the allow-list of descriptors: a directory of the host is handed in",
    stdin="directory",
)
_SOCKET: Final = Scene(
    "socket_handed_in",
    taken="the allow-list of descriptors: a socket of the host is handed in",
    stdin="socket",
)
_CGROUPS: Final = Scene(
    "no_cgroup_namespace", taken="the cgroup namespace", amend=without_namespace("cgroup")
)
_GROUP_MOUNTED: Final = Scene(
    "cgroup_mounted",
    taken="the cgroup namespace, and the absence of the cgroup file system: the lease's group is "
    "mounted and the user's",
    amend=both(without_namespace("cgroup"), with_mount("{group}", "/sys/fs/cgroup")),
)
_NAME: Final = Scene("no_uts_namespace", taken="the uts namespace", amend=without_namespace("uts"))
_IPC: Final = Scene("no_ipc_namespace", taken="the ipc namespace", amend=without_namespace("ipc"))


def _at(
    name: str,
    attack: str,
    defence: str,
    scene: Scene,
    control: Scene,
    action: str,
) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, scene, control, action)


ATTEMPTS: Final = (
    _at(
        "set_uid_program",
        "become root inside by a set-uid program of one's own",
        "no-new-privileges, and nosuid on every mount",
        PLAIN,
        _SET_UID,
        "set-uid-program /dev/shm/set-uid",
    ),
    _at(
        "strict_chown",
        "give a file away in the strict profile",
        "uid 1000, without capabilities",
        _STRICT,
        _STRICT_ROOT,
        "give-away /workspace/given",
    ),
    _at(
        "strict_become_root",
        "become root in the strict profile",
        "uid 1000, without capabilities",
        _STRICT,
        _STRICT_ROOT,
        "become-user 0",
    ),
    _at(
        "add_capability",
        "add CAP_SYS_ADMIN to one's capabilities",
        "it is in no set, the bounding one included",
        PLAIN,
        REAL_ROOT,
        "add-capability 21",
    ),
    _at(
        "become_host_user",
        "become a user outside of the lease's range",
        "user ids are mapped to a range of the lease's own",
        PLAIN,
        NO_USER_NAMESPACE,
        "become-user 70000",
    ),
    _at(
        "raise_priority",
        "run before everybody else",
        "CAP_SYS_NICE of the host",
        PLAIN,
        REAL_ROOT,
        "urgent",
    ),
    _at(
        "environment_leak",
        "find a variable of the daemon's environment",
        "the environment is an allow-list",
        PLAIN,
        _ENVIRONMENT,
        f"environment {bait.VALUE}",
    ),
    _at(
        "inherited_directory",
        "walk to the host from a descriptor that was left open (CVE-2024-21626)",
        "a command has three descriptors, none of them a directory",
        PLAIN,
        _DIRECTORY,
        "descriptors {bait_below}/secret {mark}",
    ),
    _at(
        "forged_report",
        "send a forged exit report to a socket that was left open",
        "a command has three descriptors, none of them a socket",
        PLAIN,
        _SOCKET,
        "forge-report",
    ),
    _at(
        "cgroup_names",
        "learn the names of the host's groups",
        "an own cgroup namespace",
        PLAIN,
        _CGROUPS,
        "read /proc/self/cgroup stockade-",
    ),
    _at(
        "leave_the_group",
        "move to a group without the call's limits",
        "there is no cgroup file system inside",
        PLAIN,
        _GROUP_MOUNTED,
        "leave-group /sys/fs/cgroup/escape/cgroup.procs",
    ),
    _at(
        "host_name",
        "learn the host's name",
        "an own uts namespace",
        PLAIN,
        _NAME,
        "host-name {host_name}",
    ),
    _at(
        "host_shared_memory",
        "read a shared memory segment of the host",
        "an own ipc namespace",
        PLAIN,
        _IPC,
        "shared-memory {host_key} {mark}",
    ),
    _at(
        "host_message_queue",
        "receive from a message queue of the host",
        "an own ipc namespace",
        PLAIN,
        _IPC,
        "message-queue {host_key} {mark}",
    ),
    _at(
        "host_posix_queue",
        "open a POSIX queue of the host",
        "an own ipc namespace",
        PLAIN,
        _IPC,
        "posix-queue /{mark}",
    ),
)
