"""What an operating system error on a workspace file means to the caller.

The one place where the file tools translate `OSError`. The message names the container path; the
host's own path never appears, because every operation is relative to a descriptor.
"""

from __future__ import annotations

import errno
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Final

from stockade.terms.fault import Code, Failure, failure
from stockade.terms.pathname import to_text

_MEANING: Final[dict[int, tuple[Code, str]]] = {
    errno.ENOENT: (Code.NOT_FOUND, "does not exist"),
    errno.ENOTDIR: (Code.NOT_FOUND, "leads through something that is not a directory"),
    errno.EISDIR: (Code.NOT_A_REGULAR_FILE, "is a directory"),
    # Opening a socket, or a FIFO without a reader; a device on a nodev mount gives EACCES.
    errno.ENXIO: (Code.NOT_A_REGULAR_FILE, "is not a regular file"),
    errno.EACCES: (Code.NOT_A_REGULAR_FILE, "can't be opened"),
    # The immutable flag; a read-only mount.
    errno.EPERM: (Code.READ_ONLY_FILE, "can't be changed"),
    errno.EROFS: (Code.READ_ONLY_FILE, "is on a read-only file system"),
    errno.ENOSPC: (Code.DISK_FULL, "no space is left for the new content; nothing changed"),
    errno.EDQUOT: (Code.DISK_FULL, "no space is left for the new content; nothing changed"),
    errno.ENAMETOOLONG: (Code.INVALID_ARGUMENT, "holds a name of more than 255 bytes"),
    # With O_NONBLOCK the kernel does not wait for a file lease (fcntl F_SETLEASE) to be broken.
    errno.EAGAIN: (Code.BUSY, "is held by a program with a file lease"),
    errno.ELOOP: (Code.BUSY, "is being replaced by another program"),
    errno.EMFILE: (Code.BUSY, "can't be opened: the daemon has no descriptor left"),
    errno.ENFILE: (Code.BUSY, "can't be opened: the host has no descriptor left"),
}


def explain(error: OSError, path: bytes) -> Failure:
    """The failure that `error` on container path `path` is. Unknown numbers are the host's doing:
    workspace_unavailable."""
    shown = to_text(path)
    code, words = _MEANING.get(
        error.errno or 0, (Code.WORKSPACE_UNAVAILABLE, f"can't be used: {error.strerror}")
    )
    if code is Code.INVALID_ARGUMENT:
        return failure(code, f"{shown} {words}", argument="path")
    return failure(code, f"{shown}: {words}" if code is Code.DISK_FULL else f"{shown} {words}")


@contextmanager
def explained(path: bytes) -> Iterator[None]:
    """Turn an OSError of the block into the `Failure` that it means for `path`."""
    try:
        yield
    except OSError as error:
        raise explain(error, path) from error
