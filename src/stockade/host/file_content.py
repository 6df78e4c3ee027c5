"""Opening a workspace file for reading, and what its content is called.

A name in a workspace may be a FIFO, a socket, a device, a file under a lease (fcntl F_SETLEASE), or
become one between two system calls. So: the O_PATH descriptor says what it is before anything is
opened, the open is O_NONBLOCK and O_NOFOLLOW relative to the resolved parent, and the descriptor
that will be read is checked once more. None of it can block.

Version of a file: the first 16 bytes of the SHA-256 of its content, in hex. Above `EXACT_BYTES`
hashing would cost more than a call may take: the version is then `m:` and a hash of the inode's
number, size and time of change, which differs after every write but also after a copy.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from typing import Final

from stockade.host.paths import Resolved
from stockade.terms.fault import Code, failure
from stockade.terms.pathname import to_text

EXACT_BYTES: Final = 16 << 20
BLOCK_BYTES: Final = 256 << 10
TEXT_PROBE_BYTES: Final = 8 << 10
_READ: Final = os.O_RDONLY | os.O_NONBLOCK | os.O_NOFOLLOW | os.O_NOCTTY | os.O_CLOEXEC


def open_regular(resolved: Resolved) -> tuple[int, os.stat_result]:
    """A descriptor of the resolved file for reading, and its state. The caller closes it.

    Raises Failure: not_found, not_a_regular_file; OSError where the open fails.
    """
    if resolved.fd is None:
        raise failure(Code.NOT_FOUND, f"{to_text(resolved.path)} does not exist")
    require_regular(resolved.mode, resolved.path)
    fd = os.open(resolved.name, _READ, dir_fd=resolved.parent_fd)
    try:
        state = os.fstat(fd)
        require_regular(state.st_mode, resolved.path)
    except BaseException:
        os.close(fd)
        raise
    return fd, state


def require_regular(mode: int, path: bytes) -> None:
    """Raises Failure(not_a_regular_file), which says what it is instead."""
    if stat.S_ISREG(mode):
        return
    kinds = {
        stat.S_IFDIR: "a directory",
        stat.S_IFIFO: "a FIFO",
        stat.S_IFSOCK: "a socket",
        stat.S_IFCHR: "a device",
        stat.S_IFBLK: "a device",
        stat.S_IFLNK: "a link",
    }
    kind = kinds.get(stat.S_IFMT(mode), "a special file")
    raise failure(
        Code.NOT_A_REGULAR_FILE, f"{to_text(path)} is {kind}, not a regular file", is_a=kind
    )


def require_text(head: bytes, path: bytes) -> None:
    """Raises Failure(not_a_text_file) on a NUL in the first 8 KiB, `head`. Bytes that are not
    UTF-8 are no reason: Latin-1 sources are text."""
    if b"\0" in head[:TEXT_PROBE_BYTES]:
        raise failure(
            Code.NOT_A_TEXT_FILE, f"{to_text(path)} is not a text file: it holds NUL bytes"
        )


def read_block(fd: int, position: int, end: int) -> bytes:
    """The next bytes up to `end`, which is the size that the file had when it was opened. What a
    program appends meanwhile is not followed: that would end when the program pleases."""
    return os.pread(fd, min(BLOCK_BYTES, end - position), position) if position < end else b""


def read_all(fd: int, size: int) -> bytes:
    """The first `size` bytes, fewer if the file has become shorter."""
    blocks: list[bytes] = []
    total = 0
    while block := read_block(fd, total, size):
        blocks.append(block)
        total += len(block)
    return b"".join(blocks)


def content_version(digest: bytes) -> str:
    """The version that a SHA-256 digest of the content gives."""
    return digest[:16].hex()


def version_of(content: bytes) -> str:
    return content_version(hashlib.sha256(content).digest())


def version_at(dir_fd: int, name: bytes) -> str | None:
    """The version of a file of at most `EXACT_BYTES`; None for anything else that has the name.
    Follows no link. Raises OSError."""
    try:
        fd = os.open(name, _READ, dir_fd=dir_fd)
    except OSError as error:
        if error.errno == errno.ELOOP:
            return None
        raise
    try:
        state = os.fstat(fd)
        if not stat.S_ISREG(state.st_mode) or state.st_size > EXACT_BYTES:
            return None
        return version_of(read_all(fd, state.st_size))
    finally:
        os.close(fd)


def stat_version(state: os.stat_result) -> str:
    """The version of a file that is too large to hash."""
    marks = f"{state.st_ino}:{state.st_size}:{state.st_mtime_ns}"
    return f"m:{hashlib.sha256(marks.encode()).digest()[:16].hex()}"
