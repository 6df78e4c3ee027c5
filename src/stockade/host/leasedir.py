"""The directory of one lease on the host: where its parts are, how it is filled, and its boot mark.

    base      the source, copied once and never written again
    disk.img  everything the lease writes (stockade.host.disks)
    used      of a fork: bytes and inodes that the base takes from the lease's limits
    boot      the boot in which the two were last used

Nothing here is synced to the host's disk while it is used. As long as the kernel lives that loses
nothing, whoever dies. The mark is removed, after a sync, when the workspace is closed in good order;
a mark of another boot means that power was lost under an open workspace, which is refused for good.

A workspace that stays mounted for the next daemon is synced and marked as left. From then on the
image on the host's disk says that it is mounted, until the kernel unmounts it in good order: after a
reboot that tells an orderly end from a loss of power. The mark of a new use is synced, so that no
older one is believed.
"""

from __future__ import annotations

import errno
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.host.disks import Disks, unmounted
from stockade.host.forking import DiskShare, may_be_read, moved_ids
from stockade.host.space import SpaceCheck
from stockade.host.treecopy import TreeCopy, exclusion
from stockade.host.trees import names
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.plan import Limits
from stockade.terms.ports import SourceReport, Workspace, WorkspaceSpec

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC
_LEFT: Final = "left "
_FULL: Final = (errno.ENOSPC, errno.EDQUOT)
# What the walk meets where a name is gone or has become something else: EINVAL from readlink(2),
# ENXIO from open(2) of a socket, EAGAIN where a process inside holds a lease (fcntl(2)) on a file.
_CHANGED: Final = frozenset(
    (
        errno.ENOENT,
        errno.ENOTDIR,
        errno.ELOOP,
        errno.ESTALE,
        errno.EINVAL,
        errno.ENXIO,
        errno.EAGAIN,
    )
)


@dataclass(frozen=True, slots=True)
class LeaseDirectory:
    path: Path
    boot: str

    @property
    def base(self) -> str:
        return str(self.path / "base")

    @property
    def image(self) -> str:
        return str(self.path / "disk.img")

    @property
    def new_image(self) -> str:
        """A disk that a reset has made and not yet put in place."""
        return str(self.path / "disk.new")

    def fill(self, spec: WorkspaceSpec, space: SpaceCheck, avoid: tuple[int, int]) -> SourceReport:
        """Copy the source into `base.part`; `finish` makes it the base. `avoid` is the directory
        (device, inode) that no copy descends into. Raises Failure: source_unusable,
        storage_unavailable."""
        part = self.path / "base.part"
        part.mkdir()
        part.chmod(0o755)  # whose it is inside, the layer above says
        if spec.source is None:
            return SourceReport(0, 0, 0)
        try:
            source = os.open(spec.source, _DIRECTORY)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise failure(Code.SOURCE_UNUSABLE, f"the source can't be opened: {reason}") from error
        try:
            target = os.open(part, _DIRECTORY)
            try:
                copy = TreeCopy(
                    source,
                    target,
                    lambda _host_id: spec.uid_base,
                    excluded=exclusion(spec.excludes),
                    avoid=avoid,
                    check_space=space.take,
                )
                report = copy.run()
            finally:
                os.close(target)
        except OSError as error:
            if error.errno in _FULL:
                raise _host_full() from error
            raise failure(
                Code.SOURCE_UNUSABLE,
                f"the source can't be copied at {error.filename}: {error.strerror}",
            ) from error
        finally:
            os.close(source)
        return SourceReport(report.files, report.bytes, report.skipped)

    def fork(
        self, spec: WorkspaceSpec, space: SpaceCheck, origin: Workspace, read: Sequence[str]
    ) -> SourceReport:
        """Copy what the attached workspace `origin` holds below `read` into `base.part`. Raises
        Failure: disk_full, busy, storage_unavailable, workspace_unavailable."""
        taken = DiskShare(spec.limits, space)
        part, links = self.path / "base.part", self.path / "links"
        tree = origin.tree
        fds: list[int] = []
        try:
            for path in (part, links):
                path.mkdir(mode=0o755)
                fds.append(os.open(path, _DIRECTORY))
            fds.append(os.open("workspace", _DIRECTORY | os.O_NOFOLLOW, dir_fd=tree.root_fd))
            copy = TreeCopy(
                fds[2],
                fds[0],
                moved_ids(tree.uid_base, spec.uid_base),
                excluded=lambda path: not may_be_read(read, path),
                avoid=None,
                check_space=taken.data,
                check_entry=taken.entry,
                links_fd=fds[1],
            )
            report = copy.run()
            for name in names(fds[1]):
                os.unlink(name, dir_fd=fds[1])
            links.rmdir()
            self._used.write_text(f"{taken.bytes} {taken.inodes}")
        except OSError as error:
            if error.errno in _FULL:
                raise _host_full() from error
            if error.errno in _CHANGED:
                raise failure(
                    Code.BUSY, "the workspace was changed while it was copied", retry_after_ms=1000
                ) from error
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, f"the workspace can't be copied: {error.strerror}"
            ) from error
        finally:
            for fd in fds:
                os.close(fd)
        return SourceReport(report.files, report.bytes, report.skipped)

    def make_disk(self, disks: Disks, image: str, limits: Limits) -> None:
        """A disk of what the base leaves of the lease's limits. Raises
        Failure(storage_unavailable)."""
        try:
            used = [int(text) for text in self._used.read_text().split()]
        except FileNotFoundError:
            disks.create(image, limits.disk_bytes, limits.inodes)
            return
        disks.create(image, limits.disk_bytes - used[0], limits.inodes - used[1], common=False)

    def finish(self) -> None:
        """The last step of a create: a lease without `base` was never finished."""
        self._mark.write_text(self.boot)
        (self.path / "base.part").rename(self.base)

    def claim(self) -> None:
        """Mark it as used in this boot. Raises Failure(workspace_unavailable) for a lease that was
        never finished or that was open when power was lost."""
        if not os.path.exists(self.base):
            raise failure(Code.WORKSPACE_UNAVAILABLE, "the lease has no workspace on this host")
        try:
            known = self._mark.read_text()
        except FileNotFoundError:
            self._mark.write_text(self.boot)
            return
        if known == self.boot:
            return
        here = known == _LEFT + self.boot
        if not here and not (known.startswith(_LEFT) and unmounted(self.image)):
            raise failure(
                Code.WORKSPACE_UNAVAILABLE,
                "the host went down while the workspace was open; release the lease",
            )
        try:
            self._remark(self.boot)
            for path in (self._mark, self.path):
                _sync(path)
        except OSError as error:
            raise failure(
                Code.STORAGE_UNAVAILABLE, f"the workspace can't be marked: {error.strerror}"
            ) from error

    def leave(self) -> None:
        """It is synced and stays mounted for the next process. Raises OSError; it is as it was
        then, and only this boot may go on with it."""
        self._remark(_LEFT + self.boot)

    def settled(self) -> None:
        """Everything is unmounted and synced: the next boot may go on with it."""
        self._mark.unlink(missing_ok=True)

    def _remark(self, text: str) -> None:
        part = self.path / "boot.part"
        part.write_text(text)
        part.replace(self._mark)

    @property
    def _used(self) -> Path:
        return self.path / "used"

    @property
    def _mark(self) -> Path:
        return self.path / "boot"


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def _host_full() -> Failure:
    return failure(Code.STORAGE_UNAVAILABLE, "the host's disk is full; nothing was kept")
