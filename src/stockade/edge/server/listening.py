"""The listening unix socket: made with its final mode, and never taken from a living daemon."""

from __future__ import annotations

import os
import socket
import stat
from pathlib import Path

_BACKLOG = 1024


class ListenError(Exception):
    """The socket can't be had; the message is one line."""


def listen(path: str, mode: int) -> socket.socket:
    """A listening socket at `path`. Raises ListenError when something answers there, or when
    what is there is not a socket.

    It is bound under another name, given its mode, and renamed: nobody can connect while its mode
    is still the umask's, and a stale socket is replaced in one step.
    """
    parent = Path(path).parent
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    try:
        # Others must be able to search the directory only if the socket is for them.
        parent.mkdir(mode=0o755 if mode & 0o077 else 0o700, parents=True, exist_ok=True)
        _check_free(path)
        temporary = parent / f".{os.getpid()}.sock"
        temporary.unlink(missing_ok=True)
        made.bind(str(temporary))
        temporary.chmod(mode)
        temporary.rename(path)
        made.listen(_BACKLOG)
    except OSError as error:
        made.close()
        raise ListenError(f"can't listen on {path}: {error.strerror or error}") from error
    except ListenError:
        made.close()
        raise
    return made


def answers(path: str) -> bool:
    """Whether a daemon accepts connections at `path`. Raises OSError where it can't be told."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as probe:
        probe.settimeout(2)
        try:
            probe.connect(path)
        except (FileNotFoundError, ConnectionRefusedError, NotADirectoryError):
            return False
        return True


def remove(path: str, inode: tuple[int, int]) -> None:
    """Unlink `path` if it still is that socket."""
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if (found.st_dev, found.st_ino) == inode:
        Path(path).unlink(missing_ok=True)


def inode_of(path: str) -> tuple[int, int]:
    found = os.lstat(path)
    return found.st_dev, found.st_ino


def _check_free(path: str) -> None:
    try:
        found = os.lstat(path)
    except FileNotFoundError:
        return
    if not stat.S_ISSOCK(found.st_mode):
        raise ListenError(f"can't listen on {path}: it exists and is not a socket")
    if answers(path):
        raise ListenError(f"can't listen on {path}: another daemon answers there")
