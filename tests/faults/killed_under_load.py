"""Trajectories that call without pause while their daemon is killed at random moments.

    python -m tests.faults.killed_under_load [--seed N] [--kills 300] [--trajectories 20]

Each one makes numbered calls, one after the other, and repeats a call until it knows its end: a
command that adds its number to a file, and an edit that counts on in another. A call in doubt it
settles by looking, as a person would. At the end the files say how often each call has run.
"""

from __future__ import annotations

import argparse
import random
import secrets
import select
import threading
from dataclasses import dataclass, field

from stockade.edge.claim_wire import SettleAs
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import Result, StockadeError
from stockade.edge.client.sdk import Stockade
from stockade.terms.claim import ClaimState
from stockade.terms.fault import Code, Status
from stockade.terms.result import ViewData
from tests.daemons import WAIT_S, Daemon, daemon, output

# The daemon died under it; or an earlier attempt to settle did, after it had settled.
_PASSING = {Code.DAEMON_UNREACHABLE, Code.CONNECTION_LOST, Code.KEY_REUSED}

COUNTER = "counter"
LOG = "log"


@dataclass
class Tally:
    """What one trajectory was told, and what its files say."""

    acknowledged: list[int] = field(default_factory=list)
    edits: int = 0
    doubted: int = 0
    found: list[int] = field(default_factory=list)
    counted: int = 0

    def faults(self) -> list[str]:
        wrong = [f"call {n} ran {self.found.count(n)} times" for n in self.acknowledged
                 if self.found.count(n) != 1]  # fmt: skip
        wrong += [f"call {n} ran again" for n in set(self.found) if self.found.count(n) > 1]
        if self.counted != self.edits:
            wrong.append(f"{self.edits} edits were told and {self.counted} were made")
        return wrong


class Trajectory(threading.Thread):
    def __init__(self, server: Daemon, lease: Lease, up: threading.Event) -> None:
        super().__init__(daemon=True)
        self._server = server
        self._id, self._token = lease.id, lease.token
        self._up = up
        self.stopping = threading.Event()
        self.tally = Tally()

    def run(self) -> None:
        with self._server.connect() as stockade:
            lease = stockade.attach(self._id, self._token)
            number = 0
            while not self.stopping.is_set():
                if self._ended(stockade, lease, number):
                    self.tally.acknowledged.append(number)
                if self._edited(stockade, lease, number):
                    self.tally.edits += 1
                number += 1

    def look(self, lease: Lease) -> None:
        self.tally.found = [int(line) for line in output(lease, f"cat {LOG}").split()]
        self.tally.counted = int(output(lease, f"cat {COUNTER}"))

    def _ended(self, stockade: Stockade, lease: Lease, number: int) -> bool:
        while True:
            result = lease.call(
                "bash_execute", {"command": f"echo {number} >> {LOG}"}, turn=1, call_id=f"c{number}"
            )
            if result.status is Status.SUCCEEDED:
                return True
            self._understood(stockade, lease, result, f"\t{number}\n", LOG)

    def _edited(self, stockade: Stockade, lease: Lease, number: int) -> bool:
        edit = {"path": COUNTER, "old_str": f"{number}\n", "new_str": f"{number + 1}\n"}
        while True:
            result = lease.call("file_edit", edit, turn=1, call_id=f"e{number}")
            if result.status is Status.SUCCEEDED:
                return True
            self._understood(stockade, lease, result, f"\t{number + 1}\n", COUNTER)

    def _understood(
        self, stockade: Stockade, lease: Lease, result: Result, wanted: str, path: str
    ) -> None:
        """Wait for the daemon, or settle what is in doubt."""
        assert result.error is not None
        assert result.status in (Status.UNKNOWN, Status.UNAVAILABLE), result.error
        details = result.error.details or {}
        if result.error.code is not Code.IN_DOUBT or "claim" not in details:
            self._up.wait(WAIT_S)
            select.select((), (), (), 0.01)
            return
        viewed = lease.view(path)
        if not isinstance(viewed.data, ViewData):
            return
        last = max(1, viewed.data.total_lines - 100)
        viewed = lease.view(path, offset=last)
        if not isinstance(viewed.data, ViewData):
            return
        found = SettleAs.COMPLETED if wanted in viewed.data.content else SettleAs.NOT_EXECUTED
        try:
            stockade.settle_call(str(details["claim"]), found, "looked at the file")
            self.tally.doubted += 1
        except StockadeError as error:
            if error.error.code not in _PASSING:
                raise


def under_fire(
    server: Daemon, *, trajectories: int, kills: int, seed: int, most_s: float = 0.5
) -> list[Tally]:
    """`server` is running. Between two kills are up to `most_s` seconds of calls."""
    chance = random.Random(seed)
    up = threading.Event()
    up.set()
    with server.connect() as stockade:
        leases = [stockade.lease(None, trajectory=f"fire-{n}") for n in range(trajectories)]
        for lease in leases:
            lease.bash(f"echo 0 > {COUNTER}; : > {LOG}").check()
        workers = [Trajectory(server, lease, up) for lease in leases]
        for worker in workers:
            worker.start()
        for _ in range(kills):
            select.select((), (), (), chance.random() * most_s)
            up.clear()
            server.kill()
            server.start()
            up.set()
        for worker in workers:
            worker.stopping.set()
        for worker in workers:
            worker.join(WAIT_S)
            assert not worker.is_alive(), "a call is stuck"
        for worker, lease in zip(workers, leases, strict=True):
            worker.look(lease)
        states = {view.state for view in stockade.calls()}
        assert states <= {ClaimState.COMPLETED, ClaimState.NOT_EXECUTED}, states
        for lease in leases:
            lease.release().check()
        server.nothing_runs()
    return [worker.tally for worker in workers]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seed", type=int, default=secrets.randbelow(1 << 32))
    parser.add_argument("--kills", type=int, default=300)
    parser.add_argument("--trajectories", type=int, default=20)
    options = parser.parse_args()
    print(f"seed {options.seed}", flush=True)
    with daemon("[limits]\ncalls = 64\n") as server:
        tallies = under_fire(
            server,
            trajectories=options.trajectories,
            kills=options.kills,
            seed=options.seed,
            most_s=3.0,
        )
    wrong = [fault for tally in tallies for fault in tally.faults()]
    calls, edits, doubted = (
        sum(len(tally.acknowledged) for tally in tallies),
        sum(tally.edits for tally in tallies),
        sum(tally.doubted for tally in tallies),
    )
    print(f"{calls} commands and {edits} edits told of, {doubted} settled by looking, {wrong}")
    if wrong or not calls:
        raise SystemExit(1)


if __name__ == "__main__":
    main()
