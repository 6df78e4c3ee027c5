"""The two files of the audit beside the ledger: the key that signs, and the last checkpoint.

The key is separate from the keys that tokens are signed with, under the same rules
(`private_file`). The checkpoint is written after it is in the ledger, so the file never says more
than the ledger had: a ledger whose end was cut off is noticed by it.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Final, Literal

from pydantic import StringConstraints, ValidationError

from stockade.decide.signatures import SEED_BYTES
from stockade.ledger import private_file
from stockade.terms.audit import Checkpoint
from stockade.terms.base import Model
from stockade.terms.fault import Code, failure

KEY_FILE: Final = "audit-key.json"
CHECKPOINT_FILE: Final = "audit-checkpoint.json"
_MAX_FILE_BYTES: Final = 4096


class AuditKeyFile(Model):
    """`seed` is the 32 bytes of an Ed25519 private key (RFC 8032) in hex."""

    version: Literal[1]
    seed: Annotated[str, StringConstraints(pattern=r"^[0-9a-f]{64}$")]


def load_or_create_seed(path: Path, random_hex: Callable[[int], str]) -> bytes:
    """Read the key, or write a new one. `random_hex(n)` gives n random bytes. Raises
    Failure(storage_unavailable)."""
    try:
        seed = AuditKeyFile.model_validate_json(private_file.read(path, _MAX_FILE_BYTES)).seed
    except FileNotFoundError:
        seed = random_hex(SEED_BYTES)
        made = AuditKeyFile(version=1, seed=seed).model_dump_json().encode()
        private_file.replace(path, made)
    except OSError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be used: {error}") from error
    except ValidationError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} is no key of the audit") from error
    return bytes.fromhex(seed)


def save_checkpoint(path: Path, made: Checkpoint) -> None:
    """Raises Failure(storage_unavailable)."""
    private_file.replace(path, made.model_dump_json().encode() + b"\n")


def load_checkpoint(path: Path) -> Checkpoint | None:
    """None where there is none yet. Raises Failure(storage_unavailable)."""
    try:
        return Checkpoint.model_validate_json(private_file.read(path, _MAX_FILE_BYTES))
    except FileNotFoundError:
        return None
    except OSError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} can't be used: {error}") from error
    except ValidationError as error:
        raise failure(Code.STORAGE_UNAVAILABLE, f"{path} is no checkpoint") from error
