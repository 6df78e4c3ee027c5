"""From the deadline to the confirmed death of a tree that tries to stay.

The command starts a process in a session of its own, a double-forked one, a stopped one and one
that ignores every signal it can. Each carries a mark in its arguments. Before the deadline the
host's process list must show all of them (otherwise nothing was tried), after the result none.

Four calls are on their way at once, a quarter of a second apart, so that 200 deadlines of a second
take less than a minute and no two of them fall together.
"""

from __future__ import annotations

import secrets
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from benchmarks.measure import Samples
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade import Lease

OURS: Final = "stockade, seen by the client"
INSIDE: Final = "stockade, kill to confirmed (daemon's clock)"
_DEADLINE_MS: Final = 1000
_LOOK_S: Final = 0.6
_APART_S: Final = 0.25
_TOGETHER: Final = 4
_TREE: Final = """
m={mark}
setsid bash -c "exec -a $m-session sleep 600" &
( ( exec -a $m-double sleep 600 ) & ) &
bash -c "kill -STOP \\$\\$; : $m-stopped" &
bash -c "trap '' TERM INT HUP QUIT USR1 USR2 PIPE; while :; do sleep 600; done; : $m-deaf" &
exec -a $m-main sleep 600
"""
_PARTS: Final = ("session", "double", "stopped", "deaf", "main")


def measure(world: World) -> list[Figure]:
    found, inside = Samples(), Samples()
    lock = threading.Lock()
    with world.daemon.sdk.lease() as lease, ThreadPoolExecutor(_TOGETHER) as pool:
        lease.bash_execute(":").check()

        def one() -> None:
            try:
                outside_ms, confirmed_ms = _try(lease)
            except Exception as error:
                with lock:
                    found.fail(error)
            else:
                with lock:
                    found.values.append(outside_ms)
                    inside.values.append(float(confirmed_ms))

        tries = []
        for _ in range(world.n(200)):
            tries.append(pool.submit(one))
            time.sleep(_APART_S)
        for each in tries:
            each.result()
    return [
        figure(
            "deadline_to_confirmed_death",
            OURS,
            {OURS: found, INSIDE: inside},
            note="wall time of the call less its limit: dispatch and reply are in it",
            limits=[
                at_most("at most 100 ms, the worst try", percentile(found.values, 100), 100),
                no_failure(found),
            ],
        )
    ]


def _try(lease: Lease) -> tuple[float, int]:
    """Milliseconds after the deadline at which the result was here, and the daemon's own figure.
    Raises RuntimeError for a survivor, or a tree that was never there."""
    mark = f"stockade-bench-{secrets.token_hex(6)}"
    seen: set[str] = set()
    timer = threading.Timer(_LOOK_S, lambda: seen.update(_processes(mark)))
    timer.start()
    started = time.perf_counter()
    result = lease.bash_execute(_TREE.format(mark=mark), timeout_ms=_DEADLINE_MS)
    took_ms = (time.perf_counter() - started) * 1000
    left = _processes(mark)
    timer.join()
    if result.status != "timed_out" or result.error is None:
        raise RuntimeError(f"the call ended as {result.status}: {result.error}")
    if left:
        raise RuntimeError(f"survivors: {left}")
    if missing := set(_PARTS) - seen:
        raise RuntimeError(f"these were never seen running: {missing}")
    confirmed = (result.error.details or {}).get("kill_confirmed_ms")
    if not isinstance(confirmed, int):
        raise RuntimeError("the result does not say how long the kill took")
    return took_ms - _DEADLINE_MS, confirmed


def _processes(mark: str) -> set[str]:
    """Which parts of the tree the host's process list shows; zombies have no arguments left."""
    found: set[str] = set()
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            try:
                text = (entry / "cmdline").read_bytes().decode(errors="replace")
            except (FileNotFoundError, ProcessLookupError):
                continue
            found |= {part for part in _PARTS if f"{mark}-{part}" in text}
            if mark in text and not any(f"{mark}-{part}" in text for part in _PARTS):
                found.add(text[:100])
    return found
