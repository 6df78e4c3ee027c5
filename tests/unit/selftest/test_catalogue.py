"""The catalogue: names are unique, every attempt has a control that differs, words are complete."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from stockade.selftest.attempt import Attempt
from stockade.selftest.catalogue import ATTEMPTS, chosen
from stockade.selftest.scene import Scene

SANDBOX = Path(__file__).parents[3] / "sandbox"


def test_names_are_unique() -> None:
    assert len({attempt.name for attempt in ATTEMPTS}) == len(ATTEMPTS)


def test_one_scene_has_one_name() -> None:
    scenes: dict[str, Scene] = {}
    for attempt in ATTEMPTS:
        for scene in (attempt.scene, attempt.control):
            assert scenes.setdefault(scene.name, scene) is scene, scene.name


@pytest.mark.parametrize("attempt", ATTEMPTS, ids=lambda attempt: attempt.name)
def test_a_control_says_what_it_lacks_and_a_scene_lacks_nothing(attempt: Attempt) -> None:
    assert attempt.control.taken
    assert not attempt.scene.taken
    assert attempt.attack
    assert attempt.defence


def test_probes_are_words_that_the_program_knows() -> None:
    table = re.compile(r'^\t\{ "([a-z0-9-]+)", (\d+), ', re.MULTILINE)
    text = "".join(file.read_text() for file in sorted(SANDBOX.glob("attack_*.c")))
    known = {name: int(count) for name, count in table.findall(text)}
    used = set()
    for attempt in ATTEMPTS:
        words = attempt.words()
        if words is not None:
            assert known[words[0]] == len(words) - 1, attempt.name
            used.add(words[0])
    left_for_drives = {name for name in known if name.startswith("leave-")} - {"leave-group"}
    assert set(known) - used - left_for_drives == set()


def test_a_pattern_chooses() -> None:
    assert {attempt.name for attempt in chosen("deny_a*")} == {"deny_absent"}
    assert chosen("nothing-like-it") == ()
    assert set(chosen(None)) <= set(ATTEMPTS)
