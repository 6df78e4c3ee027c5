from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from stockade.host.openat2 import open_below


@pytest.fixture
def root_fd(tmp_path: Path) -> int:
    (tmp_path / "root/d").mkdir(parents=True)
    (tmp_path / "root/d/f").write_bytes(b"inside")
    (tmp_path / "f").write_bytes(b"outside")
    return os.open(tmp_path / "root", os.O_PATH)


def test_dots_above_the_root_stay_at_the_root(root_fd: int) -> None:
    fd = open_below(root_fd, b"../../d/f", os.O_RDONLY)
    assert os.read(fd, 10) == b"inside"
    assert not os.get_inheritable(fd)
    os.close(fd)
    os.close(root_fd)


@pytest.mark.parametrize("target", ["d", "../f", "/d"])
def test_a_link_anywhere_is_refused(root_fd: int, target: str, tmp_path: Path) -> None:
    os.symlink(target, tmp_path / "root/link")
    for path in (b"link", b"link/f"):
        with pytest.raises(OSError, match="symbolic links") as caught:
            open_below(root_fd, path, os.O_RDONLY)
        assert caught.value.errno == errno.ELOOP
    os.close(root_fd)


def test_a_nul_does_not_end_the_path(root_fd: int) -> None:
    with pytest.raises(ValueError, match="NUL"):
        open_below(root_fd, b"d/f\0x", os.O_RDONLY)
    os.close(root_fd)
