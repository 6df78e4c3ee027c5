"""Attempts on what a capability leaves out of a workspace: what is read-only, denied, not granted, or
not to be executed.
"""

from __future__ import annotations

from typing import Final

from stockade.selftest.attempt import Attempt
from stockade.selftest.scene import Scene

_GROUP: Final = "files"
_ALL: Final = ("/workspace", "/tmp")

# One subtree is writable, the rest is not; programs start in bin only.
_WALLS: Final = Scene(
    "walls",
    read=_ALL,
    write=("/workspace/open", "/tmp"),
    execute=("/usr", "/workspace/bin"),
    deny=("/workspace/open/way/denied",),
)
_WRITABLE: Final = Scene(
    "tree_writable",
    taken="the read-only mount of the workspace",
    read=_ALL,
    write=_ALL,
    execute=("/usr", "/workspace/bin"),
    deny=(),
)
_NO_DENY: Final = Scene(
    "no_deny",
    taken="the denial",
    read=_ALL,
    write=("/workspace/open", "/tmp"),
    execute=("/usr", "/workspace/bin"),
    deny=(),
)
_EXECUTABLE: Final = Scene(
    "everything_executable",
    taken="noexec",
    read=_ALL,
    write=("/workspace/open", "/tmp"),
    execute=("/",),
    deny=("/workspace/open/way/denied",),
)
_PART: Final = Scene(
    "part",
    read=("/workspace/part", "/workspace/bin"),
    write=("/workspace/part",),
    execute=("/",),
    deny=(),
)
_WHOLE: Final = Scene(
    "whole",
    taken="the limit to granted subtrees: the whole workspace is mounted",
    read=_ALL,
    write=_ALL,
    deny=(),
)


def _kept(name: str, attack: str, action: str) -> Attempt:
    defence = "the tree is mounted read-only"
    return Attempt(name, _GROUP, attack, defence, _WALLS, _WRITABLE, action)


def _denied(name: str, attack: str, action: str) -> Attempt:
    defence = "the denied path is a read-only mount, and so is everything between it and its tree"
    return Attempt(name, _GROUP, attack, defence, _WALLS, _NO_DENY, action)


def _part(name: str, attack: str, action: str) -> Attempt:
    defence = "only granted subtrees are mounted"
    return Attempt(name, _GROUP, attack, defence, _PART, _WHOLE, action)


def _noexec(name: str, attack: str, action: str) -> Attempt:
    defence = "noexec on what is not below an `execute` prefix"
    return Attempt(name, _GROUP, attack, defence, _WALLS, _EXECUTABLE, action)


ATTEMPTS: Final = (
    _kept("read_only_write", "write to a file of a read-only tree", "write /workspace/kept"),
    _kept("read_only_create", "make a file in a read-only tree", "create /workspace/new"),
    _kept("read_only_chmod", "change a mode in a read-only tree", "chmod /workspace/kept"),
    _kept("read_only_truncate", "cut a file of a read-only tree", "truncate /workspace/kept"),
    _kept(
        "read_only_reopen",
        "open it for reading, and again for writing through /proc/self/fd",
        "reopen /workspace/kept",
    ),
    _kept(
        "read_only_hard_link",
        "give it a second name in a writable tree, and write there",
        "hard-link /workspace/kept /workspace/open/kept",
    ),
    _kept(
        "read_only_rename",
        "move it to a writable tree",
        "move-out /workspace/kept /workspace/open/moved",
    ),
    _denied(
        "deny_absent",
        "make a file at a denied path that did not exist",
        "shell mkdir -p open/way/denied && echo x > open/way/denied/hook",
    ),
    _denied(
        "deny_rename_of_a_parent",
        "move the parent away and make the path anew",
        ("move-denial /workspace/open/way /workspace/open/away /workspace/open/way/denied/hook"),
    ),
    _denied(
        "deny_rename",
        "move the denied directory away",
        (
            "shell cd open/way && mkdir -p denied && mv denied gone && mkdir denied && "
            "echo x > denied/hook"
        ),
    ),
    _denied(
        "deny_remove",
        "remove the denied directory and make it anew",
        (
            "shell cd open/way && mkdir -p denied && rm -rf denied && mkdir denied && "
            "echo x > denied/hook"
        ),
    ),
    _denied(
        "deny_exchange",
        "exchange it with a directory of one's own",
        "exchange-denial /workspace/open/way/denied /workspace/open/own",
    ),
    _denied(
        "deny_by_link",
        "reach it by a link from elsewhere",
        (
            "shell mkdir -p open/way/denied; ln -s /workspace/open/way/denied /tmp/d && "
            "echo x > /tmp/d/hook"
        ),
    ),
    _part(
        "outside_subtree",
        "read a file beside the granted subtree",
        "read /workspace/other/secret {mark}",
    ),
    _part(
        "outside_subtree_by_climbing",
        "reach it with .. from the granted one",
        "read /workspace/part/../other/secret {mark}",
    ),
    _part(
        "outside_subtree_by_link",
        "reach it by a link in the granted one",
        "climb-by-link ../other/secret /workspace/part/link {mark}",
    ),
    _noexec(
        "noexec_workspace",
        "start a program from the workspace",
        "exec-copy /workspace/open/program",
    ),
    _noexec("noexec_tmp", "start a program from /tmp", "exec-copy /tmp/program"),
    _noexec("noexec_home", "start a program from HOME", "exec-copy /root/program"),
    _noexec("noexec_shm", "start a program from /dev/shm", "exec-copy /dev/shm/program"),
    _noexec("noexec_map", "map the code of such a file", "map-code /workspace/open/library"),
    _noexec(
        "noexec_loader",
        "let the dynamic loader start it",
        (
            "shell cp /usr/bin/true /tmp/true && for l in /lib64/ld-linux*.so* "
            "/lib/ld-linux*.so*; do [ -x $l ] && exec $l /tmp/true; done; exit 1"
        ),
    ),
)
