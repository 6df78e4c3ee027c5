"""Applying a lease's changes to a directory of the host.

The directory is the operator's, the names and links come from the sandbox. Every directory is
opened below the target without following a link; a file is written without a name and then put in
its place (`file_replace`), so a reader sees the old one or the new one, and a daemon that is killed
leaves no part. New things get the owner of the directory they are in, a file that replaces another
keeps that one's owner, and no set-uid bit passes.

Left out and named: everything below a `.git` directory, because git runs programs that its config
and hooks name; links that are absolute or climb out of the target; and what no longer fits, such as
a directory of the target that is now a link. The target may have moved on since it was copied:
changed files are replaced, not merged.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterable
from typing import Final

from stockade.host.changes import DELETED, Difference, Node
from stockade.host.file_replace import Replacement
from stockade.host.gitpatch import GIT_REASON, git_directory, stays_inside
from stockade.host.leftout import LeftOut
from stockade.host.openat2 import open_below

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_CHUNK: Final = 1024 * 1024
_UNFIT: Final = (
    errno.ELOOP,
    errno.ENOTDIR,
    errno.EISDIR,
    errno.ENOENT,
    errno.EEXIST,
    errno.ENOTEMPTY,
    errno.ENAMETOOLONG,
    errno.EPERM,
    errno.EBUSY,
)


class Export:
    """One export to `target_fd`. `apply` raises OSError for what ends it (a full disk)."""

    def __init__(self, target_fd: int, left_out: LeftOut) -> None:
        self._target_fd = target_fd
        self._left_out = left_out
        self._temporary = 0

    def apply(self, differences: Iterable[Difference]) -> int:
        """Carry the differences out; gives how many files and links were changed."""
        done = 0
        for item in differences:
            git = git_directory(item.path)
            if git is not None:
                # A directory alone is nothing lost; a denied .git/hooks is made for every sandbox.
                if not item.directory:
                    self._left_out.add(git, GIT_REASON)
                continue
            try:
                done += self._one(item) and not item.directory
            except OSError as error:
                if error.errno not in _UNFIT:
                    raise
                self._left_out.add(item.path, error.strerror or "it doesn't fit the target")
        return done

    def _one(self, item: Difference) -> bool:
        parent, _, name = item.path.rpartition(b"/")
        try:
            parent_fd = open_below(self._target_fd, parent or b".", _DIRECTORY)
        except FileNotFoundError:
            if item.kind == DELETED:
                return False  # gone already
            raise
        try:
            if item.after is None:
                return self._delete(parent_fd, name, directory=item.directory)
            if item.directory:
                return self._make_directory(parent_fd, name, item.after)
            if stat.S_ISLNK(item.after.info.st_mode):
                return self._link(parent_fd, name, item)
            return self._file(parent_fd, name, item.after)
        finally:
            os.close(parent_fd)

    def _delete(self, parent_fd: int, name: bytes, *, directory: bool) -> bool:
        try:
            if directory:
                os.rmdir(name, dir_fd=parent_fd)
            else:
                os.unlink(name, dir_fd=parent_fd)
        except FileNotFoundError:
            return False
        return True

    def _make_directory(self, parent_fd: int, name: bytes, node: Node) -> bool:
        try:
            os.mkdir(name, 0o700, dir_fd=parent_fd)
        except FileExistsError:
            return False  # what is below it shows whether it is a directory
        fd = os.open(name, _DIRECTORY | os.O_NOFOLLOW, dir_fd=parent_fd)
        try:
            owner = os.fstat(parent_fd)
            os.fchown(fd, owner.st_uid, owner.st_gid)
            os.fchmod(fd, node.mode & 0o777)
        finally:
            os.close(fd)
        return True

    def _link(self, parent_fd: int, name: bytes, item: Difference) -> bool:
        assert item.after is not None
        target = item.after.link()
        if not stays_inside(item.path, target):
            self._left_out.add(item.path, "a link that leads out of the target")
            return False
        owner = self._owner(parent_fd, name)
        temporary = self._name()
        os.symlink(target, temporary, dir_fd=parent_fd)
        try:
            os.chown(temporary, *owner, dir_fd=parent_fd, follow_symlinks=False)
            os.rename(temporary, name, src_dir_fd=parent_fd, dst_dir_fd=parent_fd)
        except BaseException:
            os.unlink(temporary, dir_fd=parent_fd)
            raise
        return True

    def _file(self, parent_fd: int, name: bytes, node: Node) -> bool:
        source = node.open()
        try:
            with Replacement(parent_fd) as replacement:
                while chunk := os.read(source, _CHUNK):
                    replacement.write(chunk)
                replacement.set_new(*self._owner(parent_fd, name), node.mode & 0o777)
                replacement.stage()
                replacement.install(name)
        finally:
            os.close(source)
        return True

    @staticmethod
    def _owner(parent_fd: int, name: bytes) -> tuple[int, int]:
        try:
            info = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
        except FileNotFoundError:
            info = os.fstat(parent_fd)
        return info.st_uid, info.st_gid

    def _name(self) -> bytes:
        """A name for a link on its way; one that is taken is an error, not a loss."""
        self._temporary += 1
        return b".stockade-%d-%d" % (os.getpid(), self._temporary)
