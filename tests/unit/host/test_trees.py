from __future__ import annotations

import errno
import os
import stat
import subprocess
from pathlib import Path

import pytest

from stockade.host.treecopy import CopyReport, TreeCopy, exclusion
from stockade.host.trees import Cursor, copy_extents, names, remove_tree

OWNER = 3_000_000


def removed(parent: Path, name: str) -> None:
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    try:
        remove_tree(fd, os.fsencode(name))
    finally:
        os.close(fd)
    assert not os.path.lexists(parent / name)


def copied(
    source: Path,
    target: Path,
    *,
    excludes: tuple[str, ...] = (),
    avoid: tuple[int, int] | None = None,
) -> CopyReport:
    target.mkdir()
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, target)]
    try:
        return TreeCopy(
            fds[0],
            fds[1],
            lambda _id: OWNER,
            excluded=exclusion(excludes),
            avoid=avoid,
            check_space=lambda _size: None,
        ).run()
    finally:
        for fd in fds:
            os.close(fd)


def deep(parent: Path, levels: int) -> None:
    """Directories below each other, past every limit of a path."""
    fd = os.open(parent, os.O_RDONLY | os.O_DIRECTORY)
    for _ in range(levels):
        os.mkdir("d", dir_fd=fd)
        below = os.open("d", os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(os.open("f", os.O_CREAT | os.O_WRONLY, dir_fd=fd))
    os.close(fd)


def test_b77_read_only_and_closed_directories_are_removed(tmp_path: Path) -> None:
    (tmp_path / "t/a/b").mkdir(parents=True)
    (tmp_path / "t/a/b/f").touch()
    (tmp_path / "t/closed").mkdir(mode=0)
    (tmp_path / "t/a/b").chmod(0o555)
    (tmp_path / "t/a").chmod(0o555)
    removed(tmp_path, "t")


def test_b77_a_depth_of_3000_is_removed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    deep(tmp_path / "t", 3000)
    removed(tmp_path, "t")


def test_b77_odd_names_are_removed(tmp_path: Path) -> None:
    (tmp_path / "t").mkdir()
    for name in (b"new\nline", b"-rf", b"\xff\xfe", b" ", b"a" * 255, b"\\", b"*"):
        os.mkdir(os.path.join(os.fsencode(tmp_path / "t"), name))
    os.mkfifo(tmp_path / "t/fifo")
    os.symlink("/nowhere", tmp_path / "t/link")
    removed(tmp_path, "t")


def test_b77_a_symlink_is_removed_and_what_it_leads_to_is_not(tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious/f").touch()
    (tmp_path / "t").mkdir()
    os.symlink(tmp_path / "precious", tmp_path / "t/link")
    os.symlink(tmp_path / "precious", tmp_path / "top")
    removed(tmp_path, "t")
    removed(tmp_path, "top")
    assert (tmp_path / "precious/f").exists()


def test_b77_a_mount_inside_is_not_entered_and_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / "t/mounted").mkdir(parents=True)
    (tmp_path / "t/other").touch()
    subprocess.run(["mount", "-t", "tmpfs", "none", tmp_path / "t/mounted"], check=True)
    try:
        (tmp_path / "t/mounted/f").touch()
        with pytest.raises(OSError) as caught:
            removed(tmp_path, "t")
        assert caught.value.errno == errno.EBUSY
        assert os.listdir(tmp_path / "t") == ["mounted"]
        assert os.listdir(tmp_path / "t/mounted") == ["f"]
    finally:
        subprocess.run(["umount", tmp_path / "t/mounted"], check=True)
    removed(tmp_path, "t")


def test_b77_an_immutable_file_is_an_error_and_the_rest_goes(tmp_path: Path) -> None:
    (tmp_path / "t/d").mkdir(parents=True)
    for name in ("t/a", "t/d/fixed", "t/d/z", "t/z"):
        (tmp_path / name).touch()
    subprocess.run(["chattr", "+i", tmp_path / "t/d/fixed"], check=True)
    try:
        with pytest.raises(OSError):
            removed(tmp_path, "t")
        assert [str(p.relative_to(tmp_path)) for p in (tmp_path / "t").rglob("*")] == [
            "t/d",
            "t/d/fixed",
        ]
    finally:
        subprocess.run(["chattr", "-i", tmp_path / "t/d/fixed"], check=True)
    removed(tmp_path, "t")


def test_removing_what_is_absent_is_fine(tmp_path: Path) -> None:
    removed(tmp_path, "nothing")


def test_a_cursor_refuses_links_and_notices_a_move(tmp_path: Path) -> None:
    (tmp_path / "a/b").mkdir(parents=True)
    (tmp_path / "elsewhere").mkdir()
    os.symlink("b", tmp_path / "a/link")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    with Cursor(fd, b"a") as cursor:
        for name in (b"link", b"absent"):
            with pytest.raises(OSError):
                cursor.enter(name)
        cursor.enter(b"b")
        os.rename(tmp_path / "a/b", tmp_path / "elsewhere/b")
        with pytest.raises(OSError) as caught:
            cursor.leave()
        assert caught.value.errno == errno.ESTALE
    os.close(fd)


def test_a_copy_keeps_content_modes_times_and_links(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "dir").mkdir(parents=True)
    (source / "dir/small").write_bytes(b"text\n")
    (source / "dir/large").write_bytes(os.urandom(200_000))
    (source / "dir/tool").write_bytes(b"#!")
    (source / "dir/tool").chmod(0o4755)
    os.link(source / "dir/small", source / "hard")
    os.symlink("/etc/passwd", source / "link")
    os.utime(source / "link", ns=(1, 2), follow_symlinks=False)
    os.utime(source / "dir/small", ns=(10**18, 10**18 + 7))
    (source / "dir").chmod(0o2750)
    os.utime(source / "dir", ns=(5, 10**18 + 9))
    report = copied(source, tmp_path / "copy")
    assert (report.files, report.skipped) == (5, 0)
    assert report.bytes == 5 + 200_000 + 2 + 5
    for name in ("dir", "dir/small", "dir/large", "link", "hard", "."):
        old, new = os.lstat(source / name), os.lstat(tmp_path / "copy" / name)
        assert (new.st_mode, new.st_mtime_ns) == (old.st_mode, old.st_mtime_ns), name
        assert (new.st_uid, new.st_gid) == (OWNER, OWNER), name
        if stat.S_ISREG(old.st_mode):
            assert (tmp_path / "copy" / name).read_bytes() == (source / name).read_bytes()
    assert os.readlink(tmp_path / "copy/link") == "/etc/passwd"
    assert stat.S_IMODE(os.lstat(tmp_path / "copy/dir/tool").st_mode) == 0o755
    assert os.lstat(tmp_path / "copy/hard").st_nlink == 1


def test_sockets_devices_and_fifos_are_skipped_and_counted(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    os.mkfifo(source / "fifo")
    os.mknod(source / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    (source / "f").touch()
    assert copied(source, tmp_path / "copy").skipped == 2
    assert os.listdir(tmp_path / "copy") == ["f"]


def test_a_copy_holds_holes_and_a_tree_of_any_depth(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    deep(source, 3000)
    with open(source / "sparse", "wb") as f:
        f.seek(50 << 20)
        f.write(b"end")
        f.truncate(1 << 30)
    report = copied(source, tmp_path / "copy")
    assert report.files == 2
    new = os.stat(tmp_path / "copy/sparse")
    assert new.st_size == 1 << 30
    assert new.st_blocks * 512 < 1 << 20
    with open(tmp_path / "copy/sparse", "rb") as f:
        f.seek(50 << 20)
        assert f.read(4) == b"end\0"
    removed(tmp_path, "copy")
    removed(tmp_path, "source")


def test_a_source_that_holds_its_own_copy_ends(tmp_path: Path) -> None:
    (tmp_path / "source/state").mkdir(parents=True)
    (tmp_path / "source/f").touch()
    info = os.stat(tmp_path / "source/state")
    report = copied(
        tmp_path / "source", tmp_path / "source/state/base", avoid=(info.st_dev, info.st_ino)
    )
    assert report.skipped == 1
    assert os.listdir(tmp_path / "source/state/base") == ["f"]


@pytest.mark.parametrize(
    ("patterns", "left"),
    [
        ((), {"a.pyc", "keep", "sub/a.pyc", "sub/build/x", "build/x"}),
        (("*.pyc",), {"keep", "sub/build/x", "build/x"}),
        (("build",), {"a.pyc", "keep", "sub/a.pyc"}),
        (("/build/",), {"a.pyc", "keep", "sub/a.pyc", "sub/build/x"}),
        (("sub/build",), {"a.pyc", "keep", "sub/a.pyc", "build/x"}),
        (("sub/*", "keep"), {"a.pyc", "build/x"}),
    ],
)
def test_excludes(tmp_path: Path, patterns: tuple[str, ...], left: set[str]) -> None:
    source = tmp_path / "source"
    for name in ("a.pyc", "keep", "sub/a.pyc", "sub/build/x", "build/x"):
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        (source / name).touch()
    copied(source, tmp_path / "copy", excludes=patterns)
    copy = tmp_path / "copy"
    assert {str(p.relative_to(copy)) for p in copy.rglob("*") if p.is_file()} == left


def test_the_error_of_a_copy_names_the_path(tmp_path: Path) -> None:
    source = tmp_path / "source"
    (source / "d").mkdir(parents=True)
    (source / "d/f").write_bytes(b"x")
    (tmp_path / "copy").mkdir()
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (source, tmp_path / "copy")]

    def full(_size: int) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    copy = TreeCopy(
        fds[0], fds[1], lambda _id: OWNER, excluded=exclusion(()), avoid=None, check_space=full
    )
    with pytest.raises(OSError) as caught:
        copy.run()
    assert (caught.value.errno, caught.value.filename) == (errno.ENOSPC, "d/f")
    for fd in fds:
        os.close(fd)


def test_extents_of_an_empty_and_of_a_hollow_file(tmp_path: Path) -> None:
    for size in (0, 1 << 20):
        with open(tmp_path / "a", "wb") as a, open(tmp_path / "b", "wb") as b:
            a.truncate(size)
            b.truncate(0)
        with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "r+b") as b:
            copy_extents(a.fileno(), b.fileno(), size)
        assert os.stat(tmp_path / "b").st_blocks == 0


def test_names_are_sorted_bytes(tmp_path: Path) -> None:
    for name in (b"b", b"\xff", b"a"):
        open(os.path.join(os.fsencode(tmp_path), name), "wb").close()
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    assert names(fd) == [b"a", b"b", b"\xff"]
    os.close(fd)
