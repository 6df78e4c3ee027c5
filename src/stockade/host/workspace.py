"""The attached workspace of one lease: its tree, its file tools, and what it has changed."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, Final

from stockade.host import leasemounts
from stockade.host.changes import Differences
from stockade.host.export import Export
from stockade.host.gitpatch import write_patch
from stockade.host.leftout import LeftOut
from stockade.host.mounts import MountHolder
from stockade.terms.fault import Code, failure
from stockade.terms.ports import Change, Files, GivenBack, LeaseTree

_DIRECTORY: Final = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


class LocalWorkspace:
    """Usable until its lease is reset or removed. Thread-safe: everything is read anew."""

    def __init__(self, tree: LeaseTree, files: Files, holder: MountHolder, base: str) -> None:
        self.tree: Final = tree
        self.files: Final = files
        self._holder = holder
        self._base = base

    def changes(self) -> Iterator[Change]:
        """Files and links that differ from the source; directories are not counted. One by one:
        260,000 paths of 4,000 bytes took 1 GB at once."""
        with self._reading(LeftOut()) as differences:
            for item in differences:
                if not item.directory:
                    yield Change(item.path, item.kind)

    def patch(self, out: BinaryIO) -> GivenBack:
        """See `stockade.host.gitpatch`. Raises Failure(workspace_unavailable)."""
        left_out = LeftOut()
        with self._reading(left_out) as differences:
            size = write_patch(differences, out, left_out)
        return GivenBack(size, left_out.count, left_out.lines())

    def export(self, target: str) -> GivenBack:
        """See `stockade.host.export`. Raises Failure: source_unusable, workspace_unavailable."""
        left_out = LeftOut()
        try:
            target_fd = os.open(target, _DIRECTORY)
        except (OSError, ValueError) as error:
            reason = error.strerror if isinstance(error, OSError) else str(error)
            raise failure(Code.SOURCE_UNUSABLE, f"the target can't be opened: {reason}") from error
        try:
            with self._reading(left_out) as differences:
                size = Export(target_fd, left_out).apply(differences)
            return GivenBack(size, left_out.count, left_out.lines())
        finally:
            os.close(target_fd)

    @contextmanager
    def _reading(self, left_out: LeftOut) -> Iterator[Differences]:
        upper = leasemounts.upper(self.tree.disk_path)
        fds: list[int] = []
        try:
            fds.append(self._holder.run(lambda: os.open(upper, _DIRECTORY)))
            fds.append(os.open(self._base, _DIRECTORY))
            yield Differences(fds[0], fds[1], left_out)
        except OSError as error:
            raise failure(
                Code.WORKSPACE_UNAVAILABLE, f"the changes can't be given back: {error.strerror}"
            ) from error
        finally:
            for fd in fds:
                os.close(fd)
