"""State directories of embedded runtimes: a new one for each, and what killed ones left behind.

Every embedded runtime has a state directory of its own below one place and holds its lock. A
directory whose lock is free belongs to a process that is dead; everything of it carries the
instance id that the lock file holds, so nothing else is ever touched.

A directory is made and locked, or looked at and claimed, under the place's own lock: what is free
there was never about to be used. Only one process collects at a time.
"""

from __future__ import annotations

import fcntl
import logging
import os
import secrets
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from stockade.host import cgroup, instance, trees
from stockade.host.cgroup import Hierarchies
from stockade.host.instance import Instance
from stockade.host.lease_groups import LeaseGroups
from stockade.host.reasons import reason
from stockade.terms.fault import Code, Failure, failure

LOG: Final = logging.getLogger("stockade.leftovers")
_KILL_S: Final = 5.0
_COLLECTING: Final = ".collecting"


def new_state(place: Path) -> tuple[Path, Instance]:
    """A new state directory below `place`, and its lock. Raises Failure(storage_unavailable)."""
    try:
        place.mkdir(mode=0o711, exist_ok=True)
        with _held(place):
            state = Path(tempfile.mkdtemp(dir=place))
            return state, instance.acquire(state, secrets.token_hex)
    except OSError as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE, f"no state directory can be made in {place}: {error}"
        ) from error


def remove_state(state: Path, owned: Instance) -> None:
    """Remove what `new_state` made, when nothing uses it any more, and free its lock. The lock's
    file goes last: a directory without one looks like a dead process's."""
    for entry in state.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != "lock":
            entry.unlink()
    with _held(state.parent):
        shutil.rmtree(state)
        owned.release()


def collect(place: Path, hierarchies: Hierarchies) -> None:
    """Remove the state directories below `place` that no process holds. What can't be removed is
    logged and tried again by the next embedded runtime."""
    if not place.exists():
        return
    with _alone(place) as alone:
        for name in sorted(os.listdir(place)) if alone else ():
            if not name.startswith("."):
                _collect_one(place, name, hierarchies)


def _collect_one(place: Path, name: str, hierarchies: Hierarchies) -> None:
    try:
        with _held(place):
            if not (place / name).is_dir():
                return  # its owner has ended in good order meanwhile
            owned = instance.acquire(place / name, secrets.token_hex)
    except Failure:
        return  # in use
    directory = _open(place)
    try:
        for lease_id in cgroup.leases_of(hierarchies, owned.id):
            groups = LeaseGroups(hierarchies, owned.id, lease_id)
            if cgroup.kill(groups.unified, _KILL_S):
                groups.remove()
        LeaseGroups(hierarchies, owned.id, "none").remove_instance()
        trees.remove_tree(directory, os.fsencode(name))
    except OSError as error:
        LOG.warning("the leftovers of %s could not be removed yet: %s", name, error)
    finally:
        os.close(directory)
        owned.release()


def _open(place: Path) -> int:
    """A descriptor of the place. The directory above it may be everybody's (/var/tmp), so what is
    found there may be a link or another user's. Raises Failure(storage_unavailable)."""
    try:
        directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError as error:
        raise failure(
            Code.STORAGE_UNAVAILABLE, f"{place} is no directory of ours: {reason(error)}"
        ) from error
    owner = os.fstat(directory).st_uid
    if owner != os.geteuid():
        os.close(directory)
        raise failure(
            Code.STORAGE_UNAVAILABLE, f"{place} belongs to user {owner}; remove it, it is not ours"
        )
    return directory


@contextmanager
def _held(place: Path) -> Iterator[None]:
    """The place's lock: for moments only."""
    directory = _open(place)
    try:
        fcntl.flock(directory, fcntl.LOCK_EX)
        yield
    finally:
        os.close(directory)


@contextmanager
def _alone(place: Path) -> Iterator[bool]:
    """Whether no other process collects here."""
    directory = _open(place)
    try:
        flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW | os.O_CLOEXEC
        lock = os.open(_COLLECTING, flags, 0o600, dir_fd=directory)
    finally:
        os.close(directory)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            yield False
        else:
            yield True
    finally:
        os.close(lock)
