from __future__ import annotations

import os
import random
import resource
from collections.abc import Callable
from contextlib import suppress
from functools import partial
from pathlib import Path
from threading import Event, Thread
from typing import TYPE_CHECKING

import pytest

from stockade.host import openat2, paths
from stockade.host.paths import LeaseRoot
from stockade.terms.fault import Code, Failure

if TYPE_CHECKING:
    from tests.unit.host.conftest import LeaseTree


def anywhere(path: bytes) -> bool:
    return bool(path)


def where(tree: LeaseTree, path: bytes) -> bytes:
    with LeaseRoot(tree.root_fd).resolve(path, anywhere) as resolved:
        if resolved.fd is not None:
            inside = os.stat(tree.root.as_posix().encode() + resolved.path, follow_symlinks=False)
            assert os.path.samestat(os.fstat(resolved.fd), inside)
        return resolved.path


def code(act: Callable[[], object]) -> Code:
    with pytest.raises(Failure) as caught:
        act()
    return caught.value.fault.code


@pytest.mark.parametrize(
    ("path", "outcome"),
    [
        (b"/workspace/./x", b"/workspace/x"),
        (b"//workspace//x", b"/workspace/x"),
        (b"/workspace/../workspace/x", b"/workspace/x"),
        (b"/../../workspace/x", b"/workspace/x"),
        (b"/workspace/d/", b"/workspace/d"),
        (b"/workspace/d/.", b"/workspace/d"),
        (b"/workspace/d/..", b"/workspace"),
        (b"/workspace", b"/workspace"),
        (b"/workspace/~", b"/workspace/~"),
        (b"/workspace-evil/x", Code.OUTSIDE_WORKSPACE),
        (b"/workspace/../workspace-evil/x", Code.OUTSIDE_WORKSPACE),
        (b"/workspace//../etc/passwd", Code.OUTSIDE_WORKSPACE),
        (b"/etc/passwd", Code.OUTSIDE_WORKSPACE),
        (b"/", Code.OUTSIDE_WORKSPACE),
        (b"/workspace/..", Code.OUTSIDE_WORKSPACE),
        (b"/workspace/x/", Code.NOT_FOUND),
        (b"/workspace/x/.", Code.NOT_FOUND),
        (b"/workspace/x/../x", Code.NOT_FOUND),
        (b"/workspace/x/y", Code.NOT_FOUND),
        (b"/workspace/absent/../x", Code.NOT_FOUND),
        (b"/workspace/absent/", Code.NOT_FOUND),
        (b"", Code.INVALID_ARGUMENT),
        (b"x", Code.INVALID_ARGUMENT),
        (b"/workspace/x\0y", Code.INVALID_ARGUMENT),
        (b"/workspace/" + b"a" * 5000, Code.INVALID_ARGUMENT),
        (b"/workspace/" + b"a" * 256, Code.INVALID_ARGUMENT),
    ],
)
def test_b48_paths_are_compared_by_component_after_resolving(
    tree: LeaseTree, path: bytes, outcome: bytes | Code
) -> None:
    (tree.workspace / "x").write_bytes(b"")
    (tree.workspace / "d").mkdir()
    (tree.root / "workspace-evil").mkdir()
    (tree.root / "workspace-evil/x").write_bytes(b"")
    if isinstance(outcome, Code):
        assert code(lambda: where(tree, path)) is outcome
    else:
        assert where(tree, path) == outcome


@pytest.mark.parametrize(
    ("target", "outcome"),
    [
        ("/workspace/d/f", b"/workspace/d/f"),
        ("d/f", b"/workspace/d/f"),
        ("d/../../tmp/t", b"/tmp/t"),
        ("../../../../workspace/d/f", b"/workspace/d/f"),
        ("d/absent", b"/workspace/d/absent"),
        ("/etc/passwd", Code.OUTSIDE_WORKSPACE),
        ("../etc/passwd", Code.OUTSIDE_WORKSPACE),
        ("/proc/1/root/etc/passwd", Code.OUTSIDE_WORKSPACE),
        ("/", Code.OUTSIDE_WORKSPACE),
        ("link", Code.NOT_FOUND),
        ("link/x", Code.NOT_FOUND),
    ],
)
def test_b49_a_link_leads_where_it_leads_inside(
    tree: LeaseTree, target: str, outcome: bytes | Code
) -> None:
    (tree.workspace / "d").mkdir()
    (tree.workspace / "d/f").write_bytes(b"")
    (tree.tmp / "t").write_bytes(b"")
    os.symlink(target, tree.workspace / "link")
    if isinstance(outcome, Code):
        assert code(lambda: where(tree, b"/workspace/link")) is outcome
    else:
        assert where(tree, b"/workspace/link") == outcome


def test_b49_a_link_in_the_middle_and_one_to_the_hosts_root(tree: LeaseTree) -> None:
    os.symlink("/", tree.workspace / "root")
    os.symlink("d", tree.workspace / "e")
    (tree.workspace / "d").mkdir()
    (tree.workspace / "d/f").write_bytes(b"")
    assert code(lambda: where(tree, b"/workspace/root/etc/passwd")) is Code.OUTSIDE_WORKSPACE
    assert where(tree, b"/workspace/root/workspace/e/f") == b"/workspace/d/f"
    # The control: the same name without the root leads to the host's file.
    assert (tree.workspace / "root/etc/passwd").read_bytes()


def test_forty_links_are_followed_and_no_more(tree: LeaseTree) -> None:
    (tree.workspace / "0").write_bytes(b"")
    for number in range(1, 42):
        os.symlink(str(number - 1), tree.workspace / str(number))
    assert where(tree, b"/workspace/40") == b"/workspace/0"
    assert code(lambda: where(tree, b"/workspace/41")) is Code.NOT_FOUND


def test_links_that_multiply_end(tree: LeaseTree) -> None:
    os.symlink("/".join(["."] * 2000), tree.workspace / "0")
    os.symlink("/".join(["0"] * 2000), tree.workspace / "1")
    assert code(lambda: where(tree, b"/workspace/1/1/1/x")) is Code.NOT_FOUND


def test_a_deep_path_takes_no_more_descriptors_than_a_short_one(tree: LeaseTree) -> None:
    names = [f"{number:03d}" for number in range(300)]
    (tree.workspace / "/".join(names)).mkdir(parents=True)
    os.symlink("/".join(names), tree.workspace / "link")
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    highest = max(int(name) for name in os.listdir("/proc/self/fd"))
    resource.setrlimit(resource.RLIMIT_NOFILE, (highest + 6, hard))
    try:
        found = where(tree, b"/workspace/link/" + b"../" * 2 + b"298/f")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    assert found == f"/workspace/{'/'.join(names[:299])}/f".encode()


def test_names_are_bytes(tree: LeaseTree) -> None:
    name = b"caf\xe9\n'\" $x*"
    (Path(os.fsdecode(os.fsencode(tree.workspace) + b"/" + name))).write_bytes(b"")
    os.symlink(name, os.fsencode(tree.workspace) + b"/link")
    assert where(tree, b"/workspace/" + name) == b"/workspace/" + name
    assert where(tree, b"/workspace/link") == b"/workspace/" + name


def test_absent_directories_are_listed_below_the_deepest_that_exists(tree: LeaseTree) -> None:
    (tree.workspace / "d").mkdir()
    os.symlink("d/new", tree.workspace / "link")
    with LeaseRoot(tree.root_fd).resolve(b"/workspace/link/a/f", anywhere) as resolved:
        assert resolved.path == b"/workspace/d/new/a/f"
        assert resolved.missing == (b"new", b"a")
        assert (resolved.name, resolved.fd) == (b"f", None)
        assert os.path.samestat(os.fstat(resolved.parent_fd), os.stat(tree.workspace / "d"))


def test_what_may_not_be_seen_is_not_opened_on_the_way_either(tree: LeaseTree) -> None:
    """Every name is asked for before it is opened, also those that a link or dots lead through."""
    (tree.workspace / "secret").mkdir()
    (tree.workspace / "secret/link").symlink_to("/workspace/f")
    (tree.workspace / "f").write_bytes(b"")

    def visible(path: bytes) -> bool:
        return not path.startswith(b"/workspace/secret")

    root = LeaseRoot(tree.root_fd)
    for path in (b"secret/link", b"secret/absent", b"secret/../f", b"secretly/../f"):
        asked = partial(root.resolve, b"/workspace/" + path, visible)
        assert code(asked) is Code.RIGHT_NOT_GRANTED


def test_the_walk_agrees_with_the_kernels_resolution_in_a_changed_root(tree: LeaseTree) -> None:
    chance = random.Random(7)
    places = ["workspace", "workspace/a", "workspace/a/b", "workspace/c", "tmp/a", "tmp"]
    for place in places:
        (tree.root / place).mkdir(exist_ok=True)
    targets = [f"/{place}" for place in places]
    targets += ["..", "../..", ".", "a", "b/", "f", "m", "../a/b", "/tmp/../workspace/c/l", "/etc"]
    for place in places:
        (tree.root / place / "f").write_bytes(b"")
        for name in ("l", "m", "n"):
            os.symlink(chance.choice(targets), tree.root / place / name)
    names = ["l", "m", "n", "..", "f", "a", "c"]
    asked = [
        "/".join(["", chance.choice(places), *chance.choices(names, k=chance.randrange(1, 5))])
        for _ in range(1000)
    ]
    root = LeaseRoot(tree.root_fd)
    agreed = 0
    for path, expected in zip(asked, _resolve_in_a_changed_root(tree.root, asked), strict=True):
        found = ""
        with suppress(Failure), root.resolve(path.encode(), anywhere) as resolved:
            found = resolved.path.decode() if resolved.fd is not None else ""
        assert found == (expected if expected != "/" else "")
        agreed += bool(found)
    assert agreed > 40


def _resolve_in_a_changed_root(root: Path, paths: list[str]) -> list[str]:
    """What a child with `root` as its root directory finds; "" for what can't be opened."""
    reader, writer = os.pipe()
    child = os.fork()
    if not child:
        os.chroot(root)
        os.chdir("/")
        with open(writer, "w") as out:
            for path in paths:
                try:
                    os.close(os.open(path, os.O_PATH))
                    out.write(os.path.realpath(path, strict=True) + "\n")
                except OSError:
                    out.write("\n")
        os._exit(0)
    os.close(writer)
    with open(reader) as lines:
        found = lines.read().splitlines()
    assert os.waitpid(child, 0)[1] == 0
    return found


def test_no_descriptor_is_left_open(tree: LeaseTree) -> None:
    (tree.workspace / "f").write_bytes(b"")
    os.symlink("/etc", tree.workspace / "out")
    os.symlink("f", tree.workspace / "in")
    before = os.listdir("/proc/self/fd")
    for path in (
        b"f",
        b"out/x",
        b"in",
        b"f/x",
        b"absent/f",
        b".",
        b"../..",
        b"in/../f",
        b"\xff" * 300,
    ):
        with suppress(Failure):
            where(tree, b"/workspace/" + path)
    assert os.listdir("/proc/self/fd") == before


def test_b51_a_component_swapped_for_a_link_never_leads_outside(
    tree: LeaseTree, tmp_path: Path
) -> None:
    outside = tmp_path / "outside"
    outside.mkdir()
    (outside / "f").write_bytes(b"outside")
    place = tree.workspace / "d"
    (tree.workspace / "good").mkdir()
    (tree.workspace / "good/f").write_bytes(b"inside")
    stop = Event()

    def swap() -> None:
        while not stop.is_set():
            os.rename(tree.workspace / "good", place)
            os.rename(place, tree.workspace / "good")
            os.symlink("../../outside", place)
            os.unlink(place)

    thread = Thread(target=swap)
    thread.start()
    seen: set[bytes | Code] = set()
    naive: set[bytes] = set()
    try:
        for _ in range(2000):
            try:
                seen.add(b"".join(tree.view("/workspace/d/f").lines))
            except Failure as error:
                seen.add(error.fault.code)
            try:
                tree.edit("/workspace/d/f", b"outside", b"hacked")
            except Failure as error:
                seen.add(error.fault.code)
            with suppress(OSError):
                naive.add((place / "f").read_bytes())
    finally:
        stop.set()
        thread.join()
    assert (outside / "f").read_bytes() == b"outside"
    assert b"outside" not in seen
    assert {b"inside", Code.OUTSIDE_WORKSPACE} <= seen
    assert seen <= {b"inside", Code.OUTSIDE_WORKSPACE, Code.NOT_FOUND, Code.NO_MATCH, Code.BUSY}
    assert b"outside" in naive, "the control: by path the swap works"
    assert tree.litter() == []


@pytest.mark.parametrize("path", [b"/workspace/d/", b"/workspace/d/e/.."])
def test_b51_a_directory_swapped_for_a_link_at_the_last_moment_is_not_entered(
    tree: LeaseTree, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, path: bytes
) -> None:
    (tmp_path / "outside").mkdir()
    (tree.workspace / "d/e").mkdir(parents=True)
    swapped: list[str] = []

    def open_below(root_fd: int, path: bytes, flags: int) -> int:
        """The real one, and then a program inside that is quick."""
        fd = openat2.open_below(root_fd, path, flags)
        if path == b"workspace":
            os.rename(tree.workspace / "d", tree.workspace / "good")
            os.symlink(tmp_path / "outside", tree.workspace / "d")
            swapped.append("d")
        return fd

    monkeypatch.setattr(paths, "open_below", open_below)
    assert code(lambda: where(tree, path)) is Code.NOT_FOUND
    assert swapped == ["d"]


def test_b51_a_file_swapped_for_a_link_never_leads_outside(tree: LeaseTree, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    outside.write_bytes(b"outside")
    place = tree.workspace / "f"
    (tree.workspace / "good").write_bytes(b"inside")
    os.symlink("../../outside", tree.workspace / "evil")
    stop = Event()

    def swap() -> None:
        while not stop.is_set():
            for name in ("good", "evil"):
                os.rename(tree.workspace / name, place)
                os.rename(place, tree.workspace / name)

    thread = Thread(target=swap)
    thread.start()
    seen: set[bytes | Code] = set()
    try:
        for _ in range(2000):
            try:
                seen.add(b"".join(tree.view("/workspace/f").lines))
            except Failure as error:
                seen.add(error.fault.code)
    finally:
        stop.set()
        thread.join()
    assert {b"inside", Code.OUTSIDE_WORKSPACE} <= seen
    assert seen <= {b"inside", Code.OUTSIDE_WORKSPACE, Code.NOT_FOUND, Code.BUSY}
