"""The copy of a lease's workspace, on real mounts, from trees that a sandbox has prepared."""

from __future__ import annotations

import errno
import os
import socket
import stat
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from stockade.host.forking import _OWN_INODES as OWN_INODES
from stockade.host.forking import DiskShare, may_be_read, moved_ids
from stockade.host.space import SpaceCheck
from stockade.host.trees import copy_extents
from stockade.terms.fault import Code, Failure
from stockade.terms.ports import Workspace, WorkspaceSpec
from tests.unit.host.test_workspaces import MIB, OTHER, UID, House, filled, place, spec
from tests.unit.host.test_workspaces import house as house
from tests.unit.host.test_workspaces import source as source

NEW_UID = UID + 5 * 65_536
ALL = ("/workspace", "/tmp")


def fork_spec() -> WorkspaceSpec:
    given = spec(None, OTHER)
    return WorkspaceSpec(OTHER, NEW_UID, None, (), given.limits, given.tmp_bytes)


@pytest.fixture
def parent(house: House, source: Path) -> Workspace:
    house.workspaces.create(spec(source))
    return house.workspaces.attach(spec(source))


def forked(house: House, source: Path, read: tuple[str, ...] = ALL) -> Workspace:
    house.workspaces.fork(fork_spec(), spec(source), read)
    return house.workspaces.attach(fork_spec())


def refused(house: House, source: Path, disk_bytes: int = 32 * MIB) -> Failure:
    limits = spec().limits.model_copy(update={"disk_bytes": disk_bytes})
    small = replace(fork_spec(), limits=limits)
    with pytest.raises(Failure) as caught:
        house.workspaces.fork(small, spec(source), ALL)
    assert sorted(os.listdir(house.state / "leases")) == [spec().lease_id]  # nothing is left
    return caught.value


def used(top: Path) -> Iterator[tuple[str, os.stat_result]]:
    for path in [top, *sorted(top.rglob("*"))]:
        yield str(path.relative_to(top)), os.lstat(path)


def test_a_fork_is_the_workspace_as_it_is(house: House, parent: Workspace, source: Path) -> None:
    top = place(parent)
    (top / "README").unlink()
    (top / "src/new").mkdir()
    (top / "src/new/f").write_bytes(b"x" * 200_000)
    os.chmod(top / "src/new/f", 0o640)
    os.chown(top / "src/new/f", UID + 7, UID + 9)
    os.symlink("/etc/passwd", top / "out")
    os.lchown(top / "out", UID + 3, UID + 3)
    os.link(top / "src/new/f", top / "same")
    (top / "suid").touch()
    for path in (top / "src/new", top / "suid"):
        os.chown(path, UID, UID)
    os.chmod(top / "src/new", 0o2710)
    os.utime(top / "src/new", ns=(10**18, 10**18 + 5))
    os.chmod(top / "suid", 0o4755)
    here = place(forked(house, source))
    old, new = dict(used(top)), dict(used(here))
    assert old.keys() == new.keys()
    for name, info in old.items():
        mode = info.st_mode & ~0o4000 if name == "suid" else info.st_mode
        assert (new[name].st_mode, new[name].st_mtime_ns) == (mode, info.st_mtime_ns), name
        moved = (info.st_uid - UID + NEW_UID, info.st_gid - UID + NEW_UID)
        assert (new[name].st_uid, new[name].st_gid) == moved, name
    assert os.readlink(here / "out") == "/etc/passwd"
    assert os.path.samefile(here / "same", here / "src/new/f")
    assert (here / "same").read_bytes() == b"x" * 200_000
    assert sorted(os.listdir(house.state / "leases" / OTHER)) == [
        "base",
        "boot",
        "disk.img",
        "used",
    ]


def test_a_fork_and_its_origin_are_independent(
    house: House, parent: Workspace, source: Path
) -> None:
    (place(parent) / "mine").write_bytes(b"1")
    fork = forked(house, source)
    assert list(fork.changes()) == []
    (place(fork) / "mine").write_bytes(b"2")
    (place(parent) / "README").write_bytes(b"later")
    assert [change.path for change in fork.changes()] == [b"mine"]
    house.workspaces.remove(spec().lease_id)
    assert (place(fork) / "README").read_bytes() == b"read me\n"
    fresh = house.workspaces.reset(fork_spec())
    assert (place(fresh) / "mine").read_bytes() == b"1"


def test_a_fork_outlives_the_daemon(house: House, parent: Workspace, source: Path) -> None:
    (place(forked(house, source)) / "new").write_bytes(b"x")
    house.stop()
    house.start()
    assert (place(house.workspaces.attach(fork_spec())) / "new").read_bytes() == b"x"


def test_what_is_no_file_is_left_out(house: House, parent: Workspace, source: Path) -> None:
    os.mkfifo(place(parent) / "pipe")
    with socket.socket(socket.AF_UNIX) as bound:
        bound.bind(str(place(parent) / "sock"))
    report = house.workspaces.fork(fork_spec(), spec(source), ALL)
    assert report.skipped == 2
    here = place(house.workspaces.attach(fork_spec()))
    assert not os.path.lexists(here / "pipe")


def test_only_what_may_be_read_is_copied(house: House, parent: Workspace, source: Path) -> None:
    here = place(forked(house, source, ("/workspace/src", "/tmp")))
    assert sorted(os.listdir(here)) == ["src"]
    assert may_be_read(("/workspace/a/b",), b"a")
    assert may_be_read(("/",), b"a")
    for outside in (b"ab", b"a/bc", b"b"):
        assert not may_be_read(("/workspace/a/b", "/tmp"), outside)


def test_the_copy_counts_against_the_disk(house: House, parent: Workspace, source: Path) -> None:
    (place(parent) / "big").write_bytes(b"x" * (20 * MIB))
    fork = forked(house, source)
    assert 8 * MIB < filled(place(fork) / "more", 64) <= 12 * MIB
    fresh = house.workspaces.reset(fork_spec())
    assert 8 * MIB < filled(place(fresh) / "more", 64) <= 12 * MIB
    # No template of the odd size is kept.
    assert len(list((house.state / "disks").iterdir())) == 1


def test_a_copy_that_does_not_fit_is_refused(house: House, parent: Workspace, source: Path) -> None:
    for index in range(2):
        (place(parent) / f"big{index}").write_bytes(b"x" * (12 * MIB))
    (place(parent) / "hollow").touch()
    os.truncate(place(parent) / "hollow", 1 << 40)
    found = house.workspaces.fork(fork_spec(), spec(source), ("/workspace/hollow",))
    assert found.bytes == 1 << 40
    house.workspaces.remove(OTHER)
    error = refused(house, source, 16 * MIB)
    assert (error.fault.code, error.fault.rule) == (Code.DISK_FULL, "per_lease.disk_bytes")


def test_a_copy_of_too_many_files_is_refused(house: House, parent: Workspace, source: Path) -> None:
    for index in range(1940):
        (place(parent) / f"f{index}").touch()
    error = refused(house, source)
    assert (error.fault.code, error.fault.rule) == (Code.DISK_FULL, "per_lease.inodes")


def test_small_files_that_are_hollow_count_as_what_is_written(tmp_path: Path) -> None:
    taken = DiskShare(spec().limits, SpaceCheck(str(tmp_path), 0))
    for _ in range(31 * 16):
        taken.data(65_535)
    with pytest.raises(Failure) as caught:
        taken.data(1)
    assert caught.value.fault.code is Code.DISK_FULL


def test_as_many_entries_are_taken_along_as_the_limit_leaves_and_no_more(tmp_path: Path) -> None:
    taken = DiskShare(
        spec().limits.model_copy(update={"inodes": 100}), SpaceCheck(str(tmp_path), 0)
    )
    for _ in range(100 - OWN_INODES):
        taken.entry(0)
    with pytest.raises(Failure) as caught:
        taken.entry(0)
    assert (caught.value.fault.code, caught.value.fault.rule) == (
        Code.DISK_FULL,
        "per_lease.inodes",
    )


def test_the_hosts_reserve_is_kept_from_a_copy_as_well(tmp_path: Path) -> None:
    host = os.statvfs(tmp_path)
    space = SpaceCheck(str(tmp_path), 0)
    space._reserve = host.f_blocks * host.f_frsize  # it was filled meanwhile
    taken = DiskShare(spec().limits.model_copy(update={"disk_bytes": 1 << 40}), space)
    with pytest.raises(Failure) as caught:
        taken.data(128 << 20)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


def test_ids_outside_of_the_range_become_the_first() -> None:
    move = moved_ids(UID, NEW_UID)
    assert [move(UID), move(UID + 65_535)] == [NEW_UID, NEW_UID + 65_535]
    assert {move(0), move(UID - 1), move(UID + 65_536)} == {NEW_UID}


def test_a_tree_that_changes_meanwhile_leads_nowhere(
    house: House, parent: Workspace, source: Path, tmp_path: Path
) -> None:
    """A directory and a file are swapped for links to the host's, over and over."""
    secret = tmp_path / "secret"
    (secret / "d").mkdir(parents=True)
    (secret / "d/f").write_bytes(b"secret")
    top = place(parent)
    for index in range(40):
        (top / f"x{index}/d").mkdir(parents=True)
        (top / f"x{index}/d/f").write_bytes(b"inside")
    stop = threading.Event()

    def swap() -> None:
        while not stop.is_set():
            for index in range(40):
                here = top / f"x{index}"
                os.rename(here / "d", here / "aside")
                os.symlink(secret / "d", here / "d")
                os.unlink(here / "d")
                os.rename(here / "aside", here / "d")

    thread = threading.Thread(target=swap)
    thread.start()
    outcomes: set[Code | None] = set()
    try:
        for _ in range(30):
            try:
                fork = forked(house, source)
            except Failure as error:
                outcomes.add(error.fault.code)
                continue
            outcomes.add(None)
            for path in place(fork).rglob("f"):
                assert path.is_symlink() or path.read_bytes() == b"inside", path
            for path in place(fork).rglob("d"):
                assert path.is_symlink() or stat.S_ISDIR(os.lstat(path).st_mode)
            house.workspaces.remove(OTHER)
    finally:
        stop.set()
        thread.join()
    assert outcomes <= {None, Code.BUSY}


def test_data_is_counted_before_it_is_written(tmp_path: Path) -> None:
    (tmp_path / "a").write_bytes(b"x" * MIB)
    (tmp_path / "b").touch()
    told: list[int] = []

    def count(size: int) -> None:
        told.append(size)
        raise OSError(errno.ENOSPC, "full")

    with open(tmp_path / "a", "rb") as a, open(tmp_path / "b", "r+b") as b:
        with pytest.raises(OSError):
            copy_extents(a.fileno(), b.fileno(), MIB, count)
        assert told == [MIB]
        assert os.fstat(b.fileno()).st_size == 0


def test_a_copy_between_kinds_of_file_system(tmp_path: Path) -> None:
    """copy_file_range(2) answers EXDEV there."""
    data = os.urandom(3 * MIB + 5)
    memory = os.memfd_create("source", os.MFD_CLOEXEC)
    try:
        os.write(memory, data)
        with open(tmp_path / "b", "w+b") as b:
            copy_extents(memory, b.fileno(), len(data))
            assert os.pread(b.fileno(), len(data) + 1, 0) == data
    finally:
        os.close(memory)
