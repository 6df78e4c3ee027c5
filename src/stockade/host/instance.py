"""Whose things these are: the instance id of a state directory, and the lock that holds it.

Everything that is created on the host carries the id (cgroup names, directories). A state directory
is used by one process at a time; the kernel drops the lock when that process dies, however it dies.
"""

from __future__ import annotations

import fcntl
import os
import re
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.terms.fault import Code, failure

_LOCK: Final = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
_ID: Final = re.compile(r"^[0-9a-f]{8}$")


@dataclass(frozen=True, slots=True)
class Instance:
    id: str
    lock_fd: int

    def release(self) -> None:
        os.close(self.lock_fd)


def acquire(state_dir: Path, random_hex: Callable[[int], str]) -> Instance:
    """Lock the state directory, making it when it is new. `random_hex(n)` gives n random bytes.
    Raises Failure(storage_unavailable), and when another process holds it."""
    try:
        state_dir.mkdir(parents=True, exist_ok=True)
        owner = state_dir.stat().st_uid
        if owner != os.geteuid():
            # Its owner could replace every file below, and the keys are there.
            raise failure(
                Code.STORAGE_UNAVAILABLE,
                f"the state directory {state_dir} belongs to user {owner}; give it to user "
                f"{os.geteuid()}, or use another one",
            )
        # Searchable, because a sandbox's root is resolved by its mapped user; what is secret below
        # has a mode of its own.
        state_dir.chmod(0o711)
        lock = os.open(state_dir / "lock", _LOCK, 0o600)
    except OSError as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE,
            f"the state directory {state_dir} can't be used: {error.strerror}",
        ) from error
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        os.close(lock)
        raise failure(
            Code.BUSY, f"another Stockade uses the state directory {state_dir}"
        ) from error
    text = os.pread(lock, 64, 0).decode("ascii", "replace").strip()
    if not _ID.match(text):
        text = random_hex(4)
        os.pwrite(lock, text.encode(), 0)
        os.fsync(lock)
    return Instance(text, lock)
