"""What claims cost: a daemon that keeps them beside one that does not, and many calls at once.

Both daemons run the same code on the same disk; `benchmarks.forgetful` replaces the table of claims
by one that keeps nothing. So the difference is the ledger's work: the claim and the settlement with
a full fsync each, and the mark between them.
"""

from __future__ import annotations

import sys
import threading
import time
from typing import Final

from benchmarks.daemon import Daemon
from benchmarks.measure import Contender, Samples, interleave
from benchmarks.report import Figure, at_least, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade import Stockade

OURS: Final = "stockade"
WITHOUT: Final = "without claims"
_COMMAND: Final = ":"
_BLOCK: Final = 20
_TRAJECTORIES: Final = 50
_SUSTAINED_S: Final = 10.0


def measure(world: World) -> list[Figure]:
    with Daemon((sys.executable, "-m", "benchmarks.forgetful")) as forgetful:
        with world.daemon.sdk.lease() as kept, forgetful.sdk.lease() as lost:
            numbers = iter(range(1 << 30))

            def numbered() -> None:
                call_id = f"c{next(numbers)}"
                kept.call("bash_execute", {"command": _COMMAND}, call_id=call_id).check()

            found = interleave(
                [
                    Contender(OURS, numbered),
                    Contender(WITHOUT, lambda: lost.bash_execute(_COMMAND).check()),
                ],
                world.n(1000),
                block=_BLOCK,
            )
    mine, theirs = (percentile(found[name].values, 50) for name in (OURS, WITHOUT))
    added = None if mine is None or theirs is None else mine - theirs
    return [
        figure(
            "call_with_a_claim",
            OURS,
            found,
            note="bash_execute(':') back to back; claim and settlement with full fsync",
            limits=[at_most("at most 1 ms more at the median", added, 1), no_failure(found[OURS])],
        ),
        _sustained(world),
    ]


def _sustained(world: World) -> Figure:
    """Calls in a second, second by second, of 50 trajectories that call without pause."""
    seconds = 2.0 if world.quick else _SUSTAINED_S
    trajectories = 5 if world.quick else _TRAJECTORIES
    samples = Samples()
    leases = [world.daemon.sdk.lease() for _ in range(trajectories)]
    try:
        for lease in leases:
            lease.bash_execute(_COMMAND).check()
        ends: list[float] = []
        begun = time.monotonic()

        def work(lease_id: str, token: str | None) -> None:
            with Stockade.connect(world.daemon.socket) as own:
                lease, number = own.attach(lease_id, token), 0
                while time.monotonic() < begun + seconds:
                    call_id = f"s{number}"
                    result = lease.call("bash_execute", {"command": _COMMAND}, call_id=call_id)
                    number += 1
                    ends.append(time.monotonic() - begun)
                    if result.error is not None:
                        samples.fail(f"{result.error.code}: {result.error.message}")

        threads = [threading.Thread(target=work, args=(one.id, one.token)) for one in leases]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        for lease in leases:
            lease.release()
    for second in range(int(seconds)):
        samples.values.append(float(sum(second <= end < second + 1 for end in ends)))
    return figure(
        "calls_per_second",
        OURS,
        {OURS: samples},
        unit="1/s",
        note=f"{trajectories} trajectories, each with a sandbox, its client on the same processors",
        limits=[
            at_least("300 in a second, at the median", percentile(samples.values, 50) or 0.0, 300),
            no_failure(samples),
        ],
    )
