"""The daemon's memory while a command prints 2 GiB, and at what rate it prints.

The high-water mark is the kernel's own (VmHWM, set back before each command), so no sample is
missed between two looks. The peer of the rate is the same command on the host, read by one loop.

Two commands: lines of text, and zeros, which JSON writes in six characters each. What a call keeps
of its output has 64 KiB then, and 384 KiB where it is written down and sent.
"""

from __future__ import annotations

import time
from typing import Final

from benchmarks.measure import Samples
from benchmarks.peers import host
from benchmarks.report import Figure, at_least, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade.edge.client.lease import Lease

OURS: Final = "stockade"
_MIB: Final = 1 << 20
_BYTES: Final = 2048 * _MIB
_LINE: Final = "a line as programs print them, with some words in it"
_CHUNK: Final = 256 * 1024
_TRIES: Final = 5
_GROWTH_KIB: Final = 1024


def measure(world: World) -> list[Figure]:
    count = world.size(_BYTES // _MIB)
    zeros = ("/usr/bin/dd", "if=/dev/zero", "bs=1M", f"count={count}", "status=none")
    lines = f"yes '{_LINE}' | head -c {count * _MIB}"
    growth, rates, bare = Samples(), Samples(), Samples()
    of_zeros = Samples()
    with world.daemon.sdk.lease() as lease:
        # The lease's sandbox and the serving thread are there; no large output was ever read.
        lease.bash_execute(":").check()
        for _ in range(max(2, world.n(_TRIES))):
            _try(world, lease, lines, count, growth)
        for _ in range(max(2, world.n(_TRIES))):
            took = _try(world, lease, " ".join(zeros), count, of_zeros)
            if took is None:
                rates.fail("see the other figure")
            else:
                rates.values.append(count * _MIB / took / 1e9)
            started = time.perf_counter()
            bare.values.append(host.drain(zeros, _CHUNK) / (time.perf_counter() - started) / 1e9)
    note = f"{count} MiB, no warm-up"
    return [
        figure(
            "output_2gib_daemon_growth",
            OURS,
            {OURS: growth, "then, of zeros": of_zeros},
            unit="KiB",
            note=f"{note}; lines of text",
            limits=[
                at_most(
                    "at most 1 MiB, the worst try", percentile(growth.values, 100), _GROWTH_KIB
                ),
                no_failure(growth),
            ],
        ),
        figure(
            "output_2gib_rate",
            OURS,
            {OURS: rates, "host dd into one reader": bare},
            unit="GB/s",
            note=f"{note}; zeros by dd",
            limits=[
                at_least("not below 0.5 GB/s, the worst try", percentile(rates.values, 0), 0.5),
                no_failure(rates),
            ],
        ),
    ]


def _try(world: World, lease: Lease, command: str, count: int, growth: Samples) -> float | None:
    """Seconds, None when it failed."""
    world.daemon.restart_peak()
    before = world.daemon.memory_kib("VmRSS")
    started = time.perf_counter()
    result = lease.bash_execute(command, timeout_ms=120_000)
    took = time.perf_counter() - started
    grown = max(0, world.daemon.memory_kib("VmHWM") - before)
    printed = result.stdout.total_bytes if result.stdout is not None else 0
    if result.status != "succeeded" or printed != count * _MIB:
        growth.fail(f"{result.status}, {printed} bytes: {result.error}")
        return None
    growth.values.append(float(grown))
    return took
