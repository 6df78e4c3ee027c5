"""New state directories and the removal of dead ones, also while many processes start at once."""

from __future__ import annotations

import os
import secrets
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.host import cgroup, instance, leftovers
from stockade.terms.fault import Code, Failure

HIERARCHIES = cgroup.of_this_host()

# Makes a state directory, looks for leftovers, and gives its own back, as embedded runtimes do.
BUSY = """
import sys
from pathlib import Path
from stockade.host import cgroup, leftovers
place = Path(sys.argv[1])
hierarchies = cgroup.of_this_host()
for _ in range(8):
    leftovers.collect(place, hierarchies)
    state, owned = leftovers.new_state(place)
    (state / "mine").mkdir()
    (state / "mine" / "file").write_text("x")
    leftovers.collect(place, hierarchies)
    assert (state / "mine" / "file").read_text() == "x"
    leftovers.remove_state(state, owned)
"""


def test_what_is_in_use_stays_and_the_rest_goes(tmp_path: Path) -> None:
    place = tmp_path / "place"
    kept, lock = leftovers.new_state(place)
    dead, gone = leftovers.new_state(place)
    (dead / "base").mkdir()
    (dead / "base" / "file").write_text("left")
    gone.release()
    (place / "never-locked").mkdir()  # killed between making it and locking it
    group = HIERARCHIES.unified / f"{cgroup.PREFIX}{gone.id}" / "ls_0123456789abcdef"
    group.mkdir(parents=True)
    leftovers.collect(place, HIERARCHIES)
    lock.release()
    assert [path for path in place.iterdir() if not path.name.startswith(".")] == [kept]
    assert not group.parent.exists()


def test_processes_of_a_dead_one_are_ended(tmp_path: Path) -> None:
    dead, gone = leftovers.new_state(tmp_path)
    gone.release()
    group = HIERARCHIES.unified / f"{cgroup.PREFIX}{gone.id}" / "ls_0123456789abcdef"
    group.mkdir(parents=True)
    with subprocess.Popen(["sleep", "60"]) as left:
        (group / "cgroup.procs").write_text(str(left.pid))
        leftovers.collect(tmp_path, HIERARCHIES)
        assert left.wait(20) == -9
    assert not dead.exists()
    assert not group.parent.exists()


def test_many_at_once_never_take_each_others(tmp_path: Path) -> None:
    started = [
        subprocess.Popen(
            [sys.executable, "-c", BUSY, str(tmp_path)], stderr=subprocess.PIPE, text=True
        )
        for _ in range(6)
    ]
    said = [process.communicate(timeout=60)[1] for process in started]
    assert said == [""] * 6
    assert [process.returncode for process in started] == [0] * 6
    assert [path.name for path in tmp_path.iterdir() if not path.name.startswith(".")] == []


@pytest.mark.parametrize("link", [False, True])
def test_a_place_of_somebody_else_is_refused(tmp_path: Path, link: bool) -> None:
    place = tmp_path / "place"
    theirs = tmp_path / "theirs"
    theirs.mkdir()
    os.chown(theirs, 61_000, -1)
    if link:
        place.symlink_to(theirs)
    else:
        place = theirs
    with pytest.raises(Failure) as caught:
        leftovers.new_state(place)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert list(theirs.iterdir()) == []


def test_a_link_to_a_directory_of_our_own_is_refused(tmp_path: Path) -> None:
    """Anybody can put one where the place is to be, and what it leads to would be collected."""
    ours = tmp_path / "ours"
    (ours / "precious").mkdir(parents=True)
    place = tmp_path / "place"
    place.symlink_to(ours)
    acts: list[Callable[[], object]] = [
        lambda: leftovers.collect(place, HIERARCHIES),
        lambda: leftovers.new_state(place),
    ]
    for act in acts:
        with pytest.raises(Failure) as caught:
            act()
        assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert [path.name for path in ours.rglob("*")] == ["precious"]


def test_one_that_another_process_claims_first_is_left_to_it(tmp_path: Path) -> None:
    dead, gone = leftovers.new_state(tmp_path)
    gone.release()
    other = instance.acquire(dead, secrets.token_hex)
    leftovers.collect(tmp_path, HIERARCHIES)
    assert dead.is_dir()
    other.release()
