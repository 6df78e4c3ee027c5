"""Loop devices by ioctl: a file as a block device, given back by the kernel after its last user.

Two devices on one image would each cache it and destroy it. After a crash a sandbox of the dead
daemon may still hold an image's device, so `attached` looks through all devices and compares the
image's (device, inode), never its path; mounting that device again gives the same superblock.
AUTOCLEAR detaches with the last close or unmount, whoever dies.
"""

from __future__ import annotations

import fcntl
import os
import struct
from errno import EBUSY, ENODEV, ENOENT, ENXIO
from typing import Final

_LOOP_GET_STATUS64: Final = 0x4C05
_LOOP_CONFIGURE: Final = 0x4C0A  # Linux 5.8
_LOOP_CTL_GET_FREE: Final = 0x4C82
_LO_FLAGS_AUTOCLEAR: Final = 4
_BLOCK_SIZE: Final = 4096
_MAX_TRIES: Final = 64

# struct loop_info64: device, inode, rdevice, offset, sizelimit; number, encrypt_type,
# encrypt_key_size, flags; file_name[64], crypt_name[64], encrypt_key[32], init[2]
_INFO: Final = struct.Struct("=QQQQQIIII64s64s32s16s")
# struct loop_config: fd, block_size, info, reserved[8]
_CONFIG: Final = struct.Struct(f"=II{_INFO.size}s64s")


def node(number: int) -> str:
    return f"/dev/loop{number}"


def attach(image: str) -> tuple[int, int]:
    """Put `image` on a free device. Gives the device's number and a descriptor of it, which keeps
    the device until it is closed: mount first, then close. Raises OSError."""
    image_fd = os.open(image, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    try:
        control = os.open("/dev/loop-control", os.O_RDWR | os.O_CLOEXEC)
        try:
            for _ in range(_MAX_TRIES):
                number: int = fcntl.ioctl(control, _LOOP_CTL_GET_FREE)
                device = os.open(node(number), os.O_RDWR | os.O_CLOEXEC)
                ours = False
                try:
                    ours = _configure(device, image_fd)
                finally:
                    if not ours:
                        os.close(device)
                if ours:
                    return number, device
        finally:
            os.close(control)
    finally:
        os.close(image_fd)
    raise OSError(EBUSY, "no loop device stayed free long enough")


def attached(image: str) -> tuple[int, int] | None:
    """The device that holds `image` already, as `attach` gives it, or None."""
    wanted = os.stat(image, follow_symlinks=False)
    for entry in os.listdir("/sys/block"):
        if not entry.startswith("loop") or not os.path.exists(f"/sys/block/{entry}/loop"):
            continue  # the directory `loop` exists only while the device holds a file
        try:
            device = os.open(f"/dev/{entry}", os.O_RDWR | os.O_CLOEXEC)
        except OSError as error:
            if error.errno in (ENOENT, ENXIO, ENODEV):  # it went away meanwhile
                continue
            raise
        found = False
        try:
            found = _holds(device, wanted)
        finally:
            if not found:
                os.close(device)
        if found:
            return int(entry.removeprefix("loop")), device
    return None


def holds(number: int, image: os.stat_result) -> bool:
    """Whether the device still holds the file that `image` describes, also when it is unlinked."""
    try:
        device = os.open(node(number), os.O_RDWR | os.O_CLOEXEC)
    except OSError as error:
        if error.errno in (ENOENT, ENXIO, ENODEV):
            return False
        raise
    try:
        return _holds(device, image)
    finally:
        os.close(device)


def _configure(device: int, image_fd: int) -> bool:
    info = _INFO.pack(0, 0, 0, 0, 0, 0, 0, 0, _LO_FLAGS_AUTOCLEAR, b"", b"", b"", b"")
    try:
        fcntl.ioctl(device, _LOOP_CONFIGURE, _CONFIG.pack(image_fd, _BLOCK_SIZE, info, b""))
    except OSError as error:
        if error.errno == EBUSY:  # another process took it after GET_FREE
            return False
        raise
    return True


def _holds(device: int, wanted: os.stat_result) -> bool:
    buffer = bytearray(_INFO.size)
    try:
        fcntl.ioctl(device, _LOOP_GET_STATUS64, buffer, True)
    except OSError as error:
        if error.errno == ENXIO:  # it holds nothing any more
            return False
        raise
    backing_device, inode = _INFO.unpack(buffer)[:2]
    return (backing_device, inode) == (wanted.st_dev, wanted.st_ino)
