"""Attempts on kernel interfaces that the filter alone, or the filter and a withheld capability of the
sandbox's own user namespace, keep away.
"""

from __future__ import annotations

from typing import Final

from stockade.selftest.attempt import Attempt
from stockade.selftest.scenes import NO_FILTER, NO_FILTER_ADMIN, PLAIN

_GROUP: Final = "kernel"


def _filtered(
    name: str, attack: str, what: str, action: str, machine: str | None = None
) -> Attempt:
    """The filter alone holds it."""
    defence = f"the filter refuses {what}"
    return Attempt(name, _GROUP, attack, defence, PLAIN, NO_FILTER, action, machine)


def _mount(name: str, attack: str, what: str, action: str) -> Attempt:
    """The filter and a missing capability hold it."""
    defence = f"the filter refuses {what}, and no capability for it is given"
    return Attempt(name, _GROUP, attack, defence, PLAIN, NO_FILTER_ADMIN, action)


ATTEMPTS: Final = (
    _filtered("add_key", "add a key to a keyring", "add_key(2)", "call add_key"),
    _filtered("keyctl", "make a session keyring of its own", "keyctl(2)", "call keyctl"),
    _filtered("request_key", "look a key up", "request_key(2)", "call request_key"),
    _filtered(
        "io_uring", "set up a ring that no filter sees", "io_uring_setup(2)", "call io_uring"
    ),
    _filtered(
        "userfaultfd",
        "hold the kernel up in the middle of a copy",
        "userfaultfd(2)",
        "call userfaultfd",
    ),
    _filtered("fanotify", "watch a whole mount", "fanotify_init(2)", "call fanotify"),
    _filtered(
        "name_to_handle_at",
        "learn a file's handle",
        "name_to_handle_at(2)",
        "call name_to_handle_at",
    ),
    _filtered("kcmp", "compare kernel objects of two processes", "kcmp(2)", "call kcmp"),
    _filtered(
        "personality",
        "turn address randomization off",
        "personality(2) but for harmless values",
        "call personality",
    ),
    _filtered(
        "unshare_user",
        "make a user namespace, to have every capability in it",
        "unshare(2)",
        "call unshare_user",
    ),
    _filtered(
        "clone_user",
        "make it with clone",
        "clone(2) with a flag of a namespace",
        "call clone_user",
    ),
    _filtered(
        "clone_user_wide",
        "make it with a flag in the upper half of the argument as well",
        "clone(2) with a flag of a namespace, whatever else is set",
        "call clone_user_wide",
    ),
    _filtered(
        "clone3",
        "make it with clone3, whose flags no filter can see",
        "clone3(2)",
        "call clone3",
    ),
    _filtered(
        "pidfd_getfd",
        "take a descriptor out of another process",
        "pidfd_getfd(2)",
        "take-from-sibling",
    ),
    _filtered(
        "modify_ldt",
        "change segment descriptors",
        "modify_ldt(2)",
        "call modify_ldt",
        machine="x86_64",
    ),
    _filtered(
        "entry_32",
        "enter the kernel by its 32-bit door",
        "every entry but the native one",
        "entry-32",
        machine="x86_64",
    ),
    _filtered(
        "entry_x32",
        "enter it with an x32 number",
        "every entry but the native one",
        "entry-x32",
        machine="x86_64",
    ),
    _filtered(
        "socket_families",
        "make a socket of any of 60 other families",
        "families but unix, inet, inet6 and route-netlink",
        "any-family",
    ),
    _filtered(
        "netlink_generic", "speak generic netlink", "netlink protocols but route", "netlink 16"
    ),
    _filtered(
        "netlink_uevent",
        "listen to the kernel's events of devices",
        "netlink protocols but route",
        "netlink 15",
    ),
    _filtered(
        "line_discipline",
        "change a terminal's line discipline",
        "ioctl(2) with TIOCSETD",
        "terminal discipline",
    ),
    _mount("mount_tmpfs", "mount a file system", "mount(2)", "mounts tmpfs"),
    _mount("mount_bind", "bind a directory over another", "mount(2)", "mounts bind"),
    _mount(
        "mount_cgroup",
        "mount the cgroup file system (CVE-2022-0492)",
        "mount(2)",
        "mounts cgroup",
    ),
    _mount(
        "fsopen",
        "make a file system by the newer calls (CVE-2022-0185)",
        "fsopen(2)",
        "mounts fsopen",
    ),
    _mount("open_tree", "clone a mount", "open_tree(2)", "mounts open_tree"),
    _mount("pivot_root", "exchange the root directory", "pivot_root(2)", "mounts pivot_root"),
    _mount("chroot", "change the root directory", "chroot(2)", "call chroot"),
    _mount("unshare_mount", "make a mount namespace", "unshare(2)", "call unshare_mount"),
    _mount("unshare_net", "make a network namespace to own", "unshare(2)", "call unshare_net"),
    _mount("setns", "join a namespace", "setns(2)", "call setns"),
    _mount("sethostname", "rename the sandbox", "sethostname(2)", "call sethostname"),
    _mount(
        "reboot",
        "restart (asked with a wrong magic number: past the check of rights is a win)",
        "reboot(2)",
        "call reboot",
    ),
)
