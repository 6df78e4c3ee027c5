from __future__ import annotations

import secrets
from pathlib import Path

from stockade.host import cgroup
from stockade.host.data import native_program
from stockade.host.keeper import Keeper
from stockade.host.mounts import MountHolder


def test_written_to_its_own_group_it_stays_there(tmp_path: Path) -> None:
    unified = cgroup.of_this_host().unified
    instance = secrets.token_hex(4)
    keeper = Keeper(native_program("keep"), unified, instance)
    holder = MountHolder(tmp_path / "mounts", keeper)
    procs = unified / f"stockade-{instance}" / cgroup.KEEPER / "cgroup.procs"
    try:
        before = procs.read_text()
        assert len(before.split()) == 1
        keeper.rejoin()
        assert procs.read_text() == before
    finally:
        holder.close()
    assert not procs.parent.parent.exists()
