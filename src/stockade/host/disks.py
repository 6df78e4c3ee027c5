"""Disk images: a limit on bytes and inodes that the kernel enforces.

A lease's writable places share one sparse file that holds an ext4 file system of exactly the size
the lease may use. It costs the host what was written, not what was allowed. Making a file system
takes 4 ms, so it is done once for each pair of limits; every lease gets a copy of the template's
few data extents (84 KiB of 2 GiB, 0.3 ms). See docs/decisions/0003-disk-limit.md for the figures.

The file system has no journal and sends no flushes: the daemon's death loses nothing, because the
kernel lives on and unmounts cleanly, and after a loss of power no disk that was in use is mounted
again (`stockade.host.workspaces` sees to it).
"""

from __future__ import annotations

import fcntl
import os
import struct
import subprocess
import threading
from pathlib import Path
from typing import Final

from stockade.host import loopdev, programs, syscalls
from stockade.host.reasons import reason, without_place
from stockade.host.trees import copy_extents
from stockade.terms.fault import Code, failure

BLOCK_BYTES: Final = 4096
MIN_BYTES: Final = 1024 * 1024
# Block numbers of 32 bits.
MAX_BYTES: Final = (2**32 - 1) * BLOCK_BYTES
# ext4 keeps 11 for itself, and the workspace's two layers have their directories.
MIN_INODES: Final = 32

# Named one by one, so that a distribution's mke2fs.conf decides nothing. metadata_csum lets the
# inode tables stay unwritten (holes of the image) until they are used.
_FEATURES: Final = (
    "none,ext_attr,dir_index,filetype,extent,flex_bg,sparse_super,large_file,dir_nlink,"
    "extra_isize,metadata_csum"
)
# The number of the recipe: a template made by another one is never used.
_RECIPE: Final = 1
# s_magic and s_state, 56 bytes into the superblock (ext4(5), Documentation/filesystems/ext4).
_SUPERBLOCK: Final = 1024
_STATE: Final = struct.Struct("<56xHH")
_EXT4_MAGIC: Final = 0xEF53
_VALID: Final = 1
_EXT4_IOC_SHUTDOWN: Final = 0x8004587D
_SHUTDOWN_NOLOGFLUSH: Final = 2


class Disks:
    """Templates below `directory`, which is the daemon's own (mode 0700). Thread-safe."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory
        self._lock = threading.Lock()
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)

    def create(self, image: str, size_bytes: int, inodes: int, *, common: bool = True) -> None:
        """Make the new file `image`. The size is rounded down to blocks; inodes are rounded up by
        at most 16 for each 128 MiB, and there are no more than blocks. A disk that is not `common`
        leaves no template: no other lease has its limits. Raises Failure(invalid_argument,
        unenforceable, storage_unavailable)."""
        size_bytes, inodes = _checked(size_bytes, inodes)
        try:
            if common:
                copy_image(self._template(size_bytes, inodes), image)
            else:
                _make_file_system(image, size_bytes, inodes)
        except OSError as error:
            raise failure(
                Code.STORAGE_UNAVAILABLE, f"a disk image could not be made: {reason(error)}"
            ) from error

    def _template(self, size_bytes: int, inodes: int) -> str:
        path = self._directory / f"ext4-{_RECIPE}-{size_bytes}-{inodes}.img"
        with self._lock:
            if not path.exists():
                partial = path.with_suffix(".part")
                _make_file_system(str(partial), size_bytes, inodes)
                partial.rename(path)
        return str(path)


def _checked(size_bytes: int, inodes: int) -> tuple[int, int]:
    size_bytes -= size_bytes % BLOCK_BYTES
    if size_bytes < MIN_BYTES or inodes < MIN_INODES:
        raise failure(
            Code.INVALID_ARGUMENT,
            f"a disk has at least {MIN_BYTES} bytes and {MIN_INODES} inodes",
            disk_bytes=size_bytes,
            inodes=inodes,
        )
    if size_bytes > MAX_BYTES:
        raise failure(
            Code.UNENFORCEABLE,
            f"disk_bytes is {size_bytes}; a disk has at most {MAX_BYTES} bytes",
            rule="per_lease.disk_bytes",
            most=MAX_BYTES,
        )
    # A tenant may narrow the size alone; a table for more files than blocks would fill the disk.
    return size_bytes, min(inodes, size_bytes // BLOCK_BYTES)


def _make_file_system(image: str, size_bytes: int, inodes: int) -> None:
    program = programs.find("mke2fs")
    if program is None:
        raise failure(Code.ENGINE_UNAVAILABLE, "mke2fs is not installed (package e2fsprogs)")
    fd = os.open(image, os.O_RDWR | os.O_CREAT | os.O_TRUNC | os.O_CLOEXEC, 0o600)
    try:
        os.ftruncate(fd, size_bytes)
    finally:
        os.close(fd)
    # No reserved blocks: nobody but the lease uses the disk. Inodes of 256 bytes hold the
    # overlay's attributes in place.
    argv = [program, "-q", "-F", "-m", "0", "-b", str(BLOCK_BYTES), "-I", "256", "-N", str(inodes)]
    argv += ["-O", _FEATURES, "-E", "lazy_itable_init=1,nodiscard,root_owner=0:0", image]
    done = subprocess.run(
        argv,
        env={"MKE2FS_CONFIG": "/dev/null"},
        stdin=subprocess.DEVNULL,
        capture_output=True,
        check=False,
        timeout=60,
    )
    if done.returncode != 0:
        said = without_place(done.stderr.decode(errors="replace").strip(), Path(image).parent)
        raise failure(Code.STORAGE_UNAVAILABLE, f"mke2fs could not format a disk: {said}")


def copy_image(source: str, target: str) -> None:
    """Copy a sparse file with its holes to the new file `target`. Raises OSError."""
    source_fd = os.open(source, os.O_RDONLY | os.O_CLOEXEC)
    try:
        target_fd = os.open(target, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            size = os.fstat(source_fd).st_size
            copy_extents(source_fd, target_fd, size)
            os.ftruncate(target_fd, size)
        finally:
            os.close(target_fd)
    finally:
        os.close(source_fd)


def mount(image: str, *, fresh: bool) -> tuple[int, int]:
    """The number of the loop device of `image` and a detached mount of it.

    To be called inside the mount holder. `fresh` says that nothing can hold the image yet, which
    saves the search through all loop devices. Raises OSError.
    """
    found = None if fresh else loopdev.attached(image)
    number, device = found or loopdev.attach(image)
    try:
        # noinit_itable: no kernel thread that fills the image with zeroed inode tables.
        # noauto_da_alloc: a rename does not flush the file, 0.24 instead of 0.45 ms an edit; these
        # disks do not survive a power loss anyway (docs/decisions/0003).
        # nodev keeps the overlay's whiteouts (device 0:0) from being opened.
        return number, syscalls.new_mount(
            "ext4",
            {"source": loopdev.node(number)},
            ("noinit_itable", "nobarrier", "noauto_da_alloc"),
            syscalls.MOUNT_ATTR_NOSUID
            | syscalls.MOUNT_ATTR_NODEV
            | syscalls.MOUNT_ATTR_NOEXEC
            | syscalls.MOUNT_ATTR_NOATIME,
        )
    finally:
        os.close(device)


def unmounted(image: str) -> bool:
    """Whether the file system says that it was unmounted in good order (s_state of its superblock:
    valid, no errors); without a journal that is taken back whenever it is mounted. False for what
    is no file system. Raises OSError."""
    with open(image, "rb") as file:
        file.seek(_SUPERBLOCK)
        block = file.read(_STATE.size)
    return len(block) == _STATE.size and _STATE.unpack(block) == (_EXT4_MAGIC, _VALID)


def shut_down(dir_fd: int) -> None:
    """Stop the file system for good, throwing away what it hasn't written. For a disk that is
    being dropped: halves the time of its unmount, and whatever still holds it gets EIO."""
    fcntl.ioctl(dir_fd, _EXT4_IOC_SHUTDOWN, struct.pack("=I", _SHUTDOWN_NOLOGFLUSH))
