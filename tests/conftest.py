"""Fixtures that several suites share."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import settings

from stockade.host import trees
from tests.worlds import FakeWorld, OciWorld

# An example that takes long on a slow or busy machine breaks no law.
settings.register_profile("stockade", deadline=None)
settings.load_profile("stockade")


@pytest.fixture(scope="session", autouse=True)
def emptied(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Some tests leave trees thousands of levels deep, on which pytest's own clean-up of older
    sessions ends with a RecursionError."""
    yield
    base = os.open(tmp_path_factory.getbasetemp(), os.O_RDONLY | os.O_DIRECTORY)
    try:
        for name in os.listdir(base):
            try:
                trees.remove_tree(base, os.fsencode(name))
            except OSError as error:
                sys.stderr.write(f"a test left what can't be removed: {name}: {error}\n")
    finally:
        os.close(base)


@pytest.fixture(scope="session")
def oci_world(tmp_path_factory: pytest.TempPathFactory) -> Iterator[OciWorld]:
    world = OciWorld(tmp_path_factory.mktemp("oci"))
    try:
        yield world
    finally:
        world.close()


@pytest.fixture
def fake_world(tmp_path: Path) -> Iterator[FakeWorld]:
    world = FakeWorld(tmp_path)
    try:
        yield world
    finally:
        world.close()
