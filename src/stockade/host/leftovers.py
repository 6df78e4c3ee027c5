"""What embedded runtimes left behind when they were killed: found by their label, removed.

Every embedded runtime has a state directory of its own below one place and holds its lock. A
directory whose lock is free belongs to a process that is dead; everything of it carries the
instance id that the lock file holds, so nothing else is ever touched.
"""

from __future__ import annotations

import logging
import os
import secrets
from pathlib import Path
from typing import Final

from stockade.host import cgroup, instance, trees
from stockade.host.cgroup import Hierarchies
from stockade.host.lease_groups import LeaseGroups
from stockade.terms.fault import Failure

LOG: Final = logging.getLogger("stockade.leftovers")
_KILL_S: Final = 5.0


def collect(place: Path, hierarchies: Hierarchies) -> None:
    """Remove the state directories below `place` that no process holds. What can't be removed is
    logged and tried again by the next embedded runtime."""
    place.mkdir(mode=0o711, exist_ok=True)
    directory = os.open(place, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        for name in os.listdir(directory):
            if not instance.alive(place / name):
                _collect_one(place, directory, name, hierarchies)
    finally:
        os.close(directory)


def _collect_one(place: Path, directory: int, name: str, hierarchies: Hierarchies) -> None:
    try:
        # Taking the lock decides who collects it; one that is being made now is not there yet.
        if not (place / name / "lock").exists():
            return
        owned = instance.acquire(place / name, secrets.token_hex)
    except Failure:
        return  # another process was faster
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
        owned.release()
