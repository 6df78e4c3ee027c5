"""The root secrets that tokens are signed with: one file, replaced as a whole or not at all.

Who can read the file can make any token, so it is refused where anybody else could: a wider mode
than 0600, another owner, a symbolic link, anything but a regular file. It is written to a new file
beside it, brought to the disk, and renamed over the old one; a crash before the rename leaves the
old keys, after it the new ones, and a half-written file is never read.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from stockade.decide.tokens import SECRET_BYTES
from stockade.terms.authority import MAX_KEYS, RootKeys
from stockade.terms.base import Model
from stockade.terms.fault import Code, failure
from stockade.terms.ids import Name

FIRST_KID: Final = "k1"
_MAX_FILE_BYTES: Final = 65536


class KeyFile(Model):
    """`current` signs new tokens; the others are still accepted. Secrets are 32 bytes in hex."""

    version: Literal[1]
    current: Name
    keys: Annotated[
        dict[Name, Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]],
        Field(min_length=1, max_length=MAX_KEYS),
    ]

    @model_validator(mode="after")
    def _current_is_there(self) -> Self:
        if self.current not in self.keys:
            raise ValueError("current names a key that is not there")
        return self


def load_or_create(path: Path, random_hex: Callable[[int], str]) -> RootKeys:
    """Read the file, or write a new one with one key. `random_hex(n)` gives n random bytes.
    Raises Failure(storage_unavailable)."""
    try:
        file = _read(path)
    except FileNotFoundError:
        first = RootKeys(FIRST_KID, {FIRST_KID: bytes.fromhex(random_hex(SECRET_BYTES))})
        save(path, first)
        return first
    except OSError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be used: {error}") from error
    except ValidationError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} is not a key file") from error
    return RootKeys(file.current, {kid: bytes.fromhex(secret) for kid, secret in file.keys.items()})


def save(path: Path, keys: RootKeys, point: Callable[[str], None] = lambda name: None) -> None:
    """Replace the file. `point(name)` is called between the steps; outside of tests it does
    nothing. Raises Failure(storage_unavailable): what is on the disk is then the old or the new
    content, whole."""
    secrets = {kid: secret.hex() for kid, secret in keys.secrets.items()}
    content = KeyFile(version=1, current=keys.current, keys=secrets).model_dump_json().encode()
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


def _read(path: Path) -> KeyFile:
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
        return KeyFile.model_validate_json(file.read(_MAX_FILE_BYTES))


def _sync_directory(directory: Path) -> None:
    fd = os.open(directory, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)
