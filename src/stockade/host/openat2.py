"""openat2(2), which neither Python nor the C library wraps.

One system call with two choices. `open_below` treats a directory descriptor as the root of the
file system (RESOLVE_IN_ROOT: `..` at the root stays there) and refuses every symbolic and magic
link on the way, so that the name that was asked for is the name of what was opened.
"""

from __future__ import annotations

import ctypes
import os
from typing import Final

# The number is the same on every architecture (asm-generic and x86, since Linux 5.6).
SYS_OPENAT2: Final = 437
_RESOLVE_NO_MAGICLINKS: Final = 0x02
_RESOLVE_NO_SYMLINKS: Final = 0x04
_RESOLVE_IN_ROOT: Final = 0x10


class _OpenHow(ctypes.Structure):
    _fields_ = (
        ("flags", ctypes.c_uint64),
        ("mode", ctypes.c_uint64),
        ("resolve", ctypes.c_uint64),
    )


_syscall = ctypes.CDLL(None, use_errno=True).syscall
_syscall.restype = ctypes.c_long
_syscall.argtypes = (
    ctypes.c_long,
    ctypes.c_int,
    ctypes.c_char_p,
    ctypes.c_void_p,
    ctypes.c_size_t,
)


def open_below(root_fd: int, path: bytes, flags: int) -> int:
    """Open `path` below `root_fd` without following a link; O_CLOEXEC is always set.

    Raises OSError: ELOOP where a component is a link, EAGAIN where a rename raced with a `..`,
    else as open(2). Raises ValueError on a NUL byte, which C would take for the end of the path.
    """
    if b"\0" in path:
        raise ValueError("a path can't hold a NUL byte")
    resolve = _RESOLVE_IN_ROOT | _RESOLVE_NO_SYMLINKS | _RESOLVE_NO_MAGICLINKS
    how = _OpenHow(flags | os.O_CLOEXEC, 0, resolve)
    fd: int = _syscall(SYS_OPENAT2, root_fd, path, ctypes.byref(how), ctypes.sizeof(how))
    if fd < 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), path)
    return fd
