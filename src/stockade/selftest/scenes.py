"""Scenes that several groups of attempts share. Those of one group are beside its attempts.

Most walls are doubled: what the filter refuses, a missing capability would refuse as well. To show
that an attack works, all that stops it has to be gone, and `taken` names all of it.
"""

from __future__ import annotations

from typing import Final

from stockade.selftest.amendments import (
    as_host_user,
    both,
    with_host_processes,
    with_more_capabilities,
    with_mount,
    with_own_capabilities,
    without_covers,
    without_filter,
    without_namespace,
)
from stockade.selftest.scene import Scene

# What every lease has by default: the grant `agent`, a writable system, uid 0 inside.
PLAIN: Final = Scene("plain")

NO_FILTER: Final = Scene("no_filter", taken="the filter of system calls", amend=without_filter)
NO_FILTER_ADMIN: Final = Scene(
    "no_filter_admin",
    taken="the filter of system calls, and CAP_SYS_ADMIN, CAP_SYS_BOOT and CAP_SYS_CHROOT "
    "are not withheld",
    amend=both(
        without_filter, with_more_capabilities("CAP_SYS_ADMIN", "CAP_SYS_BOOT", "CAP_SYS_CHROOT")
    ),
)
REAL_ROOT: Final = Scene(
    "real_root",
    taken="the filter of system calls, the user namespace, the withheld capabilities, and the "
    "covers of /proc and /sys",
    amend=both(
        without_filter,
        without_namespace("user"),
        with_own_capabilities,
        without_covers,
    ),
)
NO_USER_NAMESPACE: Final = Scene(
    "no_user_namespace", taken="the user namespace", amend=without_namespace("user")
)
HOST_DIRECTORY: Final = Scene(
    "host_directory",
    taken="the mount namespace's emptiness: the host's directory is mounted",
    amend=with_mount("{bait}", "{bait}"),
)
SHARED_PIDS: Final = Scene(
    "shared_pids",
    taken="the pid namespace",
    guest="readable",
    amend=with_host_processes,
)
SAME_USER: Final = Scene(
    "same_user",
    taken="the pid namespace and the user namespace",
    guest="readable",
    amend=both(with_host_processes, as_host_user),
)
SAME_USER_NO_FILTER: Final = Scene(
    "same_user_no_filter",
    taken="the pid namespace, the user namespace and the filter of system calls",
    guest="readable",
    amend=both(without_filter, with_host_processes, as_host_user),
)
