"""Ends leases whose time is over or whose capability was revoked, and finishes what a crash or a
failure left undone.

`recover` runs once, before the first call is served: what an earlier process left is taken back or
removed. Then one thread calls `tick`: it looks every second, or when the next lease ends, for
leases that are over, and now and then repeats failed removals and resets and lets the engine, the
workspaces and the artifacts remove what no lease claims. A failure is logged and tried again; none
stops the thread, and none stops the other leases' turn. A lease that is busy with an operation of
its owner (an export, say) is left for the next time.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable
from collections.abc import Set as AbstractSet
from dataclasses import replace
from typing import Final

from stockade.flow.steps import LeaseSteps
from stockade.terms.lease import LeaseRecord, LeaseState
from stockade.terms.moment import Moment, Timekeeper
from stockade.terms.outcome import End

LOOK_S: Final = 1.0
SWEEP_S: Final = 60.0

_HELD: Final = (LeaseState.READY, LeaseState.RESETTING)
_log: Final = logging.getLogger(__name__)


def going_on(records: Iterable[LeaseRecord], now: Moment) -> frozenset[str]:
    """The leases that go on as they are."""
    return frozenset(
        record.id
        for record in records
        if record.state is LeaseState.READY and record.left_s(now) > 0
    )


class Sweeper:
    """`start` and `stop` once each; `recover` and `tick` are for the thread and for tests."""

    def __init__(
        self,
        steps: LeaseSteps,
        *,
        clock: Timekeeper,
        wait: Callable[[float], bool] | None = None,
        settle: Callable[[], None] = lambda: None,
        forget: Callable[[], None] = lambda: None,
        upkeep: Callable[[], None] = lambda: None,
    ) -> None:
        """`settle` is called at each look, for calls that were cut off; `forget` now and then, for
        claims that are kept no longer; `upkeep` at every look, and raises nothing. `wait(seconds)`
        returns early, with True, when `stop` was called; it is an Event's wait unless a test brings
        its own."""
        self._steps = steps
        self._clock = clock
        self._settle = settle
        self._forget = forget
        self._stopping = threading.Event()
        self._upkeep = upkeep
        self._wait = wait or self._stopping.wait
        self._thread = threading.Thread(target=self._run, name="stockade-sweeper", daemon=True)
        self._swept_at_s = clock.moment().boot_s

    def recover(self) -> tuple[str, ...]:
        """Bring every lease to `ready` or `released`. Gives what could not be removed, which
        `tick` tries again. Raises Failure(storage_unavailable) if the ledger can't be read."""
        now = self._clock.moment()
        records = [self._in_this_boot(record, now) for record in self._steps.ledger.leases()]
        kept = frozenset(
            record.id
            for record in records
            if record.state is LeaseState.READY and not self._steps.over(record, now)
        )
        # First of all no sandbox may live whose workspace is about to be reset or removed.
        still = frozenset(
            record.id
            for record in records
            if record.id in kept
            and self._steps.families.owner(record).state is not LeaseState.RESETTING
        )
        left = self._swept("sandboxes", self._steps.engine.sweep, still)
        for seen in records:
            record = self._steps.ledger.lease(seen.id)
            if record is not None and record.id not in kept:  # else gone with one above it
                self._finish(record, now)
        return left + self._sweep()

    def tick(self) -> None:
        """One look. Never raises an Exception."""
        try:
            now = self._clock.moment()
            due = now.boot_s - self._swept_at_s >= SWEEP_S
            for record in self._steps.ledger.leases():
                if (record.state in _HELD and self._steps.over(record, now)) or (
                    due and record.state in (LeaseState.RESETTING, LeaseState.DIRTY)
                ):
                    self._revisit(record, now)
            if due:
                self._swept_at_s = now.boot_s
                self._sweep()
            self._settle()
            self._steps.ledger.tidy()
        except Exception as error:
            _log.error("sweeper failed, to be repeated: %s", error)
        self._upkeep()

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Returns when the running tick is over."""
        self._stopping.set()
        self._thread.join()

    def _run(self) -> None:
        while not self._wait(self._pause()):
            self.tick()

    def _pause(self) -> float:
        try:
            now = self._clock.moment()
            left = [r.left_s(now) for r in self._steps.ledger.leases() if r.state in _HELD]
        except Exception as error:
            _log.error("sweeper can't read the ledger, to be repeated: %s", error)
            return LOOK_S
        # At least a hundredth: an expired lease that is busy must not make the thread spin.
        return max(0.01, min([LOOK_S, *left]))

    def _in_this_boot(self, record: LeaseRecord, now: Moment) -> LeaseRecord:
        """After a reboot the wall clock says once how much of a lease is left; from then on the
        lease runs on this boot's clock."""
        if record.boot != now.boot:
            record = replace(record, boot=now.boot, ends_boot_s=now.boot_s + record.left_s(now))
            self._steps.ledger.put_lease(record)
        return record

    def _revisit(self, seen: LeaseRecord, now: Moment) -> None:
        """Finish a lease, as it is once nobody else works on it."""
        with self._steps.families.hold(seen, wait=False) as held:
            record = self._steps.ledger.lease(seen.id) if held else None
            if record is None:
                return
            if record.state is LeaseState.READY and not self._steps.over(record, now):
                return  # renewed or reset meanwhile
            self._finish(record, now)

    def _finish(self, record: LeaseRecord, now: Moment) -> None:
        if record.state is LeaseState.RESETTING and not self._steps.over(record, now):
            self._steps.try_reset(record)
        else:
            self._steps.try_remove(record, End.LEASE_EXPIRED)

    def _sweep(self) -> tuple[str, ...]:
        steps = self._steps
        try:
            steps.ledger.sweep(self._clock.moment())
            self._forget()
        except Exception as error:
            _log.warning("sweep of the ledger failed, to be repeated: %s", error)
        return (
            self._swept("sandboxes", steps.engine.sweep, steps.live)
            + self._swept("workspaces", steps.workspaces.sweep, steps.live)
            + self._swept("artifacts", steps.artifacts.sweep, steps.live)
        )

    def _swept(
        self,
        what: str,
        sweep: Callable[[AbstractSet[str]], tuple[str, ...]],
        live: AbstractSet[str],
    ) -> tuple[str, ...]:
        try:
            left = sweep(live)
        except Exception as error:
            _log.warning("sweep of %s failed, to be repeated: %s", what, error)
            return ()
        if left:
            _log.warning("sweep of %s left %s, to be repeated", what, ", ".join(left))
        return left
