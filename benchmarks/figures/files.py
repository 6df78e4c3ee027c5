"""`file_view` and `file_edit` of a file of usual size."""

from __future__ import annotations

from itertools import count
from pathlib import Path
from typing import Final

from benchmarks import trees
from benchmarks.measure import Contender, interleave
from benchmarks.peers import host
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World

OURS: Final = "stockade"
_MARK: Final = "value_of_edit"
_BLOCK: Final = 20


def measure(world: World) -> list[Figure]:
    source = world.directory(lambda path: trees.generate(path, 10))
    (target,) = source.glob("*/module_00003.py")
    target.write_text(target.read_text() + f"{_MARK} = 0\n")
    inside = str(target.relative_to(source))
    with world.daemon.sdk.lease(source) as lease:
        numbers = count()

        def edit() -> None:
            number = next(numbers)
            lease.file_edit(inside, f"{_MARK} = {number}\n", f"{_MARK} = {number + 1}\n").check()

        views = interleave(
            [
                Contender(OURS, lambda: lease.file_view(inside).check()),
                Contender("host cat", lambda: host.spawn("/bin/cat", str(target))),
            ],
            world.n(400),
            block=_BLOCK,
        )
        edits = interleave(
            [Contender(OURS, edit), Contender("host sed -i", lambda: _sed(target))],
            world.n(400),
            block=_BLOCK,
        )
    return [
        figure(
            name,
            OURS,
            found,
            note="91 lines, 5 KB",
            limits=[
                at_most("median at most 2 ms", percentile(found[OURS].values, 50), 2),
                no_failure(found[OURS]),
            ],
        )
        for name, found in (("file_view", views), ("file_edit", edits))
    ]


def _sed(target: Path) -> None:
    host.spawn("/bin/sed", "-i", f"s/^{_MARK} = 0$/{_MARK} = 0/", str(target))
