"""What two runs of an attempt together show, and what is taken for an answer of the program."""

from __future__ import annotations

from typing import Literal

import pytest

from stockade.edge.selftest import Row, SelftestReport, Verdict
from stockade.selftest.run import selftest, verdict
from stockade.selftest.scene import Tried
from stockade.selftest.stage import parse
from stockade.terms.fault import Code, Failure
from stockade.terms.outcome import Captured, End, ExecOutcome

OUTCOMES: tuple[Literal["won", "held", "cannot"], ...] = ("won", "held", "cannot")


@pytest.mark.parametrize(("defended", "control"), [(a, b) for a in OUTCOMES for b in OUTCOMES])
def test_only_a_held_attack_that_works_elsewhere_is_held(
    defended: Literal["won", "held", "cannot"], control: Literal["won", "held", "cannot"]
) -> None:
    found = verdict(Tried(defended, ""), Tried(control, ""))
    expected = {"won": Verdict.BROKEN, "cannot": Verdict.COULD_NOT_TRY}.get(
        defended, Verdict.HELD if control == "won" else Verdict.NO_CONTROL
    )
    assert found is expected


def row(result: Verdict) -> Row:
    return Row(
        name="n", group="g", attack="a", defence="d", control="c", result=result, evidence="e"
    )


@pytest.mark.parametrize("result", list(Verdict))
def test_a_report_is_fine_only_when_everything_is_held(result: Verdict) -> None:
    report = SelftestReport(attempts=(row(Verdict.HELD), row(result)))
    assert report.ok is (result is Verdict.HELD)
    assert not SelftestReport(attempts=()).ok


def outcome(text: bytes, end: End = End.EXITED) -> ExecOutcome:
    empty = Captured(b"", b"", 0)
    return ExecOutcome(end, 0, Captured(text, b"", len(text)), empty, wall_ms=1)


def test_an_attempt_without_a_line_could_not_be_tried() -> None:
    text = b"0\twon\tx\n2\theld\ty y\nnoise\n9\twon\tz\n1\tperhaps\tz\n"
    found = parse(outcome(text, End.DEADLINE), 3)
    assert found[0] == Tried("won", "x")
    assert found[1] == Tried("cannot", "the program said nothing of it (it deadline)")
    assert found[2] == Tried("held", "y y")


def test_a_pattern_that_fits_nothing_is_refused() -> None:
    with pytest.raises(Failure) as refused:
        selftest("nothing-like-it")
    assert refused.value.fault.code is Code.INVALID_ARGUMENT
