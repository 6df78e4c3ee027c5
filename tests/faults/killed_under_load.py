"""Trajectories that call without pause while their daemon is killed at random moments.

Each one makes numbered calls, one after the other, and repeats a call until it knows its end: a
command that adds its number to a file, and an edit that counts on in another. A call in doubt it
settles by looking, as a person would. At the end the files say how often each call has run.
"""

from __future__ import annotations

import random
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
from tests.daemons import WAIT_S, Daemon, output

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
    def __init__(self, daemon: Daemon, lease: Lease, up: threading.Event) -> None:
        super().__init__(daemon=True)
        self._daemon = daemon
        self._id, self._token = lease.id, lease.token
        self._up = up
        self.stopping = threading.Event()
        self.tally = Tally()

    def run(self) -> None:
        with self._daemon.connect() as stockade:
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
            assert error.error.code in (
                Code.DAEMON_UNREACHABLE,
                Code.CONNECTION_LOST,
                Code.KEY_REUSED,
            ), error


def under_fire(daemon: Daemon, *, trajectories: int, kills: int, seed: int) -> list[Tally]:
    """`daemon` is running. Between two kills are up to 0.5 s of calls."""
    chance = random.Random(seed)
    up = threading.Event()
    up.set()
    with daemon.connect() as stockade:
        leases = [stockade.lease(None, trajectory=f"fire-{n}") for n in range(trajectories)]
        for lease in leases:
            lease.bash(f"echo 0 > {COUNTER}; : > {LOG}").check()
        workers = [Trajectory(daemon, lease, up) for lease in leases]
        for worker in workers:
            worker.start()
        for _ in range(kills):
            select.select((), (), (), chance.random() / 2)
            up.clear()
            daemon.kill()
            daemon.start()
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
        daemon.nothing_runs()
    return [worker.tally for worker in workers]
