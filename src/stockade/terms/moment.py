"""One reading of the host's clocks, and who gives it.

The wall clock is for people and for tokens, whose times are written by others. It can be set, by a
person or by a time service. What has to last for so long and no longer runs on the boot's own clock
(CLOCK_BOOTTIME), which nobody can set and which goes on while the host sleeps; its readings mean
something only together with the boot's name.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Moment:
    """`wall_s` is seconds since the epoch, `boot_s` seconds since the boot that `boot` names."""

    wall_s: float
    boot_s: float
    boot: str


class Timekeeper(Protocol):
    """The host's clocks. Called, it gives the wall clock's seconds (`terms.ports.Clock`)."""

    def __call__(self) -> float: ...
    def moment(self) -> Moment: ...
