"""Random walls in real sandboxes with an attacker inside: the short form of `make soak`."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from stockade.engines.oci import staging
from stockade.terms.plan import SandboxPlan, TreeMount
from tests.soak.wall_plans import TOPS, Walls
from tests.soak.walls import Broken, Judge
from tests.worlds import OciWorld

SEED = 20_260
FIRST, COUNT = 1, 4


def test_what_can_be_done_at_a_path_is_what_the_documents_say(oci_world: OciWorld) -> None:
    judge = Judge(oci_world, moves=5)
    for number in range(FIRST, FIRST + COUNT):
        judge.case(SEED, number)
    assert judge.tally["attempts"] > COUNT * 500
    assert judge.tally["command"] > COUNT


@pytest.mark.parametrize(
    ("what", "number", "built"),
    [
        ("inside: make", 3, lambda walls: replace(walls, deny=())),
        ("inside: read", 3, lambda walls: replace(walls, read=TOPS)),
        ("inside: change", 11, lambda walls: replace(walls, write=walls.read)),
    ],
    ids=lambda value: value.replace(": ", "-") if isinstance(value, str) else "",
)
def test_walls_that_are_wider_than_promised_are_found(
    oci_world: OciWorld, what: str, number: int, built: Callable[[Walls], Walls]
) -> None:
    """In cases that have such a wall."""
    with pytest.raises(Broken, match=what):
        Judge(oci_world, moves=5).case(SEED, number, built)


def _not_held(plan: SandboxPlan) -> list[TreeMount]:
    denied = [TreeMount(path=path, writable=False, executable=False) for path in plan.deny]
    mounts = {mount.path: mount for mount in (*denied, *plan.trees)}
    return [mounts[path] for path in sorted(mounts)]


def test_a_wall_that_can_be_moved_is_found(
    oci_world: OciWorld, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the directories above what is denied or executable are no mount points."""
    monkeypatch.setattr(staging, "tree_mounts", _not_held)
    with pytest.raises(Broken, match="inside: gone"):
        Judge(oci_world, moves=5).case(SEED, 3)
