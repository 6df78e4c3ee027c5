"""`bash_execute(":")` through the daemon: back to back and at 100 ms between samples."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from typing import Final

from benchmarks import trees
from benchmarks.measure import Contender, Samples, interleave
from benchmarks.peers import host
from benchmarks.peers.docker import execute
from benchmarks.report import Figure, Limit, at_most, figure, no_failure, percentile, ratio
from benchmarks.world import World

OURS: Final = "stockade"
DOCKER: Final = "docker sdk exec"
# Long enough that the spares made ahead are used up: the sustained rate, not the first three.
_CLOSE_BLOCK: Final = 100
_APART_BLOCK: Final = 20
_GAP_S: Final = 0.1
_COMMAND: Final = ":"


def measure(world: World) -> list[Figure]:
    source = world.directory(lambda path: trees.generate(path, 10))
    with world.daemon.sdk.lease(source) as lease, ExitStack() as stack:
        contenders = [
            Contender(OURS, lambda: lease.bash_execute(_COMMAND).check()),
            Contender("host bash", lambda: host.spawn(host.BASH, "-c", _COMMAND)),
        ]
        crun, docker = world.crun, world.docker
        if crun is not None:
            contenders.append(
                Contender("crun exec", lambda: crun.exec("/usr/bin/bash", "-c", _COMMAND))
            )
        if docker is not None:
            equal, plain = docker.equal(), docker.defaults()
            stack.callback(docker.remove, equal)
            stack.callback(docker.remove, plain)
            contenders += [
                Contender(DOCKER, lambda: execute(equal, "/usr/bin/bash", "-c", _COMMAND)),
                Contender(
                    f"{DOCKER}, its defaults",
                    lambda: execute(plain, "/usr/bin/bash", "-c", _COMMAND),
                    every=4,
                ),
            ]
        close = interleave(contenders, world.n(400), block=_CLOSE_BLOCK)
        apart = interleave(contenders, world.n(200), block=_APART_BLOCK, gap_s=_GAP_S)
    return [
        figure(
            "bash_execute_back_to_back",
            OURS,
            close,
            note=f"blocks of {_CLOSE_BLOCK} calls of one contender",
            limits=_limits(close),
        ),
        figure(
            "bash_execute_100ms_apart",
            OURS,
            apart,
            note=f"100 ms before each sample, in blocks of {_APART_BLOCK} of one contender",
            limits=_limits(apart),
        ),
    ]


def _limits(found: Mapping[str, Samples]) -> list[Limit]:
    mine = found[OURS].values
    docker = found[DOCKER].values if DOCKER in found else []
    against = ratio(percentile(mine, 50), percentile(docker, 50))
    return [
        at_most("median at most 3 ms", percentile(mine, 50), 3),
        at_most("p99 at most 8 ms", percentile(mine, 99), 8),
        at_most("at most 1/10 of Docker's SDK", against, 0.1),
        no_failure(found[OURS]),
    ]
