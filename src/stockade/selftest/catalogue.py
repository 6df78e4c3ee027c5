"""Every attempt, in the order of the report."""

from __future__ import annotations

import platform
from fnmatch import fnmatchcase
from typing import Final

from stockade.selftest import (
    daemons,
    files,
    identities,
    kernel,
    neighbours,
    network,
    privileges,
    processes,
    resources,
    trees,
)
from stockade.selftest.attempt import Attempt

ATTEMPTS: Final[tuple[Attempt, ...]] = (
    *files.ATTEMPTS,
    *trees.ATTEMPTS,
    *processes.ATTEMPTS,
    *identities.ATTEMPTS,
    *kernel.ATTEMPTS,
    *privileges.ATTEMPTS,
    *network.ATTEMPTS,
    *neighbours.ATTEMPTS,
    *daemons.ATTEMPTS,
    *resources.ATTEMPTS,
)


def chosen(only: str | None) -> tuple[Attempt, ...]:
    """Those of this machine whose name matches the pattern `only` (fnmatch), or all."""
    here = platform.machine()
    return tuple(
        attempt
        for attempt in ATTEMPTS
        if attempt.machine in (None, here) and (only is None or fnmatchcase(attempt.name, only))
    )
