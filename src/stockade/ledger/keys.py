"""The root secrets that tokens are signed with: one file, replaced as a whole or not at all.

Who can read the file can make any token, so it is refused where anybody else could
(`private_file`). A crash leaves the old keys or the new ones, and a half-written file is never read.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal, Self

from pydantic import Field, StringConstraints, ValidationError, model_validator

from stockade.decide.tokens import SECRET_BYTES
from stockade.ledger import private_file
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
    private_file.replace(path, content, point)


def _read(path: Path) -> KeyFile:
    return KeyFile.model_validate_json(private_file.read(path, _MAX_FILE_BYTES))
