from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from stockade.host import syscalls
from stockade.host.anchors import Anchors
from stockade.host.mounts import MountHolder
from stockade.terms.fault import Code, Failure

PATHS = ("/tmp", "/workspace", "/workspace/a", "/workspace/a/b")


@dataclass
class World:
    """A lease's tree, and a view of it that has `a` and `a/b` mounted, as a sandbox has."""

    holder: MountHolder
    tree: Path
    inside: str
    root_fd: int

    def drop(self, paths: tuple[str, ...] = PATHS) -> Anchors:
        return self.holder.run(lambda: Anchors.drop(self.root_fd, self.inside, paths))


def bind(holder: MountHolder, source: Path, target: str) -> None:
    flags = syscalls.OPEN_TREE_CLONE
    fd = syscalls.open_tree(syscalls.AT_FDCWD, os.fsencode(source), flags)
    holder.attach(fd, target)
    os.close(fd)


@pytest.fixture
def world(tmp_path: Path) -> Iterator[World]:
    holder = MountHolder(tmp_path / "mounts")
    tree = tmp_path / "tree"
    (tree / "workspace/a/b").mkdir(parents=True)
    (tree / "tmp").mkdir()
    inside = f"{holder.path}/inside"

    def make() -> None:
        for name in ("workspace", "tmp"):
            os.makedirs(f"{inside}/{name}")
            bind(holder, tree / name, f"{inside}/{name}")
        for name in ("workspace/a", "workspace/a/b"):
            bind(holder, tree / name, f"{inside}/{name}")

    holder.run(make)
    root_fd = os.open(tree, os.O_RDONLY | os.O_DIRECTORY)
    yield World(holder, tree, inside, root_fd)
    os.close(root_fd)
    holder.close()


def replaced(tree: Path) -> None:
    (tree / "a").rename(tree / "old")
    (tree / "a/b").mkdir(parents=True)


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "nothing": (lambda tree: None, True),
    "an entry is made": (lambda tree: (tree / "a/b/c").mkdir(), True),
    "a mode changes": (lambda tree: (tree / "a").chmod(0o700), True),
    "away and back": (lambda tree: (tree / "a").rename(tree / "x").rename(tree / "a"), True),
    "the parent is renamed": (lambda tree: (tree / "a").rename(tree / "x"), False),
    "the parent is replaced": (replaced, False),
    "the child is renamed": (lambda tree: (tree / "a/b").rename(tree / "a/c"), False),
}


@pytest.mark.parametrize("change", CHANGES)
def test_they_hold_while_the_same_directories_have_the_names(world: World, change: str) -> None:
    act, holds = CHANGES[change]
    anchors = world.drop()
    assert anchors.hold()
    act(world.tree / "workspace")
    assert anchors.hold() is holds
    anchors.close()


def test_a_new_directory_with_the_old_ones_number_is_another_one(world: World) -> None:
    """The kernel gives a number again at once when nothing holds the inode any more."""
    anchors = world.drop()
    number = os.stat(world.tree / "workspace/a/b").st_ino
    (world.tree / "workspace/a/b").rmdir()
    for attempt in range(20):
        (world.tree / f"workspace/a/n{attempt}").mkdir()
        assert os.stat(world.tree / f"workspace/a/n{attempt}").st_ino != number
    (world.tree / "workspace/a/b").mkdir()
    assert not anchors.hold()
    anchors.close()


def test_a_link_in_its_place_is_not_followed(world: World) -> None:
    anchors = world.drop()
    (world.tree / "workspace/a").rename(world.tree / "workspace/x")
    (world.tree / "workspace/a").symlink_to("x")
    assert not anchors.hold()
    anchors.close()


@pytest.mark.parametrize(
    "spoil",
    [
        lambda world: world.holder.run(
            lambda: syscalls.detach(os.fsencode(f"{world.inside}/workspace/a/b"))
        ),
        lambda world: (world.tree / "workspace/a/b").rename(world.tree / "workspace/a/c"),
        lambda world: replaced(world.tree / "workspace"),
    ],
)
def test_what_is_not_as_planned_at_the_start_is_refused(
    world: World, spoil: Callable[[World], object]
) -> None:
    spoil(world)
    before = len(os.listdir("/proc/self/fd"))
    with pytest.raises(Failure) as refused:
        world.drop()
    assert refused.value.fault.code is Code.SANDBOX_UNAVAILABLE
    assert len(os.listdir("/proc/self/fd")) == before


def test_the_tops_need_no_descriptor(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    anchors = world.drop(("/tmp", "/workspace"))
    assert len(os.listdir("/proc/self/fd")) == before
    assert anchors.hold()
    anchors.close()


def test_closing_gives_the_descriptors_back(world: World) -> None:
    before = len(os.listdir("/proc/self/fd"))
    anchors = world.drop()
    assert len(os.listdir("/proc/self/fd")) == before + 2
    anchors.close()
    anchors.close()
    assert len(os.listdir("/proc/self/fd")) == before
