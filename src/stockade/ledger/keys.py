"""The root secrets that tokens are signed with: one file, mode 0600, refused when it is wider."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import Field, StringConstraints, ValidationError

from stockade.terms.base import Model
from stockade.terms.fault import Code, failure
from stockade.terms.ids import Name

FIRST_KID: Final = "k1"
_SECRET_BYTES: Final = 32


class KeyFile(Model):
    """`current` signs new tokens; the others are still accepted. Secrets are 32 bytes in hex."""

    version: Literal[1]
    current: Name
    keys: Annotated[
        dict[Name, Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]],
        Field(min_length=1, max_length=16),
    ]

    def secrets(self) -> Mapping[str, bytes]:
        return {kid: bytes.fromhex(secret) for kid, secret in self.keys.items()}


def load_or_create(path: Path, random_hex: Callable[[int], str]) -> KeyFile:
    """Read the file, or write a new one with one key. `random_hex(n)` gives n random bytes.
    Raises Failure(storage_unavailable)."""
    try:
        fd = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW, 0o600)
        with os.fdopen(fd, "r+b") as file:
            mode = os.fstat(file.fileno()).st_mode & 0o7777
            if mode & 0o077:
                raise failure(
                    Code.STORAGE_UNAVAILABLE,
                    f"{path} has mode {mode:04o}; others could read the keys: chmod 0600 {path}",
                )
            text = file.read(65536)
            if text:
                return KeyFile.model_validate_json(text)
            keys = KeyFile(
                version=1, current=FIRST_KID, keys={FIRST_KID: random_hex(_SECRET_BYTES)}
            )
            file.write(keys.model_dump_json().encode())
            file.flush()
            os.fsync(file.fileno())
            return keys
    except OSError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be used: {error}") from error
    except ValidationError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} is not a key file") from error
