"""Copying the source of a lease into its base layer.

The walk goes by descriptors on both sides, never through a symlink. A file of up to 64 KiB costs
one read and one write; a larger one shares its blocks with the source where the file system can
(reflink), else the kernel copies its data extents, so that holes stay holes.
"""

from __future__ import annotations

import errno
import fcntl
import fnmatch
import os
import re
import stat
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from stockade.host.trees import READ_FILE, Cursor, copy_extents, names
from stockade.terms.pathname import to_text

_FICLONE: Final = 0x40049409
_NO_REFLINK: Final = (errno.EOPNOTSUPP, errno.EXDEV, errno.EINVAL, errno.ENOTTY)
_SMALL: Final = 64 * 1024


def exclusion(patterns: tuple[str, ...]) -> Callable[[bytes], bool]:
    """Whether a path relative to the source is left out: each pattern is a glob (`*` also covers
    "/") that is matched against the whole path and against the last name of it. A leading "/"
    means the whole path only."""
    if not patterns:
        return lambda _path: False
    whole = re.compile("|".join(fnmatch.translate(pattern.strip("/")) for pattern in patterns))
    loose = [pattern.rstrip("/") for pattern in patterns if not pattern.startswith("/")]
    last = re.compile("|".join(fnmatch.translate(pattern) for pattern in loose) or r"(?!)")

    def excluded(path: bytes) -> bool:
        text = os.fsdecode(path)
        return bool(whole.match(text) or last.match(text.rpartition("/")[2]))

    return excluded


@dataclass(slots=True)
class CopyReport:
    """`skipped` are sockets, devices, FIFOs and the directory the copy itself goes to."""

    files: int = 0
    bytes: int = 0
    skipped: int = 0


class TreeCopy:
    """One copy of the tree at `source_fd` into the empty directory `target_fd`.

    Everything belongs to (`owner`, `owner`) afterwards; modes and times are kept, the set-uid and
    set-gid bits of files are not. Hard links become files of their own; extended attributes stay
    behind. A directory whose (device, inode) is `avoid` is skipped: a source may hold the very
    state directory that it is copied to. `check_space` is called with the bytes about to be
    written. Raises OSError with the path in `filename`.
    """

    def __init__(
        self,
        source_fd: int,
        target_fd: int,
        owner: int,
        *,
        excluded: Callable[[bytes], bool],
        avoid: tuple[int, int] | None,
        check_space: Callable[[int], None],
    ) -> None:
        self._source = Cursor(source_fd)
        self._target = Cursor(target_fd)
        self._owner = owner
        self._excluded = excluded
        self._avoid = avoid
        self._check_space = check_space
        self._reflink = True
        self._report = CopyReport()

    def run(self) -> CopyReport:
        path = b""
        try:
            stack: list[tuple[bytes, Iterator[bytes]]] = [(b"", iter(names(self._source.fd)))]
            while True:
                prefix, todo = stack[-1]
                name = next(todo, None)
                if name is None:
                    self._finish_directory()
                    stack.pop()
                    if not stack:
                        return self._report
                    self._source.leave()
                    self._target.leave()
                    continue
                path = prefix + name
                if not self._excluded(path) and self._copy(name):
                    stack.append((path + b"/", iter(names(self._source.fd))))
        except OSError as error:
            raise OSError(error.errno, error.strerror, to_text(path)) from error
        finally:
            self._source.close()
            self._target.close()

    def _copy(self, name: bytes) -> bool:
        """Copy one entry; True when it was a directory, which both cursors then stand in."""
        try:
            info = os.stat(name, dir_fd=self._source.fd, follow_symlinks=False)
        except FileNotFoundError:  # removed since it was listed: as if listed a moment later
            return False
        if stat.S_ISDIR(info.st_mode):
            return self._enter(name, info)
        if stat.S_ISREG(info.st_mode):
            self._copy_file(name)
        elif stat.S_ISLNK(info.st_mode):
            self._copy_link(name, info)
        else:
            self._report.skipped += 1
        return False

    def _enter(self, name: bytes, info: os.stat_result) -> bool:
        if (info.st_dev, info.st_ino) == self._avoid:
            self._report.skipped += 1
            return False
        self._source.enter(name)
        os.mkdir(name, 0o700, dir_fd=self._target.fd)
        self._target.enter(name)
        return True

    def _finish_directory(self) -> None:
        info = os.fstat(self._source.fd)
        os.fchown(self._target.fd, self._owner, self._owner)
        os.fchmod(self._target.fd, stat.S_IMODE(info.st_mode))
        os.utime(self._target.fd, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _copy_link(self, name: bytes, info: os.stat_result) -> None:
        fd = self._target.fd
        os.symlink(os.readlink(name, dir_fd=self._source.fd), name, dir_fd=fd)
        os.chown(name, self._owner, self._owner, dir_fd=fd, follow_symlinks=False)
        times = (info.st_atime_ns, info.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)
        self._report.files += 1

    def _copy_file(self, name: bytes) -> None:
        source = os.open(name, READ_FILE, dir_fd=self._source.fd)
        try:
            info = os.fstat(source)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.ESTALE, "the file was replaced while it was copied")
            self._check_space(info.st_blocks * 512)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(name, flags, 0o600, dir_fd=self._target.fd)
            try:
                self._copy_data(source, target, info)
                os.fchown(target, self._owner, self._owner)
                os.fchmod(target, stat.S_IMODE(info.st_mode) & 0o1777)
                os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
            finally:
                os.close(target)
            self._report.files += 1
            self._report.bytes += info.st_size
        finally:
            os.close(source)

    def _copy_data(self, source: int, target: int, info: os.stat_result) -> None:
        if info.st_size <= _SMALL:  # one read and one write are cheaper than a range copy
            data = os.read(source, _SMALL)
            while data:
                data = data[os.write(target, data) :]
            return
        if self._reflink:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                return
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                self._reflink = False
        copy_extents(source, target, info.st_size)
        os.ftruncate(target, info.st_size)
