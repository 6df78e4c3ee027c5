"""Fault points act once, by name."""

from __future__ import annotations

import pytest

from stockade.testing.faults import Faults, raising


def test_an_armed_point_acts_once() -> None:
    faults = Faults()
    faults.arm("b", raising(OSError("now")))
    faults.point("a")
    with pytest.raises(OSError, match="now"):
        faults.point("b")
    faults.point("b")
    assert faults.seen == ["a", "b", "b"]
