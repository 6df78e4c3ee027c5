"""One suite for every engine and for the fake."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from stockade.testing.conformance import CHECKS, World


def name_of(check: Callable[[World], None]) -> str:
    return check.__name__


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_oci(check: Callable[[World], None], oci_world: World) -> None:
    check(oci_world)


@pytest.mark.parametrize("check", CHECKS, ids=name_of)
def test_fake(check: Callable[[World], None], fake_world: World) -> None:
    check(fake_world)
