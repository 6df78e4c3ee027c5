"""Fixtures that several suites share."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.worlds import FakeWorld, OciWorld


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
