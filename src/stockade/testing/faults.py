"""Named places at which a test lets something go wrong.

Code that can be interrupted is given a `point` function and calls it with the names of its steps;
outside tests it is given none. An armed point runs its action once: raise, or end the process as a
power cut would.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable

Point = Callable[[str], None]


def unarmed(name: str) -> None:
    """The point function of code under no test."""


class Faults:
    """`seen` lists the points that were passed, in order."""

    def __init__(self) -> None:
        self._armed: dict[str, Callable[[], None]] = {}
        self.seen: list[str] = []

    def arm(self, name: str, action: Callable[[], None]) -> None:
        self._armed[name] = action

    def point(self, name: str) -> None:
        self.seen.append(name)
        action = self._armed.pop(name, None)
        if action is not None:
            action()


def raising(error: Exception) -> Callable[[], None]:
    def action() -> None:
        raise error

    return action


def die() -> None:
    """End this process at once: no handler, no finally, no flush."""
    os.kill(os.getpid(), signal.SIGKILL)
