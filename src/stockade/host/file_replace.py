"""Putting new content under a name at once: readers see the old file or the new one, never a part.

The content goes into an inode without a name (O_TMPFILE) in the same directory, is given the
metadata of the file that it replaces, then gets a temporary name and is renamed over the target, or
changes places with it where the old one may have to be put back. Until then a crash of the daemon
leaves nothing behind, because a nameless inode dies with its descriptor; linkat(2) can't replace, so
a name `.stockade-edit-…` exists for the moment of a few system calls. An edit's is known from what
was recorded before it, and so removed after a crash. Where the file system has no O_TMPFILE
(overlayfs before Linux 6.10) the name is there while the content is written. An edit's content waits
for its name there; an upload, which may be larger than memory, gets a random one at once, which is
removed on every failure, but not after a crash in the middle.

Kept of the old file: all mode bits, owner and group, `user.*` attributes and the access ACL. Not
kept: file capabilities (`security.*`), which the kernel as well drops at every write. Hard links:
the new content is under the name that was asked for; the other names keep the old content, because
authority was checked for that one path and another name may be in a place that is denied. Nothing
is flushed to disk: workspaces are not power-safe.
"""

from __future__ import annotations

import errno
import hashlib
import os
from collections.abc import Iterable
from contextlib import suppress
from typing import Final, Self

from stockade.host.syscalls import rename_exchange
from stockade.terms.outcome import EditOutcome

TEMPORARY_PREFIX: Final = b".stockade-edit-"
_ACL: Final = "system.posix_acl_access"
_CREATE: Final = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC


class Replacement:
    """A new inode on its way to a name in `parent_fd`. A context manager: what was not
    installed is gone afterwards. Raises OSError."""

    def __init__(self, parent_fd: int, *, named: bool = False) -> None:
        """`named` asks for the way without O_TMPFILE."""
        self._parent_fd = parent_fd
        self._temporary: bytes | None = None
        self._waiting: tuple[bytes, int, os.stat_result] | None = None
        self._fd = None if named else self._nameless()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd is not None:
            os.close(self._fd)
        if self._temporary is not None:
            # A program inside was faster, or put a directory there.
            with suppress(FileNotFoundError, IsADirectoryError):
                os.unlink(self._temporary, dir_fd=self._parent_fd)

    @property
    def fd(self) -> int:
        """The inode; it gets a name here where it can't be without one."""
        if self._fd is None:
            self._create(_fresh_name())
        assert self._fd is not None
        return self._fd

    def edited(self, content: bytes, source_fd: int, state: os.stat_result) -> None:
        """As `write` and `copy_metadata`, but not before `stage` where that takes a name."""
        if self._fd is None:
            self._waiting = content, source_fd, state
            return
        self.write(content)
        self.copy_metadata(source_fd, state)

    def write(self, content: bytes | memoryview) -> None:
        """Append all of `content`."""
        view = memoryview(content)
        while view:
            view = view[os.write(self.fd, view) :]

    def copy_metadata(self, source_fd: int, state: os.stat_result) -> None:
        """Take over owner, mode, attributes and ACL of the file `source_fd`, whose state is
        `state`. Owner first: chown(2) clears the set-id bits."""
        os.fchown(self.fd, state.st_uid, state.st_gid)
        os.fchmod(self.fd, state.st_mode & 0o7777)
        wanted = _kept(os.listxattr(source_fd))
        for name in wanted:
            os.setxattr(self.fd, name, os.getxattr(source_fd, name))
        # A default ACL of the directory gave the new inode an ACL that the old one may not have.
        for name in _kept(os.listxattr(self.fd)):
            if name not in wanted:
                os.removexattr(self.fd, name)

    def set_new(self, uid: int, gid: int, mode: int) -> None:
        """The metadata of a file that did not exist before."""
        os.fchown(self.fd, uid, gid)
        os.fchmod(self.fd, mode)

    def stage(self, name: bytes | None = None) -> None:
        """Give the inode its temporary name, so that only the rename is left to do: `name`, or a
        random one, also where a program has taken `name`."""
        if self._temporary is None:
            put = self._create if self._fd is None else self._link
            try:
                put(name or _fresh_name())
            except FileExistsError:
                put(_fresh_name())
        if self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            self.edited(*waiting)

    def install(self, name: bytes) -> None:
        """Put the staged inode under `name`, in place of what is there."""
        assert self._temporary is not None
        os.replace(self._temporary, name, src_dir_fd=self._parent_fd, dst_dir_fd=self._parent_fd)
        self._temporary = None

    def exchange(self, name: bytes) -> None:
        """Let the staged inode and what is under `name` change places; once more undoes it."""
        assert self._temporary is not None
        rename_exchange(self._parent_fd, self._temporary, name)

    def displaced(self, fd: int, state: os.stat_result) -> bool:
        """Whether what `exchange` took away is the file `fd`, with the content it had at `state`."""
        assert self._temporary is not None
        now = os.stat(self._temporary, dir_fd=self._parent_fd, follow_symlinks=False)
        # The inode's number as it is now: overlayfs copies a file of its lower layer up to move
        # it, which changes the number. The inode's time of change is the exchange's own.
        same = os.path.samestat(now, os.fstat(fd))
        return same and (now.st_size, now.st_mtime_ns) == (state.st_size, state.st_mtime_ns)

    def _link(self, temporary: bytes) -> None:
        # Through /proc, because linkat with AT_EMPTY_PATH needs CAP_DAC_READ_SEARCH.
        os.link(f"/proc/self/fd/{self.fd}", temporary, dst_dir_fd=self._parent_fd)
        self._temporary = temporary

    def _nameless(self) -> int | None:
        flags = os.O_RDWR | os.O_TMPFILE | os.O_CLOEXEC
        try:
            return os.open(b".", flags, 0o600, dir_fd=self._parent_fd)
        except OSError as error:
            # EPERM is overlayfs' answer in a directory that was removed: the other way names it.
            if error.errno not in (errno.EOPNOTSUPP, errno.EPERM):
                raise
            return None

    def _create(self, temporary: bytes) -> None:
        self._fd = os.open(temporary, _CREATE, 0o600, dir_fd=self._parent_fd)
        self._temporary = temporary


def edit_name(edit: EditOutcome) -> bytes:
    """The temporary name of an edit."""
    marks = f"{edit.old_version}:{edit.new_version}:{edit.path}".encode()
    return TEMPORARY_PREFIX + hashlib.sha256(marks).hexdigest()[:16].encode()


def _kept(names: Iterable[str]) -> list[str]:
    return [name for name in names if name == _ACL or name.startswith("user.")]


def _fresh_name() -> bytes:
    return TEMPORARY_PREFIX + os.urandom(8).hex().encode()
