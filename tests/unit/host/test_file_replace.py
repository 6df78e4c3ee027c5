from __future__ import annotations

import os
import signal
from collections.abc import Callable
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


def test_what_ends_an_edit_before_its_content_is_there_is_what_is_raised(
    here: tuple[int, Path],
) -> None:
    with pytest.raises(KeyError), Replacement(here[0], named=True):
        raise KeyError


@pytest.mark.parametrize("named", [False, True])
def test_content_on_its_way_is_for_nobody_else(here: tuple[int, Path], named: bool) -> None:
    """The file that it is to replace may be of one user inside, and closed to the others."""
    with Replacement(here[0], named=named) as replacement:
        replacement.write(b"new")
        assert os.fstat(replacement.fd).st_mode & 0o077 == 0


def written(path: Path) -> None:
    with open(path / "f", "r+b") as file:
        file.write(b"more than before")


def behind_a_link(path: Path) -> None:
    """What is asked for is then the right file, but by a name that a program inside chose."""
    os.rename(path / "f", path / "g")
    os.symlink("g", path / "f")


def made_anew(path: Path) -> None:
    os.rename(path / "f", path / "g")
    (path / "f").write_bytes(b"old")
    state = os.stat(path / "g")
    os.utime(path / "f", ns=(state.st_atime_ns, state.st_mtime_ns))


@pytest.mark.parametrize("change", [written, behind_a_link, made_anew])
def test_what_a_program_did_to_the_name_shows_when_it_is_displaced(
    here: tuple[int, Path], change: Callable[[Path], None]
) -> None:
    fd, path = here
    for changed in (False, True):
        with open(path / "f", "rb") as source, Replacement(fd) as replacement:
            state = os.fstat(source.fileno())
            if changed:
                change(path)
            replacement.write(b"new")
            replacement.stage()
            replacement.exchange(b"f")
            assert replacement.displaced(source.fileno(), state) is not changed
            replacement.exchange(b"f")


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
