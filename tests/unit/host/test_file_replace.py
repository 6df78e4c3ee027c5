from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host.file_replace import Replacement

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


@pytest.fixture
def here(tree: LeaseTree) -> tuple[int, Path]:
    (tree.workspace / "f").write_bytes(b"old")
    return os.open(tree.workspace, os.O_PATH), tree.workspace


@pytest.mark.parametrize("named", [False, True])
def test_installing_replaces_the_name_and_leaves_no_other(
    here: tuple[int, Path], named: bool
) -> None:
    fd, path = here
    with Replacement(fd, named=named) as replacement:
        replacement.write(b"new")
        assert (path / "f").read_bytes() == b"old"
        replacement.stage()
        replacement.install(b"f")
    assert (path / "f").read_bytes() == b"new"
    assert os.listdir(path) == ["f"]


@pytest.mark.parametrize("named", [False, True])
def test_an_error_leaves_the_old_file_and_no_name(here: tuple[int, Path], named: bool) -> None:
    fd, path = here

    def broken() -> None:
        with Replacement(fd, named=named) as replacement:
            replacement.write(b"new")
            raise KeyError

    with pytest.raises(KeyError):
        broken()
    assert (path / "f").read_bytes() == b"old"
    assert os.listdir(path) == ["f"]


@pytest.mark.parametrize("named", [False, True])
def test_a_daemon_killed_in_the_middle_leaves_no_name(here: tuple[int, Path], named: bool) -> None:
    """That is, before the edit is recorded and `stage` is called."""
    fd, path = here
    child = os.fork()
    if not child:
        source = os.open(path / "f", os.O_RDONLY)
        Replacement(fd, named=named).edited(b"new", source, os.fstat(source))
        os.kill(os.getpid(), signal.SIGKILL)
    assert os.WTERMSIG(os.waitpid(child, 0)[1]) == signal.SIGKILL
    assert (path / "f").read_bytes() == b"old"
    assert os.listdir(path) == ["f"]


def test_a_temporary_name_that_a_program_removed_is_no_error(here: tuple[int, Path]) -> None:
    fd, path = here
    with Replacement(fd, named=True) as replacement:
        replacement.write(b"new")
        (name,) = (name for name in os.listdir(path) if name != "f")
        os.unlink(path / name)
    assert os.listdir(path) == ["f"]


@pytest.mark.parametrize("named", [False, True])
def test_an_edits_content_has_the_metadata_of_the_old_and_the_name_of_the_edit(
    here: tuple[int, Path], named: bool
) -> None:
    fd, path = here
    (path / "f").chmod(0o640)
    os.chown(path / "f", 1234, 1235)
    with open(path / "f", "rb") as source, Replacement(fd, named=named) as replacement:
        replacement.edited(b"new", source.fileno(), os.fstat(source.fileno()))
        assert os.listdir(path) == ["f"]
        replacement.stage(b".stockade-edit-1")
        assert sorted(os.listdir(path)) == [".stockade-edit-1", "f"]
        replacement.install(b"f")
    state = os.stat(path / "f")
    assert (path / "f").read_bytes() == b"new"
    assert (state.st_uid, state.st_gid, state.st_mode & 0o7777) == (1234, 1235, 0o640)
