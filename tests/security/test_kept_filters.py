"""A filter that was compiled for one sandbox is the filter of the next one, or there is none."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.engines.oci import filters
from stockade.terms.fault import Code, Failure
from stockade.terms.grant import Profile
from tests.security.inside import entered, grant_for, leased
from tests.worlds import OciWorld


@pytest.fixture
def world(tmp_path: Path) -> Iterator[OciWorld]:
    """An engine that has made no sandbox yet."""
    made = OciWorld(tmp_path)
    try:
        yield made
    finally:
        made.close()


def started(world: OciWorld) -> tuple[bytes, dict[str, object], str]:
    """Of a new sandbox: the program that the runtime gave the kernel, its configuration, and what
    the kernel says of a command inside."""
    with leased(world) as tree, entered(world, grant_for(world, Profile.AGENT), tree) as made:
        [program] = (world.state / "runtime").glob("*/seccomp.bpf")
        [config] = (world.state / "sandboxes").glob("*/config.json")
        said = made.says("grep ^Seccomp /proc/self/status")
        return program.read_bytes(), json.loads(config.read_text()), said


def test_the_second_sandbox_is_given_what_the_first_ones_runtime_compiled(world: OciWorld) -> None:
    compiled, config, said = started(world)
    again, shorter, also = started(world)
    assert again == compiled
    assert len(compiled) > 8 * 100
    assert said.split() == also.split() == ["Seccomp:", "2", "Seccomp_filters:", "1"]
    assert "annotations" not in config
    assert shorter["linux"]["seccomp"] == {"defaultAction": "SCMP_ACT_KILL_PROCESS"}  # type: ignore[index]


def test_with_a_runtime_that_ignores_the_program_nothing_starts_unfiltered(
    world: OciWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    compiled, _, _ = started(world)
    monkeypatch.setattr(filters, "_ANNOTATION", "run.oci.nobody_knows")
    with pytest.raises(Failure) as caught:
        started(world)
    assert caught.value.fault.code is Code.SANDBOX_UNAVAILABLE
    # From then on each is compiled again.
    again, config, said = started(world)
    assert again == compiled
    assert "annotations" not in config
    assert said.split() == ["Seccomp:", "2", "Seccomp_filters:", "1"]
