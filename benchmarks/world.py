"""What a figure needs: the daemon, the peers that are there, a place for sources, and how often."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from benchmarks.daemon import PLACE, Daemon
from benchmarks.peers import features
from benchmarks.peers.crun import Crun
from benchmarks.peers.docker import Docker, answers
from benchmarks.peers.dockerd import PrivateDockerd

_QUICK_DIVISOR: Final = 50
_QUICK_LEAST: Final = 2


@dataclass(frozen=True, slots=True)
class World:
    daemon: Daemon
    crun: Crun | None
    docker: Docker | None
    place: Path
    quick: bool

    def n(self, full: int) -> int:
        """How many samples: `full`, or a fiftieth for a smoke test."""
        return max(_QUICK_LEAST, full // _QUICK_DIVISOR) if self.quick else full

    def size(self, full: int) -> int:
        """The size of a tree or an output: `full`, or a fiftieth."""
        return max(10, full // _QUICK_DIVISOR) if self.quick else full

    def directory(self, make: Callable[[Path], Path]) -> Path:
        """A new source tree."""
        return make(self.place / f"source-{len(list(self.place.iterdir()))}")


@contextmanager
def opened(*, quick: bool, private_docker: bool) -> Iterator[World]:
    """Everything started; all of it is stopped and removed at the end."""
    with ExitStack() as stack:
        place = Path(tempfile.mkdtemp(prefix="stockade-bench-sources-", dir=PLACE))
        stack.callback(shutil.rmtree, place)
        place.chmod(0o711)
        wanted = features.agent()
        peer: Docker | None = None
        if private_docker:
            engine = stack.enter_context(PrivateDockerd())
            peer = stack.enter_context(Docker(engine.url, wanted))
        elif answers(os.environ):
            peer = stack.enter_context(Docker(None, wanted))
        crun: Crun | None = None
        if shutil.which("crun") is not None:
            crun = stack.enter_context(Crun(place / f"crun-{os.getpid()}", wanted))
        daemon = stack.enter_context(Daemon())
        yield World(daemon, crun, peer, place, quick)
