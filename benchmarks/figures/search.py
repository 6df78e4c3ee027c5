"""`grep_search` beside ripgrep on the host over the same source tree."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Final

from benchmarks import trees
from benchmarks.measure import Contender, interleave
from benchmarks.peers import host
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade import Lease

OURS: Final = "stockade"
BARE: Final = "host rg"
_FILES: Final = 5_000
_ADDED_MS: Final = 5.0
_FACTOR: Final = 1.2
_PATTERN_IN_OWN: Final = r"def test_\w+_is_never"


def measure(world: World) -> list[Figure]:
    own = world.directory(trees.own_source)
    large = world.directory(lambda path: trees.generate(path, world.size(_FILES)))
    return [
        _search(world, "grep_search_own_source", own, _PATTERN_IN_OWN),
        _search(world, "grep_search_5000_files", large, trees.NEEDLE),
    ]


def _search(world: World, name: str, source: Path, pattern: str) -> Figure:
    program = shutil.which("rg", path="/usr/bin:/bin")
    if program is None:
        raise RuntimeError("ripgrep is not installed")
    argv = [program, "--no-config", "--line-number", "--column", "-e", pattern, "."]
    lines = len(host.capture(argv, str(source)).splitlines())
    with world.daemon.sdk.lease(source) as lease:
        _same(lease, pattern, lines)
        found = interleave(
            [
                Contender(OURS, lambda: lease.grep_search(pattern, ".").check()),
                Contender(BARE, lambda: host.capture(argv, str(source))),
            ],
            world.n(200),
        )
    bare = percentile(found[BARE].values, 50)
    bound = None if bare is None else _ADDED_MS + _FACTOR * bare
    files = sum(path.is_file() for path in source.rglob("*"))
    return figure(
        name,
        OURS,
        found,
        note=f"{files} files, {lines} matching lines",
        limits=[
            at_most(
                "median at most 5 ms + 1.2 × ripgrep", percentile(found[OURS].values, 50), bound
            ),
            no_failure(found[OURS]),
        ],
    )


def _same(lease: Lease, pattern: str, lines: int) -> None:
    """Both find the same number of lines; and the search sandbox is there afterwards."""
    data = lease.grep_search(pattern, ".").check().data
    if data is None or data.kind != "grep_search" or data.matches_total != lines or not lines:
        raise RuntimeError(f"the searches differ: ripgrep has {lines} lines, we have {data}")
