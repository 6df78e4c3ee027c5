from __future__ import annotations

import errno
import os
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.host import disks, loopdev, syscalls
from stockade.host.disks import Disks
from stockade.host.mounts import MountHolder
from stockade.terms.fault import Code, Failure

MIB = 1 << 20


@pytest.fixture
def holder(tmp_path: Path) -> Iterator[MountHolder]:
    holder = MountHolder(tmp_path / "mounts")
    yield holder
    holder.close()


@pytest.fixture
def mounted(tmp_path: Path, holder: MountHolder) -> Iterator[Callable[[int, int], int]]:
    """Makes a disk, mounts it and gives a descriptor of its root directory."""
    fds: list[int] = []
    store = Disks(tmp_path / "disks")

    def make(size: int, inodes: int) -> int:
        image = str(tmp_path / f"disk{len(fds)}.img")
        store.create(image, size, inodes)
        point = f"{holder.path}/{len(fds)}"

        def mount() -> int:
            os.mkdir(point)
            _, fd = disks.mount(image, fresh=True)
            holder.attach(fd, point)
            os.close(fd)
            return os.open(point, os.O_RDONLY | os.O_DIRECTORY)

        fds.append(holder.run(mount))
        return fds[-1]

    yield make
    for fd in fds:
        os.close(fd)


def filled(dir_fd: int) -> int:
    """How many bytes fit into one file; raises unless the end is ENOSPC."""
    fd = os.open("big", os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd)
    total = 0
    try:
        while True:
            total += os.write(fd, b"x" * MIB)
    except OSError as error:
        if error.errno != errno.ENOSPC:
            raise
    finally:
        os.close(fd)
    return total


def made_files(dir_fd: int, tries: int) -> int:
    """How many empty files can be made; raises unless the end is ENOSPC."""
    for made in range(tries):
        try:
            os.close(os.open(f"f{made}", os.O_CREAT | os.O_WRONLY, dir_fd=dir_fd))
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            return made
    raise AssertionError("there was no end")


def test_b33_bytes_end_at_the_limit(mounted: Callable[[int, int], int]) -> None:
    root = mounted(32 * MIB, 1000)
    assert 28 * MIB < filled(root) <= 32 * MIB
    os.unlink("big", dir_fd=root)
    assert 28 * MIB < filled(root) <= 32 * MIB


def test_b33_inodes_end_at_the_limit(mounted: Callable[[int, int], int]) -> None:
    root = mounted(64 * MIB, 2000)
    assert 1900 < made_files(root, 4000) <= 2016
    os.unlink("f0", dir_fd=root)
    os.close(os.open("again", os.O_CREAT | os.O_WRONLY, dir_fd=root))


def test_an_unused_disk_costs_the_host_next_to_nothing(
    mounted: Callable[[int, int], int], tmp_path: Path
) -> None:
    mounted(4096 * MIB, 500_000)
    image = os.stat(tmp_path / "disk0.img")
    assert image.st_size == 4096 * MIB
    assert image.st_blocks * 512 < MIB


def test_disks_of_one_template_are_apart(mounted: Callable[[int, int], int]) -> None:
    one, two = mounted(16 * MIB, 500), mounted(16 * MIB, 500)
    os.mkdir("only-here", dir_fd=one)
    assert "only-here" not in os.listdir(two)


def test_a_shut_down_disk_answers_nothing_but_errors(mounted: Callable[[int, int], int]) -> None:
    root = mounted(16 * MIB, 500)
    disks.shut_down(root)
    with pytest.raises(OSError) as caught:
        os.mkdir("d", dir_fd=root)
    assert caught.value.errno == errno.EIO


@pytest.mark.parametrize(("size", "inodes"), [(1000, 1000), (16 * MIB, 31)])
def test_a_disk_too_small_is_refused(tmp_path: Path, size: int, inodes: int) -> None:
    with pytest.raises(Failure) as caught:
        Disks(tmp_path / "disks").create(str(tmp_path / "img"), size, inodes)
    assert caught.value.fault.code is Code.INVALID_ARGUMENT
    assert not (tmp_path / "img").exists()


def test_a_disk_larger_than_its_file_system_can_be_is_unenforceable(tmp_path: Path) -> None:
    with pytest.raises(Failure) as caught:
        Disks(tmp_path / "disks").create(str(tmp_path / "img"), disks.MAX_BYTES + 4096, 1000)
    assert caught.value.fault.code is Code.UNENFORCEABLE
    assert not (tmp_path / "img").exists()


def test_there_are_no_more_inodes_than_blocks(mounted: Callable[[int, int], int]) -> None:
    root = mounted(4 * MIB, 10_000_000)
    assert 900 < os.fstatvfs(root).f_files <= 4 * MIB // disks.BLOCK_BYTES + 16
    assert filled(root) >= 3 * MIB


def test_an_image_is_never_overwritten(tmp_path: Path) -> None:
    store = Disks(tmp_path / "disks")
    (tmp_path / "img").write_bytes(b"precious")
    with pytest.raises(Failure):
        store.create(str(tmp_path / "img"), 16 * MIB, 500)
    assert (tmp_path / "img").read_bytes() == b"precious"


def test_an_image_that_is_held_already_gets_the_same_device(
    tmp_path: Path, holder: MountHolder
) -> None:
    image = str(tmp_path / "img")
    Disks(tmp_path / "disks").create(image, 16 * MIB, 500)
    assert loopdev.attached(image) is None
    first, first_fd = loopdev.attach(image)
    found = loopdev.attached(image)
    assert found is not None
    assert found[0] == first
    os.close(found[1])

    def twice() -> None:
        for name in ("one", "two"):
            os.mkdir(f"{holder.path}/{name}")
            number, fd = disks.mount(image, fresh=False)
            assert number == first
            holder.attach(fd, f"{holder.path}/{name}")
            os.close(fd)
        os.mkdir(f"{holder.path}/one/d")
        assert "d" in os.listdir(f"{holder.path}/two")
        for name in ("one", "two"):
            syscalls.detach(os.fsencode(f"{holder.path}/{name}"))

    holder.run(twice)
    info = os.stat(image)
    os.unlink(image)
    assert loopdev.holds(first, info)
    os.close(first_fd)
    # The kernel gives a device back a moment after its last mount is gone.
    until = time.monotonic() + 30
    while loopdev.holds(first, info):
        assert time.monotonic() < until
        os.sched_yield()
