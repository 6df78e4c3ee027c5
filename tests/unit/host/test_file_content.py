"""What happens between resolving a name and opening it is decided here, without a race."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from stockade.host.file_content import (
    EXACT_BYTES,
    open_regular,
    read_all,
    read_block,
    version_at,
    version_of,
)
from stockade.host.paths import LeaseRoot, Resolved
from stockade.terms.fault import Code, Failure

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


@pytest.fixture
def resolved(tree: LeaseTree) -> Iterator[Resolved]:
    """A regular file that was resolved and has lost its name since."""
    path = tree.workspace / "f"
    path.write_bytes(b"inside")
    with LeaseRoot(tree.root_fd).resolve(b"/workspace/f", bool) as found:
        path.unlink()
        yield found


def test_a_link_that_took_the_name_is_not_followed(
    tree: LeaseTree, resolved: Resolved, tmp_path: Path
) -> None:
    (tmp_path / "outside").write_bytes(b"outside")
    os.symlink("../../outside", tree.workspace / "f")
    with pytest.raises(OSError, match="symbolic links") as caught:
        open_regular(resolved)
    assert caught.value.errno == errno.ELOOP
    # The control: the link does lead to something that can be read.
    assert (tree.workspace / "f").read_bytes() == b"outside"


@pytest.mark.timeout(20)
def test_a_fifo_that_took_the_name_is_refused_without_waiting(
    tree: LeaseTree, resolved: Resolved
) -> None:
    os.mkfifo(tree.workspace / "f")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(Failure) as caught:
        open_regular(resolved)
    assert caught.value.fault.code is Code.NOT_A_REGULAR_FILE
    assert os.listdir("/proc/self/fd") == before


def test_only_what_may_be_an_edits_own_file_is_read_for_its_version(tmp_path: Path) -> None:
    """A program inside has put something under that name, as large as it likes."""
    (tmp_path / "f").write_bytes(b"x")
    (tmp_path / "large").touch()
    os.truncate(tmp_path / "large", EXACT_BYTES + 1)
    os.symlink("f", tmp_path / "link")
    os.mkfifo(tmp_path / "fifo")
    here = os.open(tmp_path, os.O_PATH)
    before = os.listdir("/proc/self/fd")
    assert version_at(here, b"f") == version_of(b"x")
    for name in (b"large", b"link", b"fifo", b"."):
        assert version_at(here, name) is None
    with pytest.raises(FileNotFoundError):
        version_at(here, b"absent")
    assert os.listdir("/proc/self/fd") == before
    os.close(here)


def test_reading_ends_at_the_size_that_was_seen(tmp_path: Path) -> None:
    (tmp_path / "f").write_bytes(b"x" * 600_000)
    fd = os.open(tmp_path / "f", os.O_RDONLY)
    assert read_all(fd, 600_000) == b"x" * 600_000
    assert read_all(fd, 300_000) == b"x" * 300_000
    assert read_all(fd, 900_000) == b"x" * 600_000
    os.close(fd)


def test_what_is_appended_while_it_is_read_is_not_followed(tmp_path: Path) -> None:
    """A file that grows as fast as it is read would never end."""
    path = tmp_path / "f"
    path.write_bytes(b"x" * 300_000)
    fd = os.open(path, os.O_RDONLY)
    position = 0
    while block := read_block(fd, position, 300_000):
        position += len(block)
        with path.open("ab") as out:
            out.write(block)
    assert position == 300_000
    os.close(fd)
