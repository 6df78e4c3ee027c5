"""Attempts on files of the host: from inside, and through the tools that work on the host's side."""

from __future__ import annotations

from typing import Final

from stockade.selftest import drives
from stockade.selftest.amendments import both, with_mount
from stockade.selftest.attempt import Attempt, Drive
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import HOST_DIRECTORY, NO_USER_NAMESPACE, PLAIN, REAL_ROOT
from stockade.terms.grant import Profile

_GROUP: Final = "files"
_HOST: Final = "nothing of the host's tree is in the sandbox's mount namespace"
_TOOLS: Final = "host tools resolve once, below the lease's root (openat2)"

_STRICT: Final = Scene("strict", profile=Profile.STRICT)
_STRICT_WRITABLE: Final = Scene(
    "strict_writable_system",
    taken="the read-only system, and the unprivileged user",
)
_DEVICES: Final = Scene(
    "devices_allowed",
    taken="nodev: the same directory is mounted without it",
    amend=with_mount("{bait}/devices", "/workspace/devices"),
)
_LAYER: Final = Scene(
    "no_layer",
    taken="the writable layer above the system: the host's directory itself is mounted",
    amend=with_mount("{bait}/layer", "{bait}/layer"),
)
# A mount of the file system that the bait is on: handles are of a file system.
_WAY: Final = Scene("way", amend=with_mount("{bait}/layer", "/srv", "ro"))
_WAY_AS_ROOT: Final = Scene(
    "way_as_root", taken=REAL_ROOT.taken, amend=both(REAL_ROOT.amend, _WAY.amend)
)
_NAIVE: Final = Scene(
    "naive_tools",
    taken="the resolution below the lease's root: paths are opened by name",
    naive=True,
)


def _file(
    name: str,
    attack: str,
    defence: str,
    scene: Scene,
    control: Scene,
    action: str | Drive,
) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, scene, control, action)


def _host(name: str, attack: str, action: str) -> Attempt:
    return _file(name, attack, _HOST, PLAIN, HOST_DIRECTORY, action)


def _tool(name: str, attack: str, action: Drive) -> Attempt:
    return _file(name, attack, _TOOLS, PLAIN, _NAIVE, action)


ATTEMPTS: Final = (
    _host(
        "host_file_by_path",
        "read a file of the host by its path",
        "read {bait}/secret {mark}",
    ),
    _host(
        "host_file_by_climbing",
        "read it by climbing out of the workspace with ..",
        "read ../../../../../../../../{bait}/secret {mark}",
    ),
    _host(
        "host_file_by_link",
        "read it through a link with an absolute target",
        "climb-by-link {bait}/secret /workspace/link-out {mark}",
    ),
    _host(
        "host_file_by_proc_root",
        "read it below /proc/self/root",
        "read /proc/self/root/{bait}/secret {mark}",
    ),
    _host(
        "host_file_by_proc_cwd",
        "read it by climbing from /proc/self/cwd",
        "read /proc/self/cwd/../../../../../../{bait}/secret {mark}",
    ),
    _host(
        "host_file_by_thread_root",
        "read it below the root of a thread",
        "read /proc/thread-self/root/{bait}/secret {mark}",
    ),
    _host(
        "host_file_by_shell",
        "search for it with a shell",
        "shell grep -q '{mark}' {bait}/*",
    ),
    _host("host_file_write", "change a file of the host", "write {bait}/target"),
    _file(
        "host_file_by_handle",
        "open a file of the host by its handle, past every mount",
        "open_by_handle_at(2) is filtered and needs CAP_DAC_READ_SEARCH on the host",
        _WAY,
        _WAY_AS_ROOT,
        "open-handle /srv {handle} {mark}",
    ),
    _file(
        "system_below_the_layer",
        "change a directory of the host that lies below the writable system",
        "writes go to a layer that is thrown away",
        PLAIN,
        _LAYER,
        drives.write_below_the_layer,
    ),
    _file(
        "strict_system_write",
        "write to the system in the strict profile",
        "the system is read-only and not the user's",
        _STRICT,
        _STRICT_WRITABLE,
        "create /usr/attacked",
    ),
    _file(
        "root_is_root_outside",
        "make a file that belongs to the host's root",
        "user ids are mapped to a range of the lease's own",
        PLAIN,
        NO_USER_NAMESPACE,
        drives.be_root_outside,
    ),
    _file(
        "make_device",
        "make a device node",
        "mknod(2) of a device needs CAP_MKNOD on the host",
        PLAIN,
        REAL_ROOT,
        "make-device /workspace/device",
    ),
    _file(
        "open_device",
        "open a device node that lies in the workspace",
        "nodev on every mount",
        PLAIN,
        _DEVICES,
        "open-device /workspace/devices/null",
    ),
    _tool("tool_view_link", "make file_view follow a link to the host", drives.view_link),
    _tool(
        "tool_view_magic_link",
        "make file_view follow a link to /proc/self/root",
        drives.view_magic_link,
    ),
    _tool(
        "tool_view_linked_directory",
        "make file_view walk through a linked directory",
        drives.view_linked_directory,
    ),
    _tool(
        "tool_view_swapped",
        "swap a directory for a link while file_view walks",
        drives.view_swapped,
    ),
    _tool("tool_edit_link", "make file_edit change a file of the host", drives.edit_link),
    _tool("tool_write_link", "make an upload land in a directory of the host", drives.write_link),
    _tool("tool_view_fifo", "make file_view wait for ever on a FIFO", drives.view_fifo),
    _tool(
        "tool_view_sparse",
        "make file_view read a file of 64 MiB without content",
        drives.view_sparse,
    ),
    _tool("mount_link", "let a link choose what the next sandbox mounts", drives.mount_link),
)
