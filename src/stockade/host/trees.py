"""Walking and removing whole trees by descriptors.

A `Cursor` is a place in a tree: one open directory. It goes down by one name with O_NOFOLLOW, so a
symlink put in place of a directory is an error and never a way out, and goes up through ".." after
which it must stand where it came from (device and inode), else the tree was moved under it. That
needs one descriptor and no recursion, whatever the depth: 3,000 levels are as good as three.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Callable, Iterator
from typing import Final

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
# O_NONBLOCK: a FIFO put in place of a file must not block the open.
READ_FILE: Final = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
_NO_RANGE: Final = (errno.EOPNOTSUPP, errno.EXDEV, errno.ENOSYS)
_PIECE_BYTES: Final = 64 * 1024 * 1024
_BUFFER_BYTES: Final = 1024 * 1024


class Cursor:
    """Stands in the directory `name` below `dir_fd`, or in `dir_fd` itself (which it copies).
    To be closed; raises OSError: ELOOP or ENOTDIR for what is no directory, ESTALE for a tree
    that was moved meanwhile."""

    def __init__(self, dir_fd: int, name: bytes = b".") -> None:
        self.fd = os.open(name, _DIRECTORY, dir_fd=dir_fd)
        self._above: list[tuple[int, int]] = []
        self._here = self._identity()

    @property
    def identity(self) -> tuple[int, int]:
        """Device and inode of the directory it stands in."""
        return self._here

    def enter(self, name: bytes) -> None:
        self._move(name)
        self._above.append(self._here)
        self._here = self._identity()

    def leave(self) -> None:
        self._move(b"..")
        self._here = self._identity()
        if self._here != self._above.pop():
            raise OSError(errno.ESTALE, "the tree was moved while it was walked")

    def close(self) -> None:
        os.close(self.fd)

    def __enter__(self) -> Cursor:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _move(self, name: bytes) -> None:
        fd = os.open(name, _DIRECTORY, dir_fd=self.fd)
        os.close(self.fd)
        self.fd = fd

    def _identity(self) -> tuple[int, int]:
        info = os.fstat(self.fd)
        return info.st_dev, info.st_ino


def names(dir_fd: int) -> list[bytes]:
    """What the directory holds, sorted."""
    return sorted(os.fsencode(name) for name in os.listdir(dir_fd))


def copy_extents(
    source_fd: int, target_fd: int, size: int, count: Callable[[int], None] = lambda size: None
) -> None:
    """Copy the data below `size`, not the holes, to the same offsets. `count` is told of each piece
    before it is written."""
    offset = 0
    while offset < size:
        try:
            start = os.lseek(source_fd, offset, os.SEEK_DATA)
        except OSError as error:
            if error.errno == errno.ENXIO:  # nothing but a hole up to the end
                return
            raise
        end = min(os.lseek(source_fd, start, os.SEEK_HOLE), size)
        while start < end:
            stop = min(start + _PIECE_BYTES, end)
            count(stop - start)
            while start < stop:
                done = _copy_range(source_fd, target_fd, start, stop - start)
                if done == 0:  # it was cut short by somebody else meanwhile
                    return
                start += done
        offset = end


def _copy_range(source_fd: int, target_fd: int, start: int, size: int) -> int:
    """At most `size` bytes; gives how many, 0 at the end of the source."""
    try:
        return os.copy_file_range(source_fd, target_fd, size, start, start)
    except OSError as error:
        # Between different kinds of file system the kernel copies nothing, since Linux 5.19.
        if error.errno not in _NO_RANGE:
            raise
    data = os.pread(source_fd, min(size, _BUFFER_BYTES), start)
    return os.pwrite(target_fd, data, start) if data else 0


def remove_tree(dir_fd: int, name: bytes) -> None:
    """Remove `name` below `dir_fd` with all it holds; a name that is absent is fine.

    Goes on over what can't be removed and raises the first OSError of it at the end, so that one
    immutable file doesn't keep the rest alive. Never enters another file system.
    """
    try:
        cursor = Cursor(dir_fd, name)
    except FileNotFoundError:
        return
    except OSError as error:
        if error.errno not in (errno.ENOTDIR, errno.ELOOP):
            raise
        os.unlink(name, dir_fd=dir_fd)
        return
    first: OSError | None = None
    # Directories to go, from the outside to the one the cursor stands in, with what is left to do.
    open_dirs: list[tuple[bytes, Iterator[bytes]]] = []
    with cursor:
        device = cursor.identity[0]
        open_dirs.append((name, iter(names(cursor.fd))))
        while True:
            here, todo = open_dirs[-1]
            child = next(todo, None)
            if child is None:
                open_dirs.pop()
                if not open_dirs:
                    break
                cursor.leave()
                try:
                    os.rmdir(here, dir_fd=cursor.fd)
                except OSError as error:
                    first = first or error
                continue
            try:
                os.unlink(child, dir_fd=cursor.fd)
            except OSError as error:
                # Linux says EISDIR for a directory, POSIX EPERM, and EPERM also means immutable.
                if error.errno not in (errno.EISDIR, errno.EPERM):
                    first = first or error
                    continue
                try:
                    cursor.enter(child)
                except OSError as no_directory:
                    first = first or (
                        error if no_directory.errno == errno.ENOTDIR else no_directory
                    )
                    continue
                if cursor.identity[0] != device:
                    cursor.leave()
                    first = first or OSError(errno.EBUSY, "something is mounted in the tree")
                    continue
                open_dirs.append((child, iter(names(cursor.fd))))
    if first is not None:
        raise first
    os.rmdir(name, dir_fd=dir_fd)
