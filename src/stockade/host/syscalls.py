"""System calls that Python has no function for: the mount API, namespaces, renameat2.

Thin and typed: each function is one call, raises OSError with the call's name, and releases the
interpreter lock while it waits. The numbers are the same on every architecture, because all of
these calls are newer than the unified table (Linux 5.1); mount_setattr is the youngest (5.12).
"""

from __future__ import annotations

import os
from ctypes import (
    CDLL,
    Structure,
    byref,
    c_char_p,
    c_int,
    c_long,
    c_size_t,
    c_uint,
    c_uint64,
    c_void_p,
    get_errno,
    sizeof,
)
from typing import Final

_LIBC: Final = CDLL(None, use_errno=True)
_LIBC.syscall.restype = c_long

_OPEN_TREE: Final = 428
SYS_MOVE_MOUNT: Final = 429
_FSOPEN: Final = 430
_FSCONFIG: Final = 431
_FSMOUNT: Final = 432
SYS_MOUNT_SETATTR: Final = 442

AT_FDCWD: Final = -100
AT_EMPTY_PATH: Final = 0x1000

CLONE_FS: Final = 0x200
CLONE_NEWNS: Final = 0x20000
CLONE_NEWNET: Final = 0x40000000
MS_REC: Final = 0x4000
MS_SLAVE: Final = 1 << 19
MNT_DETACH: Final = 2

OPEN_TREE_CLONE: Final = 1
MOVE_MOUNT_F_EMPTY_PATH: Final = 4

MOUNT_ATTR_RDONLY: Final = 0x1
MOUNT_ATTR_NOSUID: Final = 0x2
MOUNT_ATTR_NODEV: Final = 0x4
MOUNT_ATTR_NOEXEC: Final = 0x8
MOUNT_ATTR_NOATIME: Final = 0x10
MOUNT_ATTR_IDMAP: Final = 0x100000

_FSCONFIG_SET_FLAG: Final = 0
_FSCONFIG_SET_STRING: Final = 1
_FSCONFIG_CMD_CREATE: Final = 6
_FSOPEN_CLOEXEC: Final = 1
_FSMOUNT_CLOEXEC: Final = 1
_RENAME_EXCHANGE: Final = 2


class _MountAttr(Structure):
    _fields_ = [
        ("attr_set", c_uint64),
        ("attr_clr", c_uint64),
        ("propagation", c_uint64),
        ("userns_fd", c_uint64),
    ]


def _checked(result: int, name: str) -> int:
    if result < 0:
        number = get_errno()
        raise OSError(number, f"{name}: {os.strerror(number)}")
    return result


def open_tree(dir_fd: int, path: bytes, flags: int) -> int:
    """A descriptor of a mounted tree, or of a clone of it with OPEN_TREE_CLONE."""
    return _checked(
        _LIBC.syscall(_OPEN_TREE, c_int(dir_fd), c_char_p(path), c_uint(flags | os.O_CLOEXEC)),
        "open_tree",
    )


def move_mount(from_fd: int, from_path: bytes, to_fd: int, to_path: bytes, flags: int) -> None:
    _checked(
        _LIBC.syscall(
            SYS_MOVE_MOUNT,
            c_int(from_fd),
            c_char_p(from_path),
            c_int(to_fd),
            c_char_p(to_path),
            c_uint(flags),
        ),
        "move_mount",
    )


def mount_setattr(mount_fd: int, attributes: int, userns_fd: int = 0) -> None:
    """Set attributes of a mount by its descriptor; `userns_fd` is for MOUNT_ATTR_IDMAP."""
    attr = _MountAttr(attributes, 0, 0, userns_fd)
    _checked(
        _LIBC.syscall(
            SYS_MOUNT_SETATTR,
            c_int(mount_fd),
            c_char_p(b""),
            c_uint(AT_EMPTY_PATH),
            byref(attr),
            c_size_t(sizeof(attr)),
        ),
        "mount_setattr",
    )


def _fsconfig(fs_fd: int, command: int, key: bytes | None, value: bytes | None) -> None:
    _checked(
        _LIBC.syscall(
            _FSCONFIG, c_int(fs_fd), c_uint(command), c_char_p(key), c_char_p(value), c_int(0)
        ),
        "fsconfig" if key is None else f"fsconfig {key.decode()}",
    )


def new_mount(
    fstype: str, options: dict[str, str], flags: tuple[str, ...] = (), attributes: int = 0
) -> int:
    """A detached mount of a new file system. `options` are key=value, `flags` stand alone.

    Raises OSError; what the file system itself says about a refusal is in the message.
    """
    fs_fd = _checked(
        _LIBC.syscall(_FSOPEN, c_char_p(fstype.encode()), c_uint(_FSOPEN_CLOEXEC)), "fsopen"
    )
    try:
        for key, value in options.items():
            _fsconfig(fs_fd, _FSCONFIG_SET_STRING, key.encode(), os.fsencode(value))
        for flag in flags:
            _fsconfig(fs_fd, _FSCONFIG_SET_FLAG, flag.encode(), None)
        _fsconfig(fs_fd, _FSCONFIG_CMD_CREATE, None, None)
        return _checked(
            _LIBC.syscall(_FSMOUNT, c_int(fs_fd), c_uint(_FSMOUNT_CLOEXEC), c_uint(attributes)),
            "fsmount",
        )
    except OSError as error:
        said = _fs_message(fs_fd)
        if said:
            raise OSError(error.errno, f"{fstype}: {error.strerror} ({said})") from error
        raise
    finally:
        os.close(fs_fd)


def _fs_message(fs_fd: int) -> str:
    """The first line of the context's log (fsopen(2)): reading it gives ENODATA when empty."""
    try:
        return os.read(fs_fd, 512).decode(errors="replace").strip()
    except OSError:
        return ""


def unshare(flags: int) -> None:
    _checked(_LIBC.unshare(c_int(flags)), "unshare")


def setns(fd: int, kind: int) -> None:
    _checked(_LIBC.setns(c_int(fd), c_int(kind)), "setns")


def set_propagation(path: bytes, flags: int) -> None:
    """mount(2) with nothing but propagation flags (MS_PRIVATE or MS_SLAVE, MS_REC)."""
    _checked(
        _LIBC.mount(
            c_void_p(None), c_char_p(path), c_void_p(None), c_uint64(flags), c_void_p(None)
        ),
        "mount",
    )


def detach(path: bytes) -> None:
    """Take a mount and all below it out of this namespace; it ends with its last user."""
    _checked(_LIBC.umount2(c_char_p(path), c_int(MNT_DETACH)), "umount2")


def rename_exchange(dir_fd: int, one: bytes, other: bytes) -> None:
    """Let two names of a directory change places in one step (renameat2, RENAME_EXCHANGE)."""
    _checked(
        _LIBC.renameat2(
            c_int(dir_fd), c_char_p(one), c_int(dir_fd), c_char_p(other), c_uint(_RENAME_EXCHANGE)
        ),
        "renameat2",
    )


def syncfs(path: str) -> None:
    """Write everything of the file system of `path` to its disk, and wait for it."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        _checked(_LIBC.syncfs(c_int(fd)), "syncfs")
    finally:
        os.close(fd)
