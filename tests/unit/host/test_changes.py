from __future__ import annotations

import os
import stat
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.host.changes import Differences, Node
from stockade.host.leftout import LeftOut

WHITEOUT = os.makedev(0, 0)


@dataclass
class Layers:
    """An upper directory and a base as an overlay would leave them."""

    upper: Path
    base: Path

    def both(self, name: str, old: bytes, new: bytes) -> None:
        self.in_base(name, old)
        self.in_upper(name, new)

    def in_base(self, name: str, content: bytes = b"old\n") -> None:
        (self.base / name).parent.mkdir(parents=True, exist_ok=True)
        (self.base / name).write_bytes(content)

    def in_upper(self, name: str, content: bytes = b"new\n") -> None:
        (self.upper / name).parent.mkdir(parents=True, exist_ok=True)
        (self.upper / name).write_bytes(content)

    def whiteout(self, name: str) -> None:
        (self.upper / name).parent.mkdir(parents=True, exist_ok=True)
        os.mknod(self.upper / name, stat.S_IFCHR, WHITEOUT)

    def opaque(self, name: str) -> None:
        (self.upper / name).mkdir(parents=True, exist_ok=True)
        os.setxattr(self.upper / name, "trusted.overlay.opaque", b"y")

    def read(self, left_out: LeftOut | None = None) -> list[tuple[str, str]]:
        fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (self.upper, self.base)]
        try:
            found = Differences(fds[0], fds[1], left_out or LeftOut())
            return [
                (item.kind, os.fsdecode(item.path) + ("/" if item.directory else ""))
                for item in found
            ]
        finally:
            for fd in fds:
                os.close(fd)


@pytest.fixture
def layers(tmp_path: Path) -> Layers:
    layers = Layers(tmp_path / "upper", tmp_path / "base")
    layers.upper.mkdir()
    layers.base.mkdir()
    return layers


def test_an_untouched_tree_has_no_changes_whatever_is_below(layers: Layers) -> None:
    layers.in_base("a/b/c")
    assert layers.read() == []


def test_added_modified_and_deleted(layers: Layers) -> None:
    layers.in_upper("new")
    layers.both("d/changed", b"old\n", b"new\n")
    layers.in_base("d/gone")
    layers.whiteout("d/gone")
    assert layers.read() == [("modified", "d/changed"), ("deleted", "d/gone"), ("added", "new")]


def test_a_copied_up_file_that_is_as_before_is_no_change(layers: Layers) -> None:
    layers.both("same", b"x" * 3_000_000, b"x" * 3_000_000)
    layers.both("last-byte", b"x" * 2_000_000 + b"y", b"x" * 2_000_000 + b"z")
    layers.both("mode", b"x", b"x")
    (layers.upper / "mode").chmod(0o755)
    os.utime(layers.upper / "same", (1, 1))
    assert layers.read() == [("modified", "last-byte"), ("modified", "mode")]


def test_links_are_compared_by_their_target(layers: Layers) -> None:
    for name, old, new in (("same", "x", "x"), ("other", "x", "y")):
        os.symlink(old, layers.base / name)
        os.symlink(new, layers.upper / name)
    layers.in_base("file", b"x")
    os.symlink("x", layers.upper / "file")
    assert layers.read() == [("type_changed", "file"), ("modified", "other")]


def test_a_deleted_directory_names_all_that_was_in_it_inside_out(layers: Layers) -> None:
    layers.in_base("d/a")
    layers.in_base("d/e/f")
    layers.whiteout("d")
    assert layers.read() == [
        ("deleted", "d/a"),
        ("deleted", "d/e/f"),
        ("deleted", "d/e/"),
        ("deleted", "d/"),
    ]


def test_an_opaque_directory_hides_the_base(layers: Layers) -> None:
    for name in ("d/kept", "d/changed", "d/gone", "d/sub/gone"):
        layers.in_base(name)
    layers.opaque("d")
    layers.in_upper("d/kept", b"old\n")
    layers.in_upper("d/changed")
    layers.in_upper("d/new")
    assert layers.read() == [
        ("modified", "d/changed"),
        ("deleted", "d/gone"),
        ("added", "d/new"),
        ("deleted", "d/sub/gone"),
        ("deleted", "d/sub/"),
    ]


def test_a_file_in_place_of_a_directory_and_back(layers: Layers) -> None:
    layers.in_base("was-dir/f")
    layers.in_upper("was-dir")
    layers.in_base("was-file")
    layers.in_upper("was-file/f")
    layers.in_base("deep/er/f")
    layers.in_upper("deep")
    assert layers.read() == [
        ("deleted", "deep/er/f"),
        ("deleted", "deep/er/"),
        ("deleted", "deep/"),
        ("added", "deep"),
        ("deleted", "was-dir/f"),
        ("deleted", "was-dir/"),
        ("added", "was-dir"),
        ("deleted", "was-file"),
        ("added", "was-file/"),
        ("added", "was-file/f"),
    ]


def test_new_directories_come_before_what_is_in_them(layers: Layers) -> None:
    (layers.upper / "a/b").mkdir(parents=True)
    layers.in_upper("a/c")
    assert layers.read() == [("added", "a/"), ("added", "a/b/"), ("added", "a/c")]


def test_fifos_sockets_and_devices_are_left_out_and_named(layers: Layers) -> None:
    os.mkfifo(layers.upper / "fifo")
    os.mknod(layers.upper / "null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    layers.in_base("was-file")
    os.mkfifo(layers.upper / "was-file")
    left_out = LeftOut()
    assert layers.read(left_out) == [("deleted", "was-file")]
    assert left_out.lines() == (
        "fifo: not a file, link or directory",
        "null: not a file, link or directory",
        "was-file: not a file, link or directory",
    )


def test_links_of_the_sandbox_are_never_followed(layers: Layers, tmp_path: Path) -> None:
    (tmp_path / "secret").mkdir()
    (tmp_path / "secret/f").write_bytes(b"secret")
    layers.in_base("d/f")
    os.symlink(tmp_path / "secret", layers.upper / "d")
    assert layers.read() == [("deleted", "d/f"), ("deleted", "d/"), ("added", "d")]


def test_a_layer_that_changes_while_it_is_read(layers: Layers) -> None:
    """A directory becomes a link, a file a FIFO and another one vanishes after being listed."""
    layers.both("b/gone", b"1", b"2")
    layers.both("b/turned", b"1", b"2")
    layers.in_upper("a")
    layers.in_upper("c/f")
    fds = [os.open(path, os.O_RDONLY | os.O_DIRECTORY) for path in (layers.upper, layers.base)]
    walk = iter(Differences(fds[0], fds[1], LeftOut()))
    first = next(walk)
    assert first.path == b"a"
    os.unlink(layers.upper / "b/gone")
    os.unlink(layers.upper / "b/turned")
    os.mkfifo(layers.upper / "b/turned")
    os.rename(layers.upper / "c", layers.upper / "d")
    os.symlink("/etc", layers.upper / "c")
    assert [(i.kind, i.path) for i in walk] == [("deleted", b"b/turned"), ("added", b"c")]
    for fd in fds:
        os.close(fd)


def test_a_tree_deeper_than_any_path_ends(layers: Layers) -> None:
    fd = os.open(layers.upper, os.O_RDONLY | os.O_DIRECTORY)
    name = "d" * 200
    for _ in range(100):
        os.mkdir(name, dir_fd=fd)
        below = os.open(name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=fd)
        os.close(fd)
        fd = below
    os.close(fd)
    left_out = LeftOut()
    found = layers.read(left_out)
    assert len(found) == 4096 // 201
    assert left_out.count == 1


def test_what_is_left_out_is_counted_beyond_what_is_named() -> None:
    left_out = LeftOut()
    for index in range(1500):
        left_out.add(b"\n%d" % index, "no")
    lines = left_out.lines()
    assert len(lines) == 1001
    assert lines[0] == r"\x0a0: no"
    assert lines[-1] == "and 500 more"


def test_what_is_left_out_below_one_directory_is_one_line() -> None:
    left_out = LeftOut()
    for name in (b".git", b"big", b".git", b".git"):
        left_out.add(name, "no")
    assert (left_out.count, left_out.lines()) == (4, (".git: no (3 entries)", "big: no"))


def test_a_file_that_became_something_else_is_not_read_and_leaves_no_descriptor(
    tmp_path: Path,
) -> None:
    (tmp_path / "f").write_bytes(b"x")
    fd = os.open(tmp_path, os.O_RDONLY | os.O_DIRECTORY)
    node = Node(fd, b"f", os.stat(tmp_path / "f"))
    os.unlink(tmp_path / "f")
    os.mkfifo(tmp_path / "f")
    before = os.listdir("/proc/self/fd")
    with pytest.raises(FileNotFoundError):
        node.open()
    assert os.listdir("/proc/self/fd") == before
    os.close(fd)
