"""Files that hold a secret: read only where nobody else can read them, replaced whole or not at all.

Refused: a wider mode than 0600, another owner, a symbolic link, anything but a regular file. A new
content is written to a file beside it, brought to the disk, and renamed over the old one; a crash
before the rename leaves the old content, after it the new one.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path

from stockade.terms.fault import Code, failure


def read(path: Path, max_bytes: int) -> bytes:
    """At most `max_bytes` bytes. Raises Failure(storage_unavailable), OSError."""
    fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    with os.fdopen(fd, "rb") as file:
        about = os.fstat(file.fileno())
        if not stat.S_ISREG(about.st_mode):
            raise failure(Code.STORAGE_UNAVAILABLE, f"{path} is not a regular file")
        if about.st_uid != os.geteuid():
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                f"{path} belongs to user {about.st_uid}, who could read the keys: "
                f"chown {os.geteuid()} {path}",
            )
        mode = stat.S_IMODE(about.st_mode)
        if mode & 0o077:
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                f"{path} has mode {mode:04o}; others could read the keys: chmod 0600 {path}",
            )
        return file.read(max_bytes)


def replace(path: Path, content: bytes, point: Callable[[str], None] = lambda name: None) -> None:
    """`point(name)` is called between the steps; outside of tests it does nothing. Raises
    Failure(storage_unavailable): what is on the disk is then the old or the new content, whole."""
    fresh = path.with_name(f"{path.name}.new")
    try:
        # What a crash left of an earlier attempt.
        fresh.unlink(missing_ok=True)
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC | os.O_NOFOLLOW
        with os.fdopen(os.open(fresh, flags, 0o600), "wb") as file:
            file.write(content)
            file.flush()
            point("keys.written")
            os.fsync(file.fileno())
        point("keys.synced")
        fresh.rename(path)
        point("keys.renamed")
        _sync_directory(path.parent)
    except OSError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be written: {error}") from error


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
