"""A house of fakes, a pipeline over one, and a source directory for the tests of leases."""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from stockade.testing.faults import Faults
from stockade.testing.house import House, open_house
from tests.unit.flow.lines import Line, make_line


@pytest.fixture
def faults() -> Faults:
    return Faults()


@pytest.fixture
def house(tmp_path: Path, faults: Faults) -> Iterator[House]:
    opened = open_house(str(tmp_path / "state"), point=faults.point)
    yield opened
    opened.close()


@pytest.fixture
def line(tmp_path: Path) -> Iterator[Line]:
    house = open_house(str(tmp_path))
    yield make_line(house)
    house.close()


@pytest.fixture
def source(tmp_path: Path) -> Path:
    made = tmp_path / "source"
    made.mkdir()
    (made / "a.txt").write_text("one\n")
    (made / "b.txt").write_text("two\n")
    os.mkfifo(made / "pipe")
    return made
