from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.host import prefixes
from stockade.terms.fault import Code, Failure


@pytest.fixture
def root(tmp_path: Path) -> Iterator[tuple[int, Path]]:
    (tmp_path / "workspace").mkdir()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    yield fd, tmp_path
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
    (path / "workspace" / where).symlink_to("/etc")
    with pytest.raises(Failure) as caught:
        prefixes.ensure(fd, "/workspace/a/b", 4242)
    assert caught.value.fault.code is Code.UNENFORCEABLE
    assert not Path("/etc/b").exists()


def test_file_stands_for_a_denied_path_at_it_or_below_it(root: tuple[int, Path]) -> None:
    fd, path = root
    (path / "workspace/f").write_text("x")
    assert prefixes.ensure(fd, "/workspace/f", 1, denied=True) == "/workspace/f"
    assert prefixes.ensure(fd, "/workspace/f/g", 1, denied=True) == "/workspace/f"
    assert prefixes.ensure(fd, "/workspace/d/g", 1, denied=True) == "/workspace/d/g"
    for granted in ("/workspace/f", "/workspace/f/g"):
        with pytest.raises(Failure):
            prefixes.ensure(fd, granted, 1)


def test_odd_names_are_read_as_they_are_shown(root: tuple[int, Path]) -> None:
    fd, path = root
    prefixes.ensure(fd, r"/workspace/a\xff", 1)
    assert os.listdir(os.fsencode(path / "workspace")) == [b"a\xff"]
