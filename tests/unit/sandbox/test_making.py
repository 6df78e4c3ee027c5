"""How shells that wait are made, by a real guest, when what is made is killed."""

from __future__ import annotations

import itertools
import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path
from typing import TYPE_CHECKING, cast

import pytest

from stockade.engines.oci import held
from stockade.engines.oci.held import Template
from stockade.engines.oci.spares import Spares
from stockade.host.cancel import EventfdCancel
from stockade.terms.patience import Patience
from tests.daemons import until

if TYPE_CHECKING:
    from stockade.host.lease_groups import SandboxGroups
    from tests.unit.sandbox.conftest import Running

SHELL = """#!/bin/bash
[ -e killed ] && exec /bin/bash "$@"
touch killed
kill -9 $$
"""


class Group:
    def close(self) -> None:
        pass

    def remove(self) -> bool:
        return True


class Groups:
    """Places nobody: what is looked at here needs no group."""

    def place(self, pid: int, process: int, call: str, *, limited: bool) -> Group:
        return Group()


def test_a_shell_that_was_killed_while_it_was_made_is_made_again(
    guest: Running, programs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A command that kills all (`kill -9 -1`) says nothing of what can be held. This one is killed
    the first time, and like any other after that."""
    monkeypatch.setattr(held, "LIBRARY", os.fsencode(programs / "hold.so"))
    shell = tmp_path / "shell"
    shell.write_text(SHELL)
    shell.chmod(0o755)
    wanted = Template((os.fsencode(shell),), (b"bash", b"-c"), (), os.fsencode(tmp_path))
    numbers = itertools.count(1)
    with closing(EventfdCancel()) as cancel, ThreadPoolExecutor(1) as background:
        spares = Spares(
            guest.link,
            cast("SandboxGroups", Groups()),
            background,
            os.getuid(),
            lambda: next(numbers),
            lambda: None,
            persistent=False,
        )

        def held_one() -> bool:
            placed = spares.take(wanted, Patience(cancel, 60.0, time.monotonic))
            spares.give_back(placed)
            return placed.held

        try:
            until(held_one, "a shell is held")
        finally:
            spares.close()
    assert (tmp_path / "killed").exists()
