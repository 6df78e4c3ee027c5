"""Workspaces as plain directories: no mounts, no limits, no sandbox that could write into them.

Below the directory of a lease, `base` is the copied source and `tree` what would be mounted. It
behaves like the real one as far as leases and file tools see it, and only the test itself puts
files into it: it uses paths where the real one must not.
"""

from __future__ import annotations

import difflib
import os
import shutil
import stat
from collections.abc import Callable, Iterator, Sequence
from collections.abc import Set as AbstractSet
from typing import BinaryIO

from stockade.host.forking import may_be_read
from stockade.terms.fault import Code, failure
from stockade.terms.ports import Change, Files, GivenBack, LeaseTree, SourceReport, WorkspaceSpec
from stockade.testing.faults import Point, unarmed


class FakeWorkspace:
    """Implements `terms.ports.Workspace`."""

    def __init__(self, tree: LeaseTree, base: str, files: Files) -> None:
        self._tree = tree
        self._base = base
        self._files = files

    @property
    def tree(self) -> LeaseTree:
        return self._tree

    @property
    def files(self) -> Files:
        return self._files

    def changes(self) -> Iterator[Change]:
        old, new = _entries(self._base), _entries(self._top)
        for name in sorted({*old, *new}):
            if name not in old:
                kind = "added"
            elif name not in new:
                kind = "deleted"
            elif stat.S_IFMT(old[name][0]) != stat.S_IFMT(new[name][0]):
                kind = "type_changed"
            elif old[name] != new[name]:
                kind = "modified"
            else:
                continue
            yield Change(os.fsencode(name), kind)

    def patch(self, out: BinaryIO) -> GivenBack:
        size, skipped = 0, []
        for change in self.changes():
            name = os.fsdecode(change.path)
            old, new = _lines(self._base, name), _lines(self._top, name)
            if old is None and new is None:
                skipped.append(name)
                continue
            before = "/dev/null" if old is None else f"a/{name}"
            after = "/dev/null" if new is None else f"b/{name}"
            lines = difflib.unified_diff(old or [], new or [], before, after)
            size += out.write(f"diff --git a/{name} b/{name}\n{''.join(lines)}".encode())
        return GivenBack(size, len(skipped), tuple(skipped))

    def export(self, target: str) -> GivenBack:
        size = 0
        for change in self.changes():
            name = os.fsdecode(change.path)
            place, source = os.path.join(target, name), os.path.join(self._top, name)
            _remove(place)
            if os.path.isdir(source) and not os.path.islink(source):
                os.makedirs(place, exist_ok=True)
            elif os.path.lexists(source):
                os.makedirs(os.path.dirname(place), exist_ok=True)
                shutil.copy2(source, place, follow_symlinks=False)
                size += os.lstat(place).st_size
        return GivenBack(size, 0, ())

    @property
    def _top(self) -> str:
        return os.path.join(self._tree.path, "workspace")


class FakeWorkspaces:
    """Implements `terms.ports.Workspaces`. Points: workspaces.create, workspaces.fork,
    workspaces.reset and workspaces.remove before the step, the same with `.half` in its middle."""

    def __init__(
        self, directory: str, new_files: Callable[[int, int], Files], point: Point = unarmed
    ) -> None:
        """`new_files(root_fd, owner_uid)` makes the file tools of a tree; the real ones work on a
        plain directory."""
        self.directory = directory
        self._new_files = new_files
        self._point = point
        self._attached: dict[str, FakeWorkspace] = {}
        os.makedirs(directory, exist_ok=True)

    def create(self, spec: WorkspaceSpec) -> SourceReport:
        self._point("workspaces.create")
        base = self._path(spec.lease_id, "base")
        if spec.source is not None and not os.path.isdir(spec.source):
            raise failure(Code.SOURCE_UNUSABLE, f"{spec.source} is no directory")
        os.makedirs(base)
        self._point("workspaces.create.half")
        skipped = 0 if spec.source is None else _copy(spec.source, base, spec.excludes)
        self._fill(spec.lease_id)
        entries = _entries(base).values()
        sizes = [len(data) for mode, data in entries if stat.S_ISREG(mode)]
        return SourceReport(files=len(sizes), bytes=sum(sizes), skipped=skipped)

    def fork(self, spec: WorkspaceSpec, origin: WorkspaceSpec, read: Sequence[str]) -> SourceReport:
        self._point("workspaces.fork")
        top = os.path.join(self.attach(origin).tree.path, "workspace")
        base = self._path(spec.lease_id, "base")
        os.makedirs(base)
        self._point("workspaces.fork.half")
        skipped = _copy(top, base, (), lambda path: may_be_read(read, path))
        self._fill(spec.lease_id)
        sizes = [len(data) for mode, data in _entries(base).values() if stat.S_ISREG(mode)]
        if sum(sizes) > spec.limits.disk_bytes:
            _remove(self._path(spec.lease_id))
            raise failure(Code.DISK_FULL, "the copy does not fit the disk", rule="per_lease")
        return SourceReport(files=len(sizes), bytes=sum(sizes), skipped=skipped)

    def attach(self, spec: WorkspaceSpec) -> FakeWorkspace:
        found = self._attached.get(spec.lease_id)
        if found is not None:
            return found
        path = self._path(spec.lease_id, "tree")
        if not os.path.isdir(path):
            raise failure(Code.WORKSPACE_UNAVAILABLE, "the workspace has gone")
        root = os.open(path, os.O_PATH | os.O_DIRECTORY | os.O_CLOEXEC)
        tree = LeaseTree(
            spec.lease_id, spec.uid_base, root, path, self._path(spec.lease_id), spec.limits
        )
        files = self._new_files(root, spec.uid_base)
        made = FakeWorkspace(tree, self._path(spec.lease_id, "base"), files)
        self._attached[spec.lease_id] = made
        return made

    def reset(self, spec: WorkspaceSpec) -> FakeWorkspace:
        self._point("workspaces.reset")
        self._detach(spec.lease_id)
        _remove(self._path(spec.lease_id, "tree"))
        self._point("workspaces.reset.half")
        self._fill(spec.lease_id)
        return self.attach(spec)

    def remove(self, lease_id: str) -> None:
        self._point("workspaces.remove")
        self._detach(lease_id)
        _remove(self._path(lease_id, "tree"))
        self._point("workspaces.remove.half")
        _remove(self._path(lease_id))

    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]:
        for lease_id in os.listdir(self.directory):
            if lease_id not in live:
                self.remove(lease_id)
        return ()

    def close(self) -> None:
        for lease_id in list(self._attached):
            self._detach(lease_id)

    def _fill(self, lease_id: str) -> None:
        os.makedirs(self._path(lease_id, "tree", "tmp"))
        _copy(self._path(lease_id, "base"), self._path(lease_id, "tree", "workspace"), ())

    def _detach(self, lease_id: str) -> None:
        found = self._attached.pop(lease_id, None)
        if found is not None:
            os.close(found.tree.root_fd)

    def _path(self, *parts: str) -> str:
        return os.path.join(self.directory, *parts)


def _copy(
    source: str,
    target: str,
    excludes: tuple[str, ...],
    wanted: Callable[[bytes], bool] = lambda path: True,
) -> int:
    """Gives how many sockets, devices and FIFOs were left out. `wanted` takes a path relative to
    the source."""
    skipped = 0
    excluded = shutil.ignore_patterns(*excludes)

    def ignore(directory: str, names: list[str]) -> set[str]:
        nonlocal skipped
        out = set(excluded(directory, names))
        for name in names:
            place = os.path.join(directory, name)
            if not wanted(os.fsencode(os.path.relpath(place, source))):
                out.add(name)
            mode = os.lstat(place).st_mode
            if not (stat.S_ISREG(mode) or stat.S_ISDIR(mode) or stat.S_ISLNK(mode)):
                skipped += name not in out
                out.add(name)
        return out

    shutil.copytree(source, target, symlinks=True, ignore=ignore, dirs_exist_ok=True)
    return skipped


def _entries(top: str) -> dict[str, tuple[int, bytes]]:
    """Relative path -> mode and content of everything below `top`."""
    found = {}
    for directory, folders, names in os.walk(top):
        for name in folders + names:
            path = os.path.join(directory, name)
            mode = os.lstat(path).st_mode
            data = b""
            if stat.S_ISLNK(mode):
                data = os.fsencode(os.readlink(path))
            elif stat.S_ISREG(mode):
                with open(path, "rb") as file:
                    data = file.read()
            found[os.path.relpath(path, top)] = (mode, data)
    return found


def _lines(top: str, name: str) -> list[str] | None:
    path = os.path.join(top, name)
    if os.path.islink(path) or not os.path.isfile(path):
        return None
    with open(path, encoding="utf-8", errors="replace", newline="") as file:
        return file.read().splitlines(keepends=True)


def _remove(path: str) -> None:
    if os.path.isdir(path) and not os.path.islink(path):
        shutil.rmtree(path)
    elif os.path.lexists(path):
        os.unlink(path)
