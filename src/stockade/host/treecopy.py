"""Copying the source of a lease, or the workspace of another lease, into its base layer.

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

from stockade.host.disks import BLOCK_BYTES
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

    `ids` says what a user or group id becomes; modes and times are kept, the set-uid and set-gid
    bits of files are not. Hard links become files of their own unless there is `links_fd`, an empty
    directory beside the target, which then holds a link to each file that has several. Extended
    attributes stay behind. A directory whose (device, inode) is `avoid` is skipped: a source may
    hold the very state directory that it is copied to. `check_space` is called with the bytes of
    data about to be written, piece by piece, and `check_entry` for each file, link or directory
    with the bytes that it takes beside its data. Raises OSError with the path in `filename`.
    """

    def __init__(
        self,
        source_fd: int,
        target_fd: int,
        ids: Callable[[int], int],
        *,
        excluded: Callable[[bytes], bool],
        avoid: tuple[int, int] | None,
        check_space: Callable[[int], None],
        check_entry: Callable[[int], None] = lambda size: None,
        links_fd: int | None = None,
    ) -> None:
        self._source = Cursor(source_fd)
        self._target = Cursor(target_fd)
        self._ids = ids
        self._check_entry = check_entry
        self._links_fd = links_fd
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
        self._check_entry(BLOCK_BYTES)
        os.mkdir(name, 0o700, dir_fd=self._target.fd)
        self._target.enter(name)
        return True

    def _finish_directory(self) -> None:
        info = os.fstat(self._source.fd)
        os.fchown(self._target.fd, self._ids(info.st_uid), self._ids(info.st_gid))
        os.fchmod(self._target.fd, stat.S_IMODE(info.st_mode))
        os.utime(self._target.fd, ns=(info.st_atime_ns, info.st_mtime_ns))

    def _copy_link(self, name: bytes, info: os.stat_result) -> None:
        fd = self._target.fd
        self._check_entry(BLOCK_BYTES)
        os.symlink(os.readlink(name, dir_fd=self._source.fd), name, dir_fd=fd)
        ids = self._ids(info.st_uid), self._ids(info.st_gid)
        os.chown(name, *ids, dir_fd=fd, follow_symlinks=False)
        times = (info.st_atime_ns, info.st_mtime_ns)
        os.utime(name, ns=times, dir_fd=fd, follow_symlinks=False)
        self._report.files += 1

    def _copy_file(self, name: bytes) -> None:
        source = os.open(name, READ_FILE, dir_fd=self._source.fd)
        try:
            info = os.fstat(source)
            if not stat.S_ISREG(info.st_mode):
                raise OSError(errno.ESTALE, "the file was replaced while it was copied")
            if self._linked(name, info):
                return
            self._check_entry(0)
            flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
            target = os.open(name, flags, 0o600, dir_fd=self._target.fd)
            try:
                self._copy_data(source, target, info)
                os.fchown(target, self._ids(info.st_uid), self._ids(info.st_gid))
                os.fchmod(target, stat.S_IMODE(info.st_mode) & 0o1777)
                os.utime(target, ns=(info.st_atime_ns, info.st_mtime_ns))
            finally:
                os.close(target)
            if self._links_fd is not None and info.st_nlink > 1:
                os.link(name, _known(info), src_dir_fd=self._target.fd, dst_dir_fd=self._links_fd)
            self._report.files += 1
            self._report.bytes += info.st_size
        finally:
            os.close(source)

    def _linked(self, name: bytes, info: os.stat_result) -> bool:
        """Whether the file was copied before under another name, and has this one now, too."""
        if self._links_fd is None or info.st_nlink == 1:
            return False
        known = _known(info)
        try:
            os.link(known, name, src_dir_fd=self._links_fd, dst_dir_fd=self._target.fd)
        except FileNotFoundError:
            return False
        except OSError as error:
            if error.errno != errno.EMLINK:
                raise
            os.unlink(known, dir_fd=self._links_fd)  # as many as can be: the next is a new file
            return False
        self._report.files += 1
        return True

    def _copy_data(self, source: int, target: int, info: os.stat_result) -> None:
        if info.st_size <= _SMALL:  # one read and one write are cheaper than a range copy
            data = os.read(source, _SMALL)
            self._check_space(len(data))
            while data:
                data = data[os.write(target, data) :]
            return
        if self._reflink:
            try:
                fcntl.ioctl(target, _FICLONE, source)
                self._check_space(info.st_blocks * 512)
                return
            except OSError as error:
                if error.errno not in _NO_REFLINK:
                    raise
                self._reflink = False
        copy_extents(source, target, info.st_size, self._check_space)
        os.ftruncate(target, info.st_size)


def _known(info: os.stat_result) -> bytes:
    return b"%d-%d" % (info.st_dev, info.st_ino)
