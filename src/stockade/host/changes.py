"""What a lease has written, read from the overlay's upper directory and compared with the base.

Only what the sandbox touched is looked at, so the cost is that of the changes, not of the tree. The
upper layer says three things: a character device 0:0 hides the base's entry of that name, a
directory with the attribute `trusted.overlay.opaque` hides all of the base's, and anything else is
there instead of the base's. Programs inside can make neither mark. A file that was copied up but is
as before (content and mode) is no change.

The layer is hostile and may be changing while it is read. The walk goes by descriptors, one name
at a time and never through a symlink; what vanishes under it is taken as gone. Differences come in
the order in which they can be carried out: a directory before what is in it when it is added, after
it when it is deleted, and a deletion before what takes its place.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

from stockade.host.leftout import LeftOut
from stockade.host.trees import READ_FILE, Cursor, names
from stockade.terms.pathname import MAX_PATH_BYTES

ADDED: Final = "added"
MODIFIED: Final = "modified"
DELETED: Final = "deleted"
TYPE_CHANGED: Final = "type_changed"

_OPAQUE: Final = "trusted.overlay.opaque"
_CHUNK: Final = 1024 * 1024


@dataclass(frozen=True, slots=True)
class Node:
    """A name in a directory that is open while the walk stands in it, and what it was."""

    dir_fd: int
    name: bytes
    info: os.stat_result

    @property
    def kind(self) -> int:
        return stat.S_IFMT(self.info.st_mode)

    @property
    def mode(self) -> int:
        return stat.S_IMODE(self.info.st_mode)

    def open(self) -> int:
        """The regular file for reading. Raises OSError, also when it is one no longer."""
        fd = os.open(self.name, READ_FILE, dir_fd=self.dir_fd)
        if not stat.S_ISREG(os.fstat(fd).st_mode):
            os.close(fd)
            raise FileNotFoundError(errno.ENOENT, "no regular file any more")
        return fd

    def link(self) -> bytes:
        return os.readlink(self.name, dir_fd=self.dir_fd)


@dataclass(frozen=True, slots=True)
class Difference:
    """One path that differs. `before` and `after` may be used until the next one is asked for.
    A directory is only ever ADDED or DELETED."""

    path: bytes
    kind: str
    before: Node | None
    after: Node | None

    @property
    def directory(self) -> bool:
        node = self.after or self.before
        return node is not None and stat.S_ISDIR(node.info.st_mode)


@dataclass(slots=True)
class _Frame:
    """A directory being walked: in which layers it exists, what is left of it, and what comes
    after it."""

    prefix: bytes
    upper: bool
    base: bool
    opaque: bool
    todo: Iterator[bytes]
    then: list[Difference] = field(default_factory=list)


class Differences:
    """Iterate once. `left_out` fills meanwhile. Raises OSError when the layer is moved about while
    it is read."""

    def __init__(self, upper_fd: int, base_fd: int, left_out: LeftOut) -> None:
        self._upper_fd = upper_fd
        self._base_fd = base_fd
        self._left_out = left_out

    def __iter__(self) -> Iterator[Difference]:
        with Cursor(self._upper_fd) as upper, Cursor(self._base_fd) as base:
            yield from _Walk(upper, base, self._left_out).run()


class _Walk:
    def __init__(self, upper: Cursor, base: Cursor, left_out: LeftOut) -> None:
        self._upper = upper
        self._base = base
        self._left_out = left_out
        self._stack: list[_Frame] = []

    def run(self) -> Iterator[Difference]:
        self._stack.append(self._frame(b"", upper=True, base=True))
        while True:
            frame = self._stack[-1]
            name = next(frame.todo, None)
            if name is not None:
                yield from self._entry(frame, name)
                continue
            self._stack.pop()
            if not self._stack:
                return
            if frame.upper:
                self._upper.leave()
            if frame.base:
                self._base.leave()
            yield from self._later(frame)

    def _later(self, frame: _Frame) -> Iterator[Difference]:
        """Nodes carry the number of a descriptor that has changed since: look again."""
        for item in frame.then:
            name = item.path.rpartition(b"/")[2]
            before = self._look(self._base, name) if item.before else None
            after = self._look(self._upper, name) if item.after else None
            if before or after:
                yield Difference(item.path, item.kind, before, after)

    def _entry(self, frame: _Frame, name: bytes) -> Iterator[Difference]:
        path = frame.prefix + name
        after = self._look(self._upper, name) if frame.upper else None
        before = self._look(self._base, name) if frame.base else None
        if after is None and frame.upper and not frame.opaque:
            return  # it vanished since it was listed, and the base shows again
        if after is not None and after.kind not in (stat.S_IFREG, stat.S_IFLNK, stat.S_IFDIR):
            if not (after.kind == stat.S_IFCHR and after.info.st_rdev == 0):
                self._left_out.add(path, "not a file, link or directory")
            after = None
        if len(path) > MAX_PATH_BYTES:
            self._left_out.add(path[:256], f"a path of more than {MAX_PATH_BYTES} bytes")
            return
        old_directory = before is not None and before.kind == stat.S_IFDIR
        if after is not None and after.kind == stat.S_IFDIR:
            if before is not None and not old_directory:
                yield Difference(path, DELETED, before, None)
            if not old_directory:
                yield Difference(path, ADDED, None, after)
            self._enter(path, name, upper=True, base=old_directory)
        elif old_directory:
            then = [Difference(path, DELETED, before, None)]
            if after is not None:
                then.append(Difference(path, ADDED, None, after))
            self._enter(path, name, upper=False, base=True, then=then)
        elif kind := _kind(before, after):
            yield Difference(path, kind, before, after)

    def _enter(
        self,
        path: bytes,
        name: bytes,
        *,
        upper: bool,
        base: bool,
        then: list[Difference] | None = None,
    ) -> None:
        if upper:
            try:
                self._upper.enter(name)
            except OSError as error:
                if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                    return  # replaced since it was looked at: as if it had vanished
                raise
        if base:
            self._base.enter(name)
        self._stack.append(self._frame(path + b"/", upper=upper, base=base, then=then))

    def _frame(
        self, prefix: bytes, *, upper: bool, base: bool, then: list[Difference] | None = None
    ) -> _Frame:
        opaque = upper and _is_opaque(self._upper.fd)
        found: set[bytes] = set()
        if upper:
            found.update(names(self._upper.fd))
        if base and (opaque or not upper):
            found.update(names(self._base.fd))
        return _Frame(prefix, upper, base, opaque, iter(sorted(found)), then or [])

    @staticmethod
    def _look(cursor: Cursor, name: bytes) -> Node | None:
        try:
            info = os.stat(name, dir_fd=cursor.fd, follow_symlinks=False)
        except FileNotFoundError:
            return None
        return Node(cursor.fd, name, info)


def _is_opaque(fd: int) -> bool:
    try:
        return os.getxattr(fd, _OPAQUE) == b"y"
    except OSError as error:
        if error.errno == errno.ENODATA:
            return False
        raise


def _kind(before: Node | None, after: Node | None) -> str | None:
    """How two entries that are no directories differ; None when they don't."""
    if before is None or after is None:
        return ADDED if after else DELETED if before else None
    if before.kind != after.kind:
        return TYPE_CHANGED
    try:
        if after.kind == stat.S_IFLNK:
            return None if before.link() == after.link() else MODIFIED
        same = before.mode == after.mode and before.info.st_size == after.info.st_size
        return None if same and _same_content(before, after) else MODIFIED
    except FileNotFoundError:  # it vanished while it was read
        return None


def _same_content(before: Node, after: Node) -> bool:
    old = before.open()
    try:
        new = after.open()
        try:
            while True:
                chunk = os.read(old, _CHUNK)
                if chunk != os.read(new, _CHUNK):
                    return False
                if not chunk:
                    return True
        finally:
            os.close(new)
    finally:
        os.close(old)
