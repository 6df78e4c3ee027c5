"""How long a start takes that finds what a killed daemon left: 100 leases, each with a sandbox.

The daemon that is killed is a process of its own, without a socket; the one that follows is this
process. The other figure is one guest: connect, greet, and take what it kept of three running calls.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Final

from benchmarks.daemon import PLACE
from benchmarks.measure import Samples
from benchmarks.report import Figure, at_most, figure, no_failure, percentile
from benchmarks.world import World
from stockade.host.guest_link import GuestLink
from stockade.runtime import open_runtime

OURS: Final = "stockade"
_LEASES: Final = 100
_TRIES: Final = 3
_CALLS: Final = 3
_RECONNECTS: Final = 200
_TIMEOUT_S: Final = 20.0
_LEFT: Final = """
import os, sys, threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from stockade.runtime import open_runtime
from stockade.edge.client.sdk import Stockade
from stockade.edge.client.transport import InProcessTransport
from stockade.edge.exchange import Peer, Role
runtime = open_runtime(Path(sys.argv[1]), persistent=True)
here = Peer(os.getuid(), None, Role.OPERATOR, own=True)
stockade = Stockade(InProcessTransport(runtime.api, here, runtime.close))
def make(number):
    lease = stockade.lease(None, trajectory=f"t{number}")
    lease.bash("touch there").check()
    return lease
with ThreadPoolExecutor(4) as pool:
    made = list(pool.map(make, range(int(sys.argv[2]))))
def run(name):
    made[0].bash(f"touch {name}; sleep 600").check()
for number in range(int(sys.argv[3])):
    threading.Thread(target=run, args=(f"run-{number}",), daemon=True).start()
wanted = " -a ".join(f"-e run-{n}" for n in range(int(sys.argv[3]))) or "1"
made[0].bash(f"until [ {wanted} ]; do sleep 0.01; done", timeout_ms=20_000).check()
print("ready", flush=True)
threading.Event().wait()
"""


def measure(world: World) -> list[Figure]:
    starts, calls = Samples(), Samples()
    leases = world.size(_LEASES)
    for _ in range(world.n(_TRIES)):
        with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=PLACE) as place:
            state = _left(place, leases, 0)
            started = time.perf_counter()
            runtime = open_runtime(state, persistent=True)
            took_ms = (time.perf_counter() - started) * 1000
            if len(runtime.left) == leases:
                starts.values.append(took_ms)
            else:
                starts.fail(f"{len(runtime.left)} of {leases} came back")
            runtime.close(0)
    with tempfile.TemporaryDirectory(prefix="stockade-bench-", dir=PLACE) as place:
        state = _left(place, 1, _CALLS)
        [sandbox] = (state / "sandboxes").iterdir()
        for _ in range(world.n(_RECONNECTS)):
            started = time.perf_counter()
            link = GuestLink.connect(str(sandbox / "guest.sock"), _TIMEOUT_S)
            kept = link.kept(_TIMEOUT_S)
            calls.values.append((time.perf_counter() - started) * 1000)
            for each in kept:
                each.close()
            link.close()
        runtime = open_runtime(state, persistent=True)
        runtime.close(0)
    return [
        figure(
            "recovery_of_100_leases",
            OURS,
            {OURS: starts},
            note=f"{leases} leases with a sandbox each; until calls are let in",
            limits=[
                at_most("at most 3 s, the worst try", percentile(starts.values, 100), 3000),
                no_failure(starts),
            ],
        ),
        figure(
            "reconnect_to_a_guest",
            OURS,
            {OURS: calls},
            note="connect, greeting, and what it keeps of three running calls and its spares",
        ),
    ]


def _left(place: str, leases: int, calls: int) -> Path:
    """The state directory of a daemon that was killed with `calls` running."""
    os.chmod(place, 0o711)
    state = Path(place) / "state"
    process = subprocess.Popen(
        [sys.executable, "-c", _LEFT, str(state), str(leases), str(calls)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    with process.stdout as said:
        line = said.readline()
    process.kill()
    process.wait()
    if line != "ready\n":
        shutil.rmtree(state, ignore_errors=True)
        raise RuntimeError("the daemon that is to be killed did not start")
    return state
