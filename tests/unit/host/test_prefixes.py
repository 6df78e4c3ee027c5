from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host import prefixes
from stockade.terms.fault import Code, Failure

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


@pytest.fixture
def root(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    (tmp_path / "workspace").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    before = os.listdir("/proc/self/fd")
    yield fd, tmp_path
    assert os.listdir("/proc/self/fd") == before
    os.close(fd)


def test_missing_directories_are_made_for_the_owner(root: tuple[int, Path]) -> None:
    fd, path = root
    prefixes.ensure(fd, "/workspace/a/b", 4242)
    prefixes.ensure(fd, "/workspace/a/b", 4242)
    assert (path / "workspace/a/b").stat().st_uid == 4242
    assert (path / "workspace").stat().st_uid == 0


@pytest.mark.parametrize("where", ["a", "a/b"])
def test_symlink_is_refused(root: tuple[int, Path], where: str) -> None:
    fd, path = root
    (path / "workspace" / where).parent.mkdir(exist_ok=True)
    (path / "outside").mkdir()
    (path / "workspace" / where).symlink_to(path / "outside")
    with pytest.raises(Failure) as caught:
        prefixes.ensure(fd, "/workspace/a/b", 4242)
    assert caught.value.fault.code is Code.UNENFORCEABLE
    assert os.listdir(path / "outside") == []


def test_file_stands_for_a_denied_path_at_it_or_below_it(root: tuple[int, Path]) -> None:
    fd, path = root
    (path / "workspace/f").write_text("x")
    assert prefixes.ensure(fd, "/workspace/f", 1, denied=True) == "/workspace/f"
    assert prefixes.ensure(fd, "/workspace/f/g", 1, denied=True) == "/workspace/f"
    assert prefixes.ensure(fd, "/workspace/d/g", 1, denied=True) == "/workspace/d/g"
    for granted in ("/workspace/f", "/workspace/f/g"):
        with pytest.raises(Failure):
            prefixes.ensure(fd, granted, 1)


def test_what_can_not_be_made_is_never_taken_for_held(tree: LeaseTree) -> None:
    def ensure(path: str) -> Code:
        with pytest.raises(Failure) as caught:
            prefixes.ensure(tree.root_fd, path, tree.owner, denied=True)
        return caught.value.fault.code

    assert ensure("/tmp/" + "x" * 300) is Code.UNENFORCEABLE
    options = f"remount,nr_inodes={len(os.listdir(tree.tmp)) + 1}"
    subprocess.run(["mount", "-o", options, str(tree.tmp)], check=True)
    assert ensure("/tmp/no/room") is Code.DISK_FULL


def test_odd_names_are_read_as_they_are_shown(root: tuple[int, Path]) -> None:
    fd, path = root
    prefixes.ensure(fd, r"/workspace/a\xff", 1)
    assert os.listdir(os.fsencode(path / "workspace")) == [b"a\xff"]
