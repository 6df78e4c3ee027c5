"""Attempts on another lease: its files, its processes, its sockets and its shared memory."""

from __future__ import annotations

from typing import Final

from stockade.selftest.amendments import (
    with_host_processes,
    with_mount,
    with_namespace,
    without_covers,
)
from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene
from stockade.selftest.scenes import PLAIN
from stockade.terms.grant import Profile

_GROUP: Final = "other leases"
_TREE: Final = "each lease has a tree, a disk and a /tmp of its own"

# Strict, because a writable system would be kept on the disk that is the other's.
_OWN_TREE: Final = Scene("own_tree", profile=Profile.STRICT)
_OTHER_TREE: Final = Scene(
    "other_tree",
    taken="the lease's own tree: the other lease's is mounted",
    profile=Profile.STRICT,
    tree="neighbour",
    ids="neighbour",
)
_OTHER_FILE: Final = Scene("other_file", amend=with_mount("{bait}/private", "/srv"))
_OTHER_IDS: Final = Scene(
    "other_ids",
    taken="the lease's own range of user ids: it has the other lease's",
    ids="neighbour",
    amend=with_mount("{bait}/private", "/srv"),
)
_OTHER_NETWORK: Final = Scene(
    "other_network",
    taken="the own network namespace: it is the other lease's",
    amend=with_namespace("network", "neighbour_pid"),
)
_OTHER_IPC: Final = Scene(
    "other_ipc",
    taken="the own ipc namespace: it is the other lease's",
    amend=with_namespace("ipc", "neighbour_pid"),
)
_OTHER_PIDS: Final = Scene(
    "other_pids",
    taken="the own pid namespace: it is the host's, which holds the other lease's processes; and "
    "the user ids are the other lease's",
    guest="readable",
    ids="neighbour",
    amend=with_host_processes,
)
_NO_COVERS: Final = Scene("disks_shown", taken="the covers of /proc and /sys", amend=without_covers)


def _at(name: str, attack: str, defence: str, scene: Scene, control: Scene, action: str) -> Attempt:
    return Attempt(name, _GROUP, attack, defence, scene, control, action)


ATTEMPTS: Final = (
    _at(
        "other_workspace",
        "read a file of another lease's workspace",
        _TREE,
        _OWN_TREE,
        _OTHER_TREE,
        "read /workspace/secret {neighbour_mark}",
    ),
    _at(
        "other_workspace_write",
        "write to it",
        _TREE,
        _OWN_TREE,
        _OTHER_TREE,
        "write /workspace/secret",
    ),
    _at(
        "other_tmp",
        "read a file of another lease's /tmp",
        _TREE,
        _OWN_TREE,
        _OTHER_TREE,
        "read /tmp/secret {neighbour_mark}",
    ),
    _at(
        "other_file_by_user",
        "read a file of another lease that lies within reach",
        "each lease has a range of user ids of its own",
        _OTHER_FILE,
        _OTHER_IDS,
        "read /srv/secret {neighbour_mark}",
    ),
    _at(
        "other_port",
        "connect to a server of another lease",
        "an own network namespace",
        PLAIN,
        _OTHER_NETWORK,
        "tcp 127.0.0.1 {neighbour_tcp} {neighbour_mark}",
    ),
    _at(
        "other_abstract_socket",
        "connect to an abstract unix socket of another lease",
        "an own network namespace",
        PLAIN,
        _OTHER_NETWORK,
        "abstract {neighbour_mark} {neighbour_mark}",
    ),
    _at(
        "other_shared_memory",
        "read a shared memory segment of another lease",
        "an own ipc namespace",
        PLAIN,
        _OTHER_IPC,
        "shared-memory {neighbour_key} {neighbour_mark}",
    ),
    _at(
        "other_message_queue",
        "receive from a message queue of another lease",
        "an own ipc namespace",
        PLAIN,
        _OTHER_IPC,
        "message-queue {neighbour_key} {neighbour_mark}",
    ),
    _at(
        "other_process_seen",
        "read the arguments of another lease's process",
        "an own pid namespace",
        PLAIN,
        _OTHER_PIDS,
        "read /proc/{neighbour_pid}/cmdline {neighbour_mark}",
    ),
    _at(
        "other_process_signal",
        "send a signal to it",
        "an own pid namespace, own user ids",
        PLAIN,
        _OTHER_PIDS,
        "signal {neighbour_pid}",
    ),
    _at(
        "other_disk_names",
        "learn which leases there are from the names of their disks",
        "/sys/devices/virtual/block is masked",
        PLAIN,
        _NO_COVERS,
        "shell grep -qs leases/ls_ /sys/devices/virtual/block/loop*/loop/backing_file",
    ),
)
