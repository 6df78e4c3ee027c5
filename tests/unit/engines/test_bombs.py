"""What is taken for a fork bomb, on a real control group."""

from __future__ import annotations

import os
import secrets
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.engines.oci import bombs
from stockade.host import cgroup


@pytest.fixture
def group() -> Iterator[Path]:
    """With as many sleeping processes as make a bomb."""
    unified = cgroup.of_this_host().unified
    made = unified / f"stockade-test-{secrets.token_hex(4)}"
    made.mkdir()
    shell = subprocess.Popen(
        [
            "/bin/sh",
            "-c",
            f"read go; for n in $(seq {bombs.MANY}); do sleep 600 & done; echo; wait",
        ],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    try:
        (made / "cgroup.procs").write_text(str(shell.pid))
        assert shell.stdin is not None
        assert shell.stdout is not None
        shell.stdin.write(b"\n")
        shell.stdin.flush()
        shell.stdout.readline()
        yield made
    finally:
        cgroup.kill(made, 10)
        shell.wait()
        shell.communicate()
        os.rmdir(made)


def test_many_that_are_left_while_forks_are_refused_are_ended(group: Path) -> None:
    assert bombs.ended(group, lambda: 1, ()) > bombs.MANY
    assert not cgroup.populated(group)


def test_many_that_are_left_and_none_refused_stay(group: Path) -> None:
    assert bombs.ended(group, lambda: 0, ()) == 0
    assert cgroup.populated(group)


def test_a_few_stay_whatever_was_refused(group: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bombs, "MANY", 10 * bombs.MANY)
    assert bombs.ended(group, lambda: 1000, ()) == 0
    assert cgroup.populated(group)


def test_what_is_left_is_looked_at_for_as_long_as_it_grows(
    group: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """On a busy host a bomb takes seconds to reach its limit; a server stays as it is."""
    again: list[int] = []
    monkeypatch.setattr(bombs, "look_later", lambda *args: again.append(args[-1]))
    left = len((group / "cgroup.procs").read_text().split())
    bombs._look(group, lambda: 0, (), left - 1)
    assert again == [left]
    bombs._look(group, lambda: 0, (), left)
    assert again == [left]
    assert cgroup.populated(group)
    bombs._look(group, lambda: 1, (), left)
    assert again == [left]
    assert not cgroup.populated(group)
