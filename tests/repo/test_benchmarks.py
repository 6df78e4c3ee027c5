"""The benchmarks run, count what fails, and write what their models say."""

from __future__ import annotations

import importlib
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest

from benchmarks.daemon import PLACE
from benchmarks.figures import capability
from benchmarks.measure import Contender, Samples, interleave
from benchmarks.peers import tokens
from benchmarks.report import Report, at_least, at_most, figure, percentile
from benchmarks.world import World

ROOT = Path(__file__).parents[2]


def test_a_quick_run_writes_a_valid_report_and_leaves_nothing(tmp_path: Path) -> None:
    out = tmp_path / "bench.json"
    before = set(Path(PLACE).glob("stockade-bench-*"))
    argv = [sys.executable, "-m", "benchmarks", "--quick", "--only", "files", "--out", str(out)]
    done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    report = Report.model_validate_json(out.read_bytes())
    assert report.quick
    assert [figure.name for figure in report.figures] == ["file_view", "file_edit"]
    for one in report.figures:
        assert one.ours.failures == 0, one.ours.errors
        assert one.ours.n == len(one.ours.samples) > 0
        assert one.peers[0].series.n > 0
        assert one.peers[0].ratio
        assert one.name in done.stdout
    assert set(Path(PLACE).glob("stockade-bench-*")) <= before


def test_a_library_that_is_not_installed_is_said_and_never_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    gone = {"gone": lambda: importlib.import_module("no_library_of_this_name")}
    monkeypatch.setattr(tokens, "LIBRARIES", gone)
    few = cast(World, SimpleNamespace(n=lambda _full: 5))
    figures = {figure.name: figure for figure in capability.measure(few)}
    for name in ("remembered", "new_last_block", "all_new", "attenuate"):
        figure = figures[f"capability_{name}"]
        assert (figure.ours.n, figure.ours.failures) == (5, 0), figure.ours.errors
        (peer,) = figure.peers
        assert (peer.series.name, peer.series.n, peer.series.p50) == ("gone", 0, None)
        assert (peer.ratio, peer.series.errors) == (None, ["not installed"])
    assert {"compile_cold", "compile_cached"} < set(figures)


def test_blocks_take_turns_and_failures_are_counted() -> None:
    order: list[str] = []

    def fail() -> None:
        order.append("b")
        raise OSError("no such luck")

    found = interleave(
        [
            Contender("a", lambda: order.append("a")),
            Contender("b", fail),
            Contender("c", lambda: order.append("c"), every=2),
        ],
        4,
        block=2,
        warm_up=0,
    )
    assert "".join(order) == "aabbcaabbc"
    assert (len(found["a"].values), found["a"].failures) == (4, 0)
    assert (found["b"].values, found["b"].failures) == ([], 4)
    assert found["b"].errors == ["OSError: no such luck"] * 3
    assert len(found["c"].values) == 2


def test_what_is_found_unclean_afterwards_is_a_failure() -> None:
    def unclean() -> None:
        raise RuntimeError("a file was left")

    found = interleave([Contender("a", lambda: None, verify=unclean)], 2, warm_up=0)["a"]
    assert (found.values, found.failures) == ([], 2)


@pytest.mark.parametrize(("percent", "expected"), [(0, 1), (50, 5), (95, 10), (99, 10), (100, 10)])
def test_percentiles_are_samples(percent: float, expected: float) -> None:
    assert percentile([10, 1, 2, 3, 4, 5, 6, 7, 8, 9], percent) == expected
    assert percentile([], percent) is None


def test_a_limit_without_a_value_is_not_met() -> None:
    assert at_most("x", 3.0, 3.0).holds is True
    assert at_most("x", 3.1, 3.0).holds is False
    assert at_most("x", None, 3.0).holds is None
    assert at_most("x", 3.0, None).holds is None
    assert at_least("x", 0.4, 0.5).holds is False


def test_a_ratio_is_of_medians() -> None:
    found = {"we": Samples([1.0, 2.0, 30.0]), "they": Samples([4.0]), "none": Samples()}
    made = figure("f", "we", found)
    assert [(peer.series.name, peer.ratio) for peer in made.peers] == [
        ("they", 0.5),
        ("none", None),
    ]
