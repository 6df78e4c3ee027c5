"""One suite for the workspaces of this host and for the fake."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.host.clocks import current_boot
from stockade.host.file_locks import FileLocks
from stockade.host.files import LeaseFiles
from stockade.host.mounts import MountHolder
from stockade.host.workspaces import LocalWorkspaces
from stockade.terms.ports import Files
from stockade.testing.fake_workspaces import FakeWorkspaces
from stockade.testing.workspace_conformance import CHECKS, Place
from tests.worlds import spec_for

SPEC = spec_for("ls_00000000000000a0")


def name_of(check: Callable[[Place], None]) -> str:
    return check.__name__


def files(root_fd: int, owner: int) -> Files:
    return LeaseFiles(root_fd, FileLocks(), owner)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_local(check: Callable[[Place], None], tmp_path: Path) -> None:
    holder = MountHolder(tmp_path / "mounts")
    workspaces = LocalWorkspaces(tmp_path, holder, files, boot=current_boot(), reserve_bytes=0)
    try:
        check(Place(workspaces, SPEC))
    finally:
        workspaces.close()
        holder.close()


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_fake(check: Callable[[Place], None], tmp_path: Path) -> None:
    workspaces = FakeWorkspaces(str(tmp_path), files)
    try:
        check(Place(workspaces, SPEC))
    finally:
        workspaces.close()
