"""Reset of a workspace of 20,000 files beside one of 10, and beside copying the tree again.

Before each reset a file is added, one is changed and one removed; after it a call inside checks
that the workspace is as it was made. Neither is timed, but the first call has a figure of its own:
a reset ends all sandboxes, and the next call makes a new one.
"""

from __future__ import annotations

import shutil
import time
from pathlib import Path
from typing import Final

from benchmarks import trees
from benchmarks.measure import Contender, Samples, interleave
from benchmarks.peers import host
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade import Lease

OURS: Final = "stockade, 20,000 files"
SMALL: Final = "stockade, 10 files"
WRITTEN: Final = "stockade, 20,000 written files"
FIRST: Final = "stockade"
_FILES: Final = 20_000
_SOIL: Final = "set -- package_0000/*; echo x >> $1; rm $2; echo new > added"
_WRITE: Final = "mkdir w && cd w && seq -f 'f%.0f' {files} | xargs touch"
_MEMORY: Final = "/dev/shm"


class _Soiled:
    def __init__(self, lease: Lease, files: int, soil: str = _SOIL) -> None:
        self._lease = lease
        self._check = f'test "$(find . -type f | wc -l)" = {files} && ! grep -qx x package_0000/*'
        self._soil = soil
        self.first = Samples()

    def prepare(self) -> None:
        self._lease.bash_execute(self._soil).check()

    def act(self) -> None:
        self._lease.reset().check()

    def verify(self) -> None:
        started = time.perf_counter()
        self._lease.bash_execute(":").check()
        self.first.values.append((time.perf_counter() - started) * 1000)
        self._lease.bash_execute(self._check).check()


def measure(world: World) -> list[Figure]:
    files = world.size(_FILES)
    large = world.directory(lambda path: trees.generate(path, files, lines=10))
    small = world.directory(lambda path: trees.generate(path, 10, lines=10))
    sdk = world.daemon.sdk
    with sdk.lease(large) as one, sdk.lease(small) as other:
        many, few = _Soiled(one, files), _Soiled(other, 10)
        found = interleave(
            [_contender(OURS, many), _contender(SMALL, few), *_copies(world, large)],
            world.n(200),
            warm_up=1,
        )
        full = _Soiled(other, 10, _WRITE.format(files=files))
        written = interleave([_contender(WRITTEN, full)], max(3, world.n(20)), warm_up=0)
    ours, bare = percentile(found[OURS].values, 50), percentile(found[SMALL].values, 50)
    twice = None if bare is None else 2 * bare
    held = percentile(written[WRITTEN].values, 50)
    return [
        figure(
            "reset_20000_files",
            OURS,
            found,
            note="source of 20,000 files; peers also: a fresh cp -a",
            limits=[
                at_most("median at most 30 ms", ours, 30),
                at_most("within 2 × that of 10 files", ours, twice),
                no_failure(found[OURS]),
                no_failure(found[SMALL]),
            ],
        ),
        figure(
            "reset_20000_written_files",
            WRITTEN,
            {WRITTEN: written[WRITTEN], SMALL: found[SMALL]},
            note="source of 10 files; 20,000 more written by the command before each reset",
            limits=[
                at_most("median at most 30 ms", held, 30),
                at_most("within 2 × that of 10 files", held, twice),
                no_failure(written[WRITTEN]),
            ],
        ),
        figure("first_call_after_reset", FIRST, {FIRST: many.first}, note="makes a new sandbox"),
    ]


def _contender(name: str, soiled: _Soiled) -> Contender:
    return Contender(name, soiled.act, prepare=soiled.prepare, verify=soiled.verify)


def _copies(world: World, source: Path) -> list[Contender]:
    every = max(1, world.n(200) // 5)
    places = {
        "host cp -a, disk": world.place / "copy",
        "host cp -a, tmpfs": Path(_MEMORY, world.place.name),
    }

    def contender(name: str, target: Path) -> Contender:
        return Contender(
            name,
            lambda: host.spawn("/bin/cp", "-a", str(source), str(target)),
            verify=lambda: shutil.rmtree(target),
            every=every,
        )

    return [contender(name, target) for name, target in places.items()]
