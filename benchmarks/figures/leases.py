"""From nothing to the first result: lease create plus the first call, 100 ms between samples."""

from __future__ import annotations

from pathlib import Path
from typing import Final

from benchmarks import trees
from benchmarks.measure import Contender, interleave
from benchmarks.peers.crun import Crun
from benchmarks.peers.docker import Docker, execute
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade import Lease
from stockade.edge.client.sdk import Stockade

OURS: Final = "stockade"
_GAP_S: Final = 0.1


class _Fresh:
    """One lease per sample; the one before is released outside of the timed part."""

    def __init__(self, sdk: Stockade, source: Path) -> None:
        self._sdk = sdk
        self._source = source
        self._lease: Lease | None = None

    def clear(self) -> None:
        if self._lease is not None:
            self._lease.release().check()
            self._lease = None

    def act(self) -> None:
        self._lease = self._sdk.lease(self._source)
        self._lease.bash_execute(":").check()


def measure(world: World) -> list[Figure]:
    source = world.directory(lambda path: trees.generate(path, 10))
    fresh = _Fresh(world.daemon.sdk, source)
    contenders = [Contender(OURS, fresh.act, prepare=fresh.clear)]
    if world.crun is not None:
        contenders.append(_crun(world.crun))
    if world.docker is not None:
        contenders.append(_docker(world.docker))
    found = interleave(contenders, world.n(200), gap_s=_GAP_S, warm_up=1)
    fresh.clear()
    return [
        figure(
            "lease_to_first_result",
            OURS,
            found,
            note="source of 10 files; peers: create, start, first exec, no source",
            limits=[
                at_most("median at most 50 ms", percentile(found[OURS].values, 50), 50),
                no_failure(found[OURS]),
            ],
        )
    ]


def _crun(peer: Crun) -> Contender:
    made: list[str] = []

    def act() -> None:
        made.append(peer.start())
        peer.exec("/usr/bin/bash", "-c", ":", name=made[-1])

    def clear() -> None:
        peer.remove(made.pop())

    return Contender("crun run + exec", act, verify=clear, every=4)


def _docker(peer: Docker) -> Contender:
    def act() -> None:
        execute(peer.equal(), "/usr/bin/bash", "-c", ":")

    return Contender("docker sdk run + exec", act, verify=peer.remove_last, every=10)
