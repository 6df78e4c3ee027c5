"""From a container path to a descriptor, below a lease's root and nowhere else.

The root is a directory that holds exactly `workspace` and `tmp`, so that an absolute link means on
the host what it means inside. A tenant's programs may change everything below it at any moment, so
nothing is ever looked up by a path from the host's root, and no name is checked first and used
afterwards: a step yields a descriptor, and the next step starts from that descriptor.

Nearly all paths hold neither a link nor `..`. For these one openat2 of the parent, which refuses
every link, and one openat of the last name suffice, and the path as written is the path of what
was opened. Anything else is walked name by name with O_PATH | O_NOFOLLOW: a link is read through
its own descriptor and its target spliced into what is left to walk; an absolute target and a `..`
start again at the root with the names found so far, again refusing links. The walk holds two
descriptors at most, however deep a hostile path is, and ends after 40 links or 4,096 names.

Where a caller may look is asked before a name is opened. Outside of it a path that exists and one
that doesn't give the same answer, also in the middle of a path and behind a link.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from dataclasses import dataclass
from typing import Final, Self

from stockade.host.file_faults import explained
from stockade.host.openat2 import open_below
from stockade.terms.fault import Code, failure
from stockade.terms.pathname import MAX_PATH_BYTES, to_text

MAX_LINKS: Final = 40  # as the kernel: MAXSYMLINKS
MAX_STEPS: Final = 4096
_ROOTS: Final = (b"workspace", b"tmp")
_LOOK: Final = os.O_PATH | os.O_NOFOLLOW | os.O_CLOEXEC
_ENTER: Final = os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC

Visible = Callable[[bytes], bool]


@dataclass(slots=True)
class Resolved:
    """What a path leads to. A context manager that closes its descriptors.

    `path` is the absolute container path without links and dots. `fd` is an O_PATH descriptor of
    the object, and None where the last name is absent; `mode` its st_mode, 0 where absent.
    `parent_fd` is the directory that holds `name`, or, where directories are absent as well, the
    deepest one that exists; `missing` names those below it, outermost first.
    """

    parent_fd: int
    name: bytes
    path: bytes
    fd: int | None
    mode: int
    missing: tuple[bytes, ...] = ()

    def close(self) -> None:
        os.close(self.parent_fd)
        if self.fd is not None:
            os.close(self.fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


class LeaseRoot:
    """Resolves paths below `root_fd`, which stays the caller's to close. Thread-safe."""

    def __init__(self, root_fd: int) -> None:
        self._root_fd = root_fd

    def resolve(self, path: bytes, visible: Visible) -> Resolved:
        """Follow absolute `path` as a program inside would, the last link included.

        `visible` says of a container path whether the caller may look at it or at something below
        it. Raises Failure: outside_workspace, right_not_granted (not visible), not_found (a
        directory on the way is no directory, or a link leads in a circle), invalid_argument (NUL,
        over-long), busy (the path is being replaced all the time).
        """
        if not path.startswith(b"/") or b"\0" in path or len(path) > MAX_PATH_BYTES:
            raise failure(
                Code.INVALID_ARGUMENT,
                f"a path is absolute, has no NUL and at most {MAX_PATH_BYTES} bytes",
                argument="path",
            )
        names = _split(path)
        with explained(path):
            return self._direct(names, visible) or _Walk(self._root_fd, path, names, visible).run()

    def _direct(self, names: list[bytes], visible: Visible) -> Resolved | None:
        """The fast path; None where a link, a dot or an absent name asks for the walk."""
        if not names or names[0] not in _ROOTS or b".." in names or b"." in names:
            return None
        path = _join(names)
        if not visible(path):
            return None
        try:
            parent_fd = open_below(self._root_fd, b"/".join(names[:-1]) or b".", _ENTER)
        except OSError:
            return None  # the walk meets the same error and knows where
        try:
            fd = os.open(names[-1], _LOOK, dir_fd=parent_fd)
        except OSError:
            os.close(parent_fd)
            return None
        mode = os.fstat(fd).st_mode
        if stat.S_ISLNK(mode):
            os.close(fd)
            os.close(parent_fd)
            return None
        return Resolved(parent_fd, names[-1], path, fd, mode)


class _Walk:
    """One walk, name by name. `here_fd` is the directory of the names `found`."""

    def __init__(self, root_fd: int, path: bytes, names: list[bytes], visible: Visible) -> None:
        self._root_fd = root_fd
        self._asked = path
        self._visible = visible
        self._pending = names[::-1]
        self._found: list[bytes] = []
        self._links = 0
        self._here_fd = os.dup(root_fd)

    def run(self) -> Resolved:
        try:
            return self._run()
        except BaseException:
            os.close(self._here_fd)
            raise

    def _run(self) -> Resolved:
        for _ in range(MAX_STEPS):
            if not self._pending:
                return self._directory()
            name = self._pending.pop()
            if name == b".":
                continue
            if name == b"..":
                self._restart(self._found[:-1])
                continue
            self._admit(name)
            try:
                fd = os.open(name, _LOOK, dir_fd=self._here_fd)
            except FileNotFoundError:
                return self._absent(name)
            mode = os.fstat(fd).st_mode
            if stat.S_ISLNK(mode):
                self._follow(fd)
            elif not self._pending:
                return Resolved(self._here_fd, name, _join([*self._found, name]), fd, mode)
            elif stat.S_ISDIR(mode):
                os.close(self._here_fd)
                self._here_fd = fd
                self._found.append(name)
            else:
                os.close(fd)
                raise failure(
                    Code.NOT_FOUND, f"{self._shown()} leads through something that is no directory"
                )
        raise failure(Code.NOT_FOUND, f"{self._shown()} leads through too many directories")

    def _admit(self, name: bytes) -> None:
        """Refuse a name that the caller may not look at, before it is opened."""
        if not self._found and name not in _ROOTS:
            raise failure(
                Code.OUTSIDE_WORKSPACE, f"{self._shown()} leads outside /workspace and /tmp"
            )
        if not self._visible(_join([*self._found, name])):
            raise failure(
                Code.RIGHT_NOT_GRANTED,
                f"the capability does not cover {self._shown()} for reading",
                rule="scope.read",
            )

    def _follow(self, fd: int) -> None:
        """Splice the target of the link `fd` into what is left, and close it."""
        try:
            target = os.readlink(b"", dir_fd=fd)
        finally:
            os.close(fd)
        self._links += 1
        if self._links > MAX_LINKS:
            raise failure(Code.NOT_FOUND, f"{self._shown()} leads through too many links")
        if target.startswith(b"/"):
            self._restart([])
        self._pending.extend(reversed(_split(target)))

    def _restart(self, names: list[bytes]) -> None:
        """Go to the directory `names`, from the root. A link there now is a race: ELOOP."""
        fd = open_below(self._root_fd, b"/".join(names) or b".", _ENTER)
        os.close(self._here_fd)
        self._here_fd = fd
        self._found = names

    def _directory(self) -> Resolved:
        """The path ended in a dot: what it names is the directory that was reached."""
        if not self._found:
            raise failure(
                Code.OUTSIDE_WORKSPACE, f"{self._shown()} is the directory above the workspace"
            )
        *above, name = self._found
        path = _join(self._found)
        self._restart(above)
        fd = os.open(name, _LOOK | os.O_DIRECTORY, dir_fd=self._here_fd)
        return Resolved(self._here_fd, name, path, fd, os.fstat(fd).st_mode)

    def _absent(self, name: bytes) -> Resolved:
        rest = [name, *reversed(self._pending)]
        if b"." in rest or b".." in rest:
            raise failure(Code.NOT_FOUND, f"{self._shown()} does not exist")
        path = _join([*self._found, *rest])
        return Resolved(self._here_fd, rest[-1], path, None, 0, tuple(rest[:-1]))

    def _shown(self) -> str:
        return to_text(self._asked)


def _split(path: bytes) -> list[bytes]:
    """Names of a path; a slash at the end asks for a directory, as a dot does."""
    names = [name for name in path.split(b"/") if name]
    if path.endswith(b"/"):
        names.append(b".")
    return names


def _join(names: list[bytes]) -> bytes:
    return b"/" + b"/".join(names)
