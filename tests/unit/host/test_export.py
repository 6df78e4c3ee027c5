from __future__ import annotations

import os
import resource
import signal
import stat
from pathlib import Path

import pytest

from stockade.host.changes import Differences
from stockade.host.export import Export
from stockade.host.leftout import LeftOut

OWNER = 1_234


@pytest.fixture
def places(tmp_path: Path) -> tuple[Path, Path, Path]:
    """The upper layer, the base, and a target that belongs to somebody."""
    for name in ("upper", "base", "target"):
        (tmp_path / name).mkdir()
    os.chown(tmp_path / "target", OWNER, OWNER)
    return tmp_path / "upper", tmp_path / "base", tmp_path / "target"


def export(places: tuple[Path, Path, Path]) -> tuple[int, tuple[str, ...]]:
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in places]
    left_out = LeftOut()
    try:
        done = Export(fds[2], left_out).apply(Differences(fds[0], fds[1], left_out))
    finally:
        for fd in fds:
            os.close(fd)
    return done, left_out.lines()


def test_files_directories_and_links_arrive_with_the_targets_owner(
    places: tuple[Path, Path, Path],
) -> None:
    upper, _, target = places
    (upper / "d/e").mkdir(parents=True)
    (upper / "d/f").write_bytes(b"x" * 3_000_000)
    (upper / "d/f").chmod(0o6755)
    (upper / "d").chmod(0o3751)
    os.symlink("f", upper / "d/l")
    os.symlink("../d/f", upper / "d/up")
    assert export(places) == (3, ())
    assert (target / "d/f").read_bytes() == b"x" * 3_000_000
    assert stat.S_IMODE(os.stat(target / "d/f").st_mode) == 0o755
    assert stat.S_IMODE(os.stat(target / "d").st_mode) == 0o751
    assert os.readlink(target / "d/l") == "f"
    for path in target.rglob("*"):
        assert (os.lstat(path).st_uid, os.lstat(path).st_gid) == (OWNER, OWNER), path
    assert sorted(os.listdir(target / "d")) == ["e", "f", "l", "up"]


def test_a_replaced_file_keeps_its_owner_and_deletions_are_carried_out(
    places: tuple[Path, Path, Path],
) -> None:
    upper, base, target = places
    for root in (base, target):
        (root / "d").mkdir()
        for name in ("changed", "d/a", "gone"):
            (root / name).write_bytes(b"old")
    os.chown(target / "changed", 77, 88)
    (upper / "changed").write_bytes(b"new")
    for name in ("d", "gone"):
        os.mknod(upper / name, stat.S_IFCHR, 0)
    assert export(places) == (3, ())
    assert os.listdir(target) == ["changed"]
    assert (os.stat(target / "changed").st_uid, os.stat(target / "changed").st_gid) == (77, 88)


def test_a_directory_with_files_of_others_stays_and_is_named(
    places: tuple[Path, Path, Path],
) -> None:
    upper, base, target = places
    for root in (base, target):
        (root / "d").mkdir()
        (root / "d/a").touch()
    (target / "d/mine").touch()
    os.mknod(upper / "d", stat.S_IFCHR, 0)
    done, left_out = export(places)
    assert done == 1
    assert left_out == ("d: Directory not empty",)
    assert os.listdir(target / "d") == ["mine"]


def test_links_of_the_target_are_not_followed(
    places: tuple[Path, Path, Path], tmp_path: Path
) -> None:
    upper, _, target = places
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/f").write_bytes(b"precious")
    os.symlink(tmp_path / "precious", target / "d")
    os.symlink(tmp_path / "precious/f", target / "file")
    (upper / "d").mkdir()
    (upper / "d/f").write_bytes(b"evil")
    (upper / "file").write_bytes(b"good")
    done, left_out = export(places)
    assert done == 1
    assert [line.split(":")[0] for line in left_out] == ["d/f"]
    assert (tmp_path / "precious/f").read_bytes() == b"precious"
    assert not os.path.islink(target / "file")


@pytest.mark.parametrize(
    "link", ["/etc/passwd", "..", "a/../../x", "../x", "a/..", "./../x", "d/../../../x"]
)
def test_links_that_could_lead_out_are_left_out(places: tuple[Path, Path, Path], link: str) -> None:
    upper, _, target = places
    os.symlink(link, upper / "l")
    assert export(places) == (0, ("l: a link that leads out of the target",))
    assert os.listdir(target) == []


def test_nothing_of_a_git_directory_is_brought_to_the_host(
    places: tuple[Path, Path, Path],
) -> None:
    upper, _, target = places
    (upper / ".git/hooks").mkdir(parents=True)
    (upper / ".git/hooks/pre-commit").write_bytes(b"#!/bin/sh\nevil\n")
    (upper / "code").write_bytes(b"good")
    done, left_out = export(places)
    assert done == 1
    assert left_out == (".git: git's own directory",)
    assert os.listdir(target) == ["code"]


def test_an_interrupted_write_leaves_the_old_file_and_no_other(
    places: tuple[Path, Path, Path],
) -> None:
    """The place is taken by a directory, so the last step of the write fails."""
    upper, _, target = places
    (upper / "a").write_bytes(b"new")
    (target / "a").mkdir()
    done, left_out = export(places)
    assert (done, left_out) == (0, ("a: Is a directory",))
    assert os.listdir(target) == ["a"]


def test_a_daemon_that_is_killed_while_it_writes_leaves_no_part(
    places: tuple[Path, Path, Path],
) -> None:
    upper, _, target = places
    (upper / "a").write_bytes(b"x" * 3_000_000)
    (target / "a").write_bytes(b"old")
    child = os.fork()
    if child == 0:
        # The kernel ends it in the middle of the file.
        signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
        resource.setrlimit(resource.RLIMIT_FSIZE, (2_000_000, 2_000_000))
        export(places)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    assert {path.name: path.read_bytes() for path in target.iterdir()} == {"a": b"old"}
