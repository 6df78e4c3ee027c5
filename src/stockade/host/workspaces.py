"""Workspaces of this host: a directory (stockade.host.leasedir) and mounts for each lease.

A reset swaps the disk for a fresh one and remounts, so it costs the same for ten files and for
twenty thousand; the old disk is taken apart by the trash's thread. The mounts live in the mount
holder and vanish with the process; `attach` makes them again from the base and the disk image. Where
the holder's namespace is an earlier process's, what that one has mounted is taken back as it is.

One lock for each lease. Whoever resets or removes a lease has seen to it that no call of it is
running: the descriptors of the old tree are closed.
"""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence, Set
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from stockade.host import disks, leasemounts, syscalls
from stockade.host.leasedir import LeaseDirectory
from stockade.host.mounts import MountHolder
from stockade.host.space import SpaceCheck
from stockade.host.trash import Trash
from stockade.host.workspace import LocalWorkspace
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.ids import is_lease_id
from stockade.terms.ports import Files, LeaseTree, SourceReport, WorkspaceSpec

_log = logging.getLogger(__name__)

DEFAULT_RESERVE_BYTES: Final = 1 << 30


@dataclass(slots=True)
class _Entry:
    lock: threading.Lock = field(default_factory=threading.Lock)
    workspace: LocalWorkspace | None = None
    mounted: leasemounts.Mounted | None = None
    # Its disk was made by this process and never mounted.
    fresh: bool = False


class LocalWorkspaces:
    """`new_files(root_fd, owner_uid)` makes the file tools of a mounted lease. `boot` is
    `clocks.current_boot()`. Nothing is created or reset while fewer than `reserve_bytes` are free
    on the state directory's file system."""

    def __init__(
        self,
        state_dir: Path,
        holder: MountHolder,
        new_files: Callable[[int, int], Files],
        *,
        boot: str,
        reserve_bytes: int = DEFAULT_RESERVE_BYTES,
    ) -> None:
        self._leases = state_dir / "leases"
        self._leases.mkdir(mode=0o700, parents=True, exist_ok=True)
        info = os.stat(state_dir)
        self._own = (info.st_dev, info.st_ino)
        self._holder = holder
        self._new_files = new_files
        self._boot = boot
        self._reserve_bytes = reserve_bytes
        self._disks = disks.Disks(state_dir / "disks")
        self._trash = Trash(state_dir / "trash")
        self._guard = threading.Lock()
        self._entries: dict[str, _Entry] = {}
        if holder.inherited:
            found = holder.run(
                lambda: leasemounts.take_back(holder, lambda name: self._directory(name).image)
            )
            self._entries = {name: _Entry(mounted=mounted) for name, mounted in found.items()}

    def create(self, spec: WorkspaceSpec) -> SourceReport:
        """Copy the source and make the disk. Raises Failure: source_unusable,
        storage_unavailable; nothing is left then. The id must be new."""
        return self._create(spec, lambda directory, space: directory.fill(spec, space, self._own))

    def fork(self, spec: WorkspaceSpec, origin: WorkspaceSpec, read: Sequence[str]) -> SourceReport:
        """See `terms.ports.Workspaces`. Nobody resets or removes the origin meanwhile."""
        attached = self.attach(origin)
        return self._create(
            spec, lambda directory, space: directory.fork(spec, space, attached, read)
        )

    def _create(
        self,
        spec: WorkspaceSpec,
        fill: Callable[[LeaseDirectory, SpaceCheck], SourceReport],
    ) -> SourceReport:
        directory = self._directory(spec.lease_id)
        entry = self._entry(spec.lease_id)
        with entry.lock:
            space = SpaceCheck(str(self._leases), self._reserve_bytes)
            try:
                directory.path.mkdir(mode=0o700)
            except OSError as error:
                raise failure(
                    Code.STORAGE_UNAVAILABLE, f"the workspace can't be made: {error.strerror}"
                ) from error
            try:
                report = fill(directory, space)
                directory.make_disk(self._disks, directory.image, spec.limits)
                directory.finish()
                entry.fresh = True
            except BaseException:
                self._trash.take(str(directory.path))
                self._trash.later()
                raise
            return report

    def attach(self, spec: WorkspaceSpec) -> LocalWorkspace:
        """Raises Failure(workspace_unavailable)."""
        entry = self._entry(spec.lease_id)
        with entry.lock:
            if entry.workspace is not None:
                return entry.workspace
            if entry.mounted is not None:
                self._directory(spec.lease_id).claim()
                return self._open(spec, entry, entry.mounted)
            fresh, entry.fresh = entry.fresh, False
            return self._mount(spec, entry, fresh=fresh)

    def reset(self, spec: WorkspaceSpec) -> LocalWorkspace:
        """Raises Failure: workspace_unavailable, storage_unavailable. May be repeated."""
        directory = self._directory(spec.lease_id)
        entry = self._entry(spec.lease_id)
        with entry.lock:
            directory.claim()
            SpaceCheck(str(self._leases), self._reserve_bytes)
            if os.path.exists(directory.new_image):  # left by a reset that was interrupted
                os.unlink(directory.new_image)
            directory.make_disk(self._disks, directory.new_image, spec.limits)
            bury = self._drop(entry)
            if os.path.exists(directory.image):
                self._trash.take(directory.image)
            os.rename(directory.new_image, directory.image)
            workspace = self._mount(spec, entry, fresh=True)
            self._trash.later(bury)
            return workspace

    def remove(self, lease_id: str) -> None:
        """Take the lease's workspace away; its files are removed in the background, and what can't
        be removed is named by `sweep`. An absent one is fine."""
        directory = self._directory(lease_id)
        entry = self._entry(lease_id)
        with entry.lock:
            bury = self._drop(entry)
            if directory.path.exists():
                self._trash.take(str(directory.path))
            self._trash.later(bury)
        with self._guard:
            self._entries.pop(lease_id, None)

    def sweep(self, live: Set[str]) -> tuple[str, ...]:
        """Remove what belongs to no lease of `live`, and what earlier removals left; gives a line
        for what could not be removed. A lease is in `live` before its `create` begins."""
        left: list[str] = []
        for name in sorted(set(os.listdir(self._leases)) - live):
            try:
                self.remove(name)
            except Failure as fault:
                left.append(f"leases/{name}: {fault.fault.message}")
        return (*left, *self._trash.later().result())

    def close(self, keep: Set[str] = frozenset()) -> None:
        """Unmount everything in good order and finish removals; the leases stay. What the holder is
        to hand to the next process, because sandboxes use it, stays mounted: the leases to `keep`.
        Idempotent."""
        with self._guard:
            entries, self._entries = self._entries, {}
        unmounted: list[LeaseDirectory] = []
        kept: list[LeaseDirectory] = []
        for lease_id, entry in entries.items():
            with entry.lock:
                directory = self._directory(lease_id)
                if lease_id in keep:
                    if entry.mounted is not None:
                        os.close(entry.mounted.root_fd)
                        kept.append(directory)
                    continue
                if entry.mounted is not None and self._release(entry):
                    unmounted.append(directory)
        if unmounted or kept:
            syscalls.syncfs(str(self._leases))
        for directory in unmounted:
            directory.settled()
        for directory in kept:
            try:
                directory.leave()
            except OSError as error:
                _log.warning("%s is lost by a reboot: %s", directory.path.name, error)
        self._trash.close()

    def _entry(self, lease_id: str) -> _Entry:
        with self._guard:
            found = self._entries.get(lease_id)
            if found is None:
                self._directory(lease_id)  # which refuses what is no lease's id
                found = self._entries[lease_id] = _Entry()
            return found

    def _directory(self, lease_id: str) -> LeaseDirectory:
        if not is_lease_id(lease_id):
            raise failure(Code.INVALID_ARGUMENT, "this is not a lease id")
        return LeaseDirectory(self._leases / lease_id, self._boot)

    def _mount(self, spec: WorkspaceSpec, entry: _Entry, *, fresh: bool) -> LocalWorkspace:
        directory = self._directory(spec.lease_id)
        directory.claim()
        try:
            mounted = self._holder.run(
                lambda: leasemounts.mount(
                    self._holder,
                    spec.lease_id,
                    directory.image,
                    directory.base,
                    owner=spec.uid_base,
                    tmp_bytes=spec.tmp_bytes,
                    fresh=fresh,
                )
            )
        except OSError as error:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, f"the workspace can't be mounted: {error.strerror}"
            ) from error
        return self._open(spec, entry, mounted)

    def _open(
        self, spec: WorkspaceSpec, entry: _Entry, mounted: leasemounts.Mounted
    ) -> LocalWorkspace:
        entry.mounted = mounted
        directory = self._directory(spec.lease_id)
        try:
            files = self._new_files(mounted.root_fd, spec.uid_base)
        except BaseException:
            leasemounts.let_go(self._take_down(entry))
            raise
        tree = LeaseTree(
            spec.lease_id,
            spec.uid_base,
            mounted.root_fd,
            mounted.root,
            mounted.disk,
            spec.limits,
        )
        entry.workspace = LocalWorkspace(tree, files, self._holder, directory.base)
        return entry.workspace

    def _take_down(self, entry: _Entry) -> list[int]:
        mounted, entry.mounted, entry.workspace = entry.mounted, None, None
        if mounted is None:
            return []
        try:
            return self._holder.run(lambda: leasemounts.take_down(mounted))
        except OSError as error:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, f"the workspace can't be unmounted: {error.strerror}"
            ) from error

    def _drop(self, entry: _Entry) -> Callable[[], None] | None:
        """Detach a disk that is never used again; gives what is left to do in the background."""
        mounted = entry.mounted
        if mounted is None:
            return None
        held = self._take_down(entry)

        def bury() -> None:
            try:
                disks.shut_down(held[-1])
            except OSError as error:  # then its unmount writes what it holds: slower, and harmless
                _log.warning("a disk was not shut down: %s", error.strerror)
            leasemounts.let_go(held)
            leasemounts.await_release(mounted)

        return bury

    def _release(self, entry: _Entry) -> bool:
        """Unmount a disk that is to be used again; True when nothing holds it any more."""
        mounted = entry.mounted
        assert mounted is not None
        leasemounts.let_go(self._take_down(entry))
        return leasemounts.await_release(mounted)
