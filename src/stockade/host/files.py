"""The file tools of one lease: where they may go, and in which order things are asked.

A path becomes a descriptor below the lease's root (paths); the authority to read or write is
checked on the path that the descriptor really has, before the file is opened; then the work is done
on descriptors. Outside of what the capability lets a caller read, what exists and what doesn't give
the same answer. `deny` goes before `write`, also for what does not exist, and a file can't be made
in place of a directory that leads to something denied.
"""

from __future__ import annotations

import errno
import hashlib
import os
import stat
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Final, TypeVar

from stockade.decide.authorize import FileRight, allowed_path, failed_on_path
from stockade.host.file_content import (
    BLOCK_BYTES,
    EXACT_BYTES,
    content_version,
    open_regular,
    require_regular,
    stat_version,
    version_at,
)
from stockade.host.file_edit import ATTEMPTS, edit_file, require_writable
from stockade.host.file_faults import explain, explained
from stockade.host.file_locks import FileLocks
from stockade.host.file_replace import Replacement, edit_name
from stockade.host.file_view import view_file
from stockade.host.paths import LeaseRoot, Resolved
from stockade.terms.call import EditOperation, ViewOperation
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import EditOutcome, ViewOutcome
from stockade.terms.pathname import absolute, to_bytes, to_text
from stockade.terms.ports import PathScope

FILE_MODE: Final = 0o644
DIRECTORY_MODE: Final = 0o755

_T = TypeVar("_T")


class LeaseFiles:
    """Implements `Files`. Thread-safe; `root_fd` stays the caller's to close.

    `locks` is shared by everything that edits this lease; what is made here belongs to
    `owner_uid`, as user and as group.
    """

    def __init__(self, root_fd: int, locks: FileLocks, owner_uid: int) -> None:
        self._root = LeaseRoot(root_fd)
        self._locks = locks
        self._owner = owner_uid

    def view(self, operation: ViewOperation, scope: PathScope) -> ViewOutcome:
        """Raises Failure: as `LeaseRoot.resolve` and `view_file`."""

        def work(resolved: Resolved) -> ViewOutcome:
            fd, state = open_regular(resolved)
            try:
                return view_file(fd, state, resolved.path, operation)
            finally:
                os.close(fd)

        return self._on(operation.path, scope, "read", work)

    def edit(
        self,
        operation: EditOperation,
        scope: PathScope,
        before: Callable[[EditOutcome], None] = lambda outcome: None,
    ) -> EditOutcome:
        """Raises Failure: as `LeaseRoot.resolve` and `edit_file`; no_change, invalid_argument
        (an empty old text)."""
        if not operation.old:
            raise failure(Code.INVALID_ARGUMENT, "old_str is empty", argument="old_str")
        if operation.old == operation.new:
            raise failure(Code.NO_CHANGE, "old_str and new_str are equal")

        def work(resolved: Resolved) -> EditOutcome:
            with self._locks.hold(resolved.path):
                return edit_file(resolved, operation, before)

        return self._on(operation.path, scope, "write", work)

    def tidy(self, edit: EditOutcome, scope: PathScope) -> None:
        """Remove the temporary name of an edit that was cut off, if what has it is one of the two
        files of the edit as they were: a program may have written to the old one since, and no
        program's write is lost. Also a file of the daemon's own user, which nothing inside can
        make: the new content, not yet whole. Raises Failure: as `LeaseRoot.resolve`."""

        def work(resolved: Resolved) -> None:
            name, parent_fd = edit_name(edit), resolved.parent_fd
            with self._locks.hold(resolved.path), suppress(FileNotFoundError):
                state = os.stat(name, dir_fd=parent_fd, follow_symlinks=False)
                ours = stat.S_ISREG(state.st_mode) and state.st_uid == os.geteuid()
                if ours or version_at(parent_fd, name) in (edit.old_version, edit.new_version):
                    os.unlink(name, dir_fd=parent_fd)

        self._on(edit.path, scope, "write", work)

    def look(self, path: str, scope: PathScope) -> None:
        """Raises Failure: as `LeaseRoot.resolve`; not_found; not_a_regular_file for what is
        neither a regular file nor a directory. Opens nothing."""
        with self._locate(path, scope, "read") as resolved:
            if resolved.fd is None:
                raise failure(Code.NOT_FOUND, f"{to_text(resolved.path)} does not exist")
            if not stat.S_ISDIR(resolved.mode):
                require_regular(resolved.mode, resolved.path)

    def read(self, path: str, scope: PathScope) -> tuple[int, Iterator[bytes]]:
        """Size and content of a regular file; the iterator gives exactly that many bytes, or
        raises Failure(version_conflict) when the file has become shorter."""

        def work(resolved: Resolved) -> tuple[int, Iterator[bytes]]:
            fd, state = open_regular(resolved)
            return state.st_size, _Content(fd, state.st_size, resolved.path)

        return self._on(path, scope, "read", work)

    def write(self, path: str, content: Iterator[bytes], scope: PathScope) -> str:
        """Create the file with mode 0644, or replace it and keep its metadata. Directories on the
        way are made with mode 0755. Nothing is seen of it before all content came; what
        `content` raises ends it without a trace. Gives the new version."""

        # `content` can be consumed once, so a target that turned into a link is not tried again.
        with self._locate(path, scope, "write") as resolved, explained(resolved.path):
            _refuse_above_deny(to_text(resolved.path), scope)
            return self._write(resolved, content)

    def _write(self, resolved: Resolved, content: Iterator[bytes]) -> str:
        if resolved.fd is not None:
            require_regular(resolved.mode, resolved.path)
        parent_fd = self._make_parents(resolved)
        try:
            with Replacement(parent_fd) as replacement:
                digest = hashlib.sha256()
                size = 0
                for block in content:
                    replacement.write(block)
                    digest.update(block)
                    size += len(block)
                with self._locks.hold(resolved.path):
                    self._dress(replacement, resolved)
                    replacement.stage()
                    replacement.install(resolved.name)
                    state = os.fstat(replacement.fd)
        finally:
            os.close(parent_fd)
        return stat_version(state) if size > EXACT_BYTES else content_version(digest.digest())

    def _dress(self, replacement: Replacement, resolved: Resolved) -> None:
        if resolved.fd is None:
            replacement.set_new(self._owner, self._owner, FILE_MODE)
            return
        fd, state = open_regular(resolved)
        try:
            require_writable(state, resolved.path)
            replacement.copy_metadata(fd, state)
        finally:
            os.close(fd)

    def _make_parents(self, resolved: Resolved) -> int:
        """A descriptor of the directory that is to hold the file; the caller closes it."""
        here_fd = os.dup(resolved.parent_fd)
        try:
            for name in resolved.missing:
                next_fd = self._make_directory(here_fd, name)
                os.close(here_fd)
                here_fd = next_fd
        except BaseException:
            os.close(here_fd)
            raise
        return here_fd

    def _make_directory(self, parent_fd: int, name: bytes) -> int:
        try:
            os.mkdir(name, DIRECTORY_MODE, dir_fd=parent_fd)
        except FileExistsError:
            made = False
        else:
            made = True
        flags = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
        fd = os.open(name, flags, dir_fd=parent_fd)
        # Nothing inside can make a directory of the daemon's own user: what has another owner
        # was put there by a program since, and keeps its owner.
        if made and os.fstat(fd).st_uid == os.geteuid():
            os.fchown(fd, self._owner, self._owner)
            os.fchmod(fd, DIRECTORY_MODE)
        return fd

    def _on(
        self, path: str, scope: PathScope, right: FileRight, work: Callable[[Resolved], _T]
    ) -> _T:
        """Resolve, check and work; again when a link took the file's place in between (ELOOP)."""
        left = ATTEMPTS
        while True:
            left -= 1
            with self._locate(path, scope, right) as resolved:
                try:
                    return work(resolved)
                except OSError as error:
                    if error.errno != errno.ELOOP or not left:
                        raise explain(error, resolved.path) from error

    def _locate(self, path: str, scope: PathScope, right: FileRight) -> Resolved:
        try:
            raw = absolute(to_bytes(path))
        except ValueError as error:
            raise failure(Code.INVALID_ARGUMENT, str(error), argument="path") from error
        resolved = self._root.resolve(raw, lambda at: _visible(at, scope))
        try:
            _authorize(to_text(resolved.path), scope, right)
        except Failure:
            resolved.close()
            raise
        return resolved


class _Content:
    """An iterator over a file that closes it at the end, on `close`, or when it is dropped."""

    def __init__(self, fd: int, size: int, path: bytes) -> None:
        self._file = open(fd, "rb", buffering=0)  # noqa: SIM115 - lives as long as the iterator
        self._left = size
        self._path = path

    def __iter__(self) -> Iterator[bytes]:
        return self

    def __next__(self) -> bytes:
        if not self._left:
            self.close()
            raise StopIteration
        with explained(self._path):
            block = self._file.read(min(BLOCK_BYTES, self._left))
        if not block:
            self.close()
            raise failure(
                Code.VERSION_CONFLICT, f"{to_text(self._path)} became shorter while it was read"
            )
        self._left -= len(block)
        return block

    def close(self) -> None:
        self._file.close()

    def __del__(self) -> None:
        self.close()


def _visible(path: bytes, scope: PathScope) -> bool:
    """Readable, or on the way to something readable. Decided by as many names as the longest
    prefix has: a walk asks for every directory of a path that may have two thousand."""
    depth = max((prefix.count("/") for prefix in scope.read), default=1)
    text = to_text(b"/".join(path.split(b"/", depth + 1)[: depth + 1]))
    if allowed_path(scope, text, "read"):
        return True
    return any(prefix.startswith(text + "/") for prefix in scope.read)


def _authorize(path: str, scope: PathScope, right: FileRight) -> None:
    """Raises Failure(right_not_granted) with the component that decided, Failure(check_failed)."""
    if not allowed_path(scope, path, "read"):
        raise _not_granted(path, "read", "scope.read")
    if right == "write" and not allowed_path(scope, path, "write"):
        denied = allowed_path(replace(scope, deny=()), path, "write")
        raise _not_granted(path, "write", "deny" if denied else "scope.write")
    failed = failed_on_path(scope, path)
    if failed is not None:
        raise failed


def _refuse_above_deny(path: str, scope: PathScope) -> None:
    if any(denied.startswith(path + "/") for denied in scope.deny):
        raise _not_granted(path, "write", "deny")


def _not_granted(path: str, right: FileRight, rule: str) -> Failure:
    verb = {"read": "reading", "write": "writing"}[right]
    words = "denies" if rule == "deny" else "does not cover"
    return failure(Code.RIGHT_NOT_GRANTED, f"the capability {words} {path} for {verb}", rule=rule)
