"""Which processes wait, and which must not."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import cast

from stockade.engines.oci.held import Template
from stockade.engines.oci.making import Placed
from stockade.engines.oci.spares import Spares
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import SandboxGroups


@dataclass
class Guest:
    """Notes what it need not keep."""

    told: list[int] = field(default_factory=list)

    def done(self, number: int) -> None:
        self.told.append(number)


class Waiting:
    """Stands for each part of one that waits."""

    def __init__(self, number: int) -> None:
        self.id = number

    def close(self) -> None:
        pass


def placed(number: int, *, held: bool) -> Placed:
    made = Waiting(number)
    return Placed(made, made, made, held)  # type: ignore[arg-type]


def template(secret: bytes) -> Template:
    return Template((b"/bin/sh",), (b"sh", b"-c"), ((b"TOKEN", secret),), b"/")


def test_a_shell_with_an_old_environment_ends_at_once_and_not_with_the_next_call() -> None:
    guest = Guest()
    with ThreadPoolExecutor(1) as background:
        spares = Spares(
            cast("GuestLink", guest),
            cast("SandboxGroups", None),
            background,
            0,
            lambda: 0,
            persistent=True,
        )
        spares._template = template(b"old")
        spares._held.append(placed(1, held=True))
        spares._plain.append(placed(2, held=False))
        assert spares.take(template(b"new")).spare.id == 2
        assert guest.told == [1]
        spares.close()
