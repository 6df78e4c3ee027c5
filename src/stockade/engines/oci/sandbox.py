"""A running sandbox: calls that use one spare each.

A call ends by its exit report (plus a drain), its deadline, its cancellation, or the death of the
guest. In the latter three the call's group is killed until the kernel says that it is empty, and
only then is there an outcome. A spare that dies before it read its command started nothing: the
next one is tried (attempts.py).

Each call is in the journal from before its command is sent until it is forgotten, and the guest keeps
what belongs to it for as long; `take_over` goes on with a call of an earlier process.
"""

from __future__ import annotations

import select
import threading
import time
from collections.abc import Callable, Sequence, Set
from functools import partial
from typing import Final

from stockade.engines.oci import bombs
from stockade.engines.oci.attempts import TRIES, Attempts
from stockade.engines.oci.company import Company
from stockade.engines.oci.held import template_of
from stockade.engines.oci.journal import CallJournal, Entry
from stockade.engines.oci.making import Placed
from stockade.engines.oci.running import (
    NAMES,
    Begun,
    id_of,
    pump_of,
    resumed,
    sink_of,
    verdict,
)
from stockade.engines.oci.spares import Spares
from stockade.engines.oci.watchdog import Watchdog
from stockade.host.anchors import Anchors
from stockade.host.guest_link import GuestLink
from stockade.host.lease_groups import SandboxGroups
from stockade.host.pump import Collector, Pump
from stockade.host.spare import ExecFailed, Exited
from stockade.terms.call import ExecOperation
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.patience import Patience
from stockade.terms.ports import ExecContext

_KILL_TIMEOUT_S: Final = 10.0
# A shell's status when a program can't be executed, or is not there.
_NO_PROGRAM: Final = (126, 127)


class OciSandbox:
    """Implements `terms.ports.Sandbox`. `on_close` removes what the engine made for it."""

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        env: Sequence[tuple[str, str]],
        link: GuestLink,
        groups: SandboxGroups,
        spares: Spares,
        journal: CallJournal,
        anchors: Anchors | None,
        on_close: Callable[[], None],
    ) -> None:
        self._name = name
        self._digest = digest
        self._env = {name.encode(): value.encode() for name, value in env}
        self._plain_env = tuple(self._env.items())
        self._link = link
        self._groups = groups
        self._spares = spares
        self._journal = journal
        self._anchors = anchors
        self._on_close = on_close
        self._lock = threading.Lock()
        self._company = Company()
        self._leaving: set[int] = set()
        self._expected: set[int] = set()
        self._closed = False

    @property
    def digest(self) -> str:
        return self._digest

    def alive(self) -> bool:
        """Also False when what it has mounted is no longer at its place (host.anchors)."""
        return self._answers() and self._anchors is not None and self._anchors.hold()

    def _answers(self) -> bool:
        if self._closed:
            return False
        poller = select.poll()
        poller.register(self._link.fileno(), select.POLLIN)
        # The guest never speaks unasked: readable means that it is gone.
        return not any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))

    def execute(self, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        patience = Patience(context.cancel, operation.timeout_ms / 1000, time.monotonic)
        attempts = Attempts(context)
        with self._company:
            try:
                for _ in range(TRIES):
                    outcome = self._try(operation, attempts, patience)
                    if outcome is not None:
                        return attempts.billed(outcome)
                raise attempts.none_left()
            except Failure as error:
                raise attempts.told(error) from error.__cause__

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        confirmed = self._groups.kill(_KILL_TIMEOUT_S)
        self._hang_up()
        self._on_close()
        if not confirmed:
            raise failure(Code.SANDBOX_LOST, "processes of the sandbox could not be confirmed dead")

    def leave(self) -> None:
        """Let go of it as it is, for the next process. No call is running in it."""
        with self._lock:
            if self._closed:
                return
            self._closed = True
        self._hang_up()

    def _hang_up(self) -> None:
        self._link.close()
        self._spares.close()
        if self._anchors is not None:
            self._anchors.close()

    def _try(
        self, operation: ExecOperation, attempts: Attempts, patience: Patience
    ) -> ExecOutcome | None:
        """None when the spare died and is said not to have read its command."""
        env = self._variables(operation)
        context = attempts.context
        own_stdin = context.stdin is not None
        wanted = template_of(operation, env, own_stdin=own_stdin)
        placed = self._spares.take(None if attempts.doubtful else wanted, patience)
        try:
            return self._run(placed, operation, env, context, patience.until)
        except Failure as error:
            if error.fault.code is Code.SANDBOX_UNAVAILABLE:
                attempts.ended(placed, partial(self._journal.forget, str(placed.spare.id)))
                if self._answers():
                    return None
            raise
        finally:
            self._spares.give_back(placed)

    def _variables(self, operation: ExecOperation) -> tuple[tuple[bytes, bytes], ...]:
        return (
            tuple((self._env | dict(operation.env)).items()) if operation.env else self._plain_env
        )

    def _run(
        self,
        placed: Placed,
        operation: ExecOperation,
        env: tuple[tuple[bytes, bytes], ...],
        context: ExecContext,
        deadline: float,
    ) -> ExecOutcome:
        begun = self._start(placed, operation, env, context, deadline)
        self._spares.meanwhile(placed.spare.id)
        outcome = self._conclude(begun, context)
        if context.starting is None:
            self._journal.forget(str(placed.spare.id))
        if placed.held and outcome.end is End.EXITED and outcome.value in _NO_PROGRAM:
            self._spares.distrust()
        return outcome

    def _over(self, number: int) -> None:
        """Nobody will ask for the call. What it left running must not wait on a pipe that nobody
        reads: a write is to fail."""
        with self._lock:
            at_once = number in self._leaving
            self._leaving.discard(number)
        self._spares.over(number, at_once=at_once)

    def _conclude(self, begun: Begun, context: ExecContext) -> ExecOutcome:
        """Wait for the verdict."""
        placed, pump = begun.placed, begun.pump
        counters = self._groups.counters
        report: Exited | ExecFailed | None = None

        def on_control() -> bool:
            nonlocal report
            report = placed.spare.receive()
            return report is not None

        killed_ms: int | None = None
        try:
            how = self._pumped(pump, placed, context, begun.deadline, on_control)
            if how != "ended" or context.cpu is not None:
                # With a budget also what a command that ended left: nobody would look at it.
                at = time.monotonic()
                if not placed.group.kill(_KILL_TIMEOUT_S):
                    how = "lost"
                if how != "ended":
                    killed_ms = int((time.monotonic() - at) * 1000)
            pump.drain(wait=how == "ended")
        except BaseException:
            for collector in begun.collectors:
                collector.finish()
            raise
        finally:
            pump.close()
        end, value, errno = verdict(how, report, context)
        if end is End.LOST:
            self._groups.kill(_KILL_TIMEOUT_S)
        left, ended = self._left(begun) if end in (End.EXITED, End.SIGNALED) else (0, 0)
        return ExecOutcome(
            end=end,
            value=value,
            stdout=begun.collectors[0].finish(),
            stderr=begun.collectors[1].finish(),
            wall_ms=int((time.monotonic() - begun.started) * 1000),
            cpu_ms=placed.group.cpu_ms(),
            peak_memory_bytes=counters.peak_bytes() if self._company.alone else None,
            oom_kills=counters.oom_kills() - begun.oom_kills,
            pids_refused=self._refused_since(begun.pids_refused),
            left_running=left,
            left_ended=ended,
            kill_confirmed_ms=killed_ms,
            errno=errno,
        )

    def _left(self, begun: Begun) -> tuple[int, int]:
        """How many processes a command that is over has left running, or of a bomb that were ended."""
        group = begun.placed.group
        left = group.members()
        if not left:
            return 0, 0
        refused = partial(self._refused_since, begun.pids_refused)
        ended = bombs.ended(group.path, refused, group.quotas)
        if ended:
            return 0, ended
        bombs.look_later(group.path, refused, group.quotas, left)
        with self._lock:
            self._leaving.add(begun.placed.spare.id)
        return left, 0

    def _refused_since(self, before: int) -> int:
        with self._lock:  # the counters are closed after `_closed` is set
            if self._closed:
                return 0
            now = self._groups.counters.pids_refused() - self._spares.refused_at_most
        return max(0, now - before)

    def expect(self, numbers: Set[int]) -> None:
        """Spares that an earlier process gave calls to."""
        with self._lock:
            self._expected |= numbers

    def busy(self) -> bool:
        return bool(self._expected)

    def forgotten(self, number: int) -> None:
        """Nobody will ask for this call of an earlier process."""
        self._spares.over(number, at_once=True)

    def discard(self, placed: Placed) -> None:
        """Tidy up after a call of an earlier process."""
        self._spares.give_back(placed)
        with self._lock:
            self._expected.discard(placed.spare.id)

    def take_over(
        self, entry: Entry, placed: Placed, context: ExecContext, timeout_ms: int
    ) -> ExecOutcome:
        """Go on with a call of an earlier process to its verdict, until its own deadline and for at
        most `timeout_ms`. Raises Failure(sandbox_unavailable) when it is certain that nothing ran,
        OSError."""
        self._spares.keep(entry.number)
        with self._company:
            self._company.mix()  # what it used of memory before is not known
            try:
                return self._conclude(resumed(entry, placed, context, timeout_ms), context)
            finally:
                self.discard(placed)

    def _pumped(
        self,
        pump: Pump,
        placed: Placed,
        context: ExecContext,
        deadline: float,
        on_control: Callable[[], bool],
    ) -> str:
        """How it ended: ended, deadline, cancelled, budget or lost."""
        try:
            if context.tee is None and context.cpu is None:
                return pump.run(deadline, on_control)
            watchdog = Watchdog(
                placed.group, context.cancel, deadline, _KILL_TIMEOUT_S, context.cpu
            )
            with watchdog:
                how = pump.run(deadline, on_control)
        except Failure as error:
            if error.fault.code is not Code.SANDBOX_LOST:
                raise
            return "lost"
        return watchdog.fired or how

    def _start(
        self,
        placed: Placed,
        operation: ExecOperation,
        env: tuple[tuple[bytes, bytes], ...],
        context: ExecContext,
        deadline: float,
    ) -> Begun:
        """Record the call and give the spare its command, which holds the only writing ends of the
        pipes then."""
        started = time.monotonic()
        counters = self._groups.counters
        sinks = [sink_of(name, operation, context) for name in NAMES]
        collectors = (
            Collector(1, operation.capture, sinks[0], context.tee),
            Collector(2, operation.capture, sinks[1], context.tee),
        )
        pump = pump_of(placed.streams.take(), collectors, placed, context)
        if self._company.alone:
            counters.start_peak()
        begun = Begun(
            placed=placed,
            collectors=collectors,
            pump=pump,
            deadline=deadline,
            started=started,
            oom_kills=counters.oom_kills(),
            pids_refused=-self._spares.refused + counters.pids_refused(),
        )
        spare, number = placed.spare, placed.spare.id
        slot = 0
        try:
            now_ns = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            entry = Entry(
                lease_id=context.lease_id,
                sandbox=self._name,
                number=number,
                pid=spare.pid,
                started_ns=now_ns,
                deadline_ns=now_ns + int((deadline - started) * 1e9),
                capture=operation.capture,
                artifacts=(id_of(sinks[0]), id_of(sinks[1])),
                oom_kills=begun.oom_kills,
                pids_refused=counters.pids_refused(),
                held=placed.held,
            )
            slot = self._journal.begin(entry, lambda: self._over(number))
            if context.starting is not None:
                context.starting(self._name, str(number))
            if placed.held:
                spare.release(operation.argv[-1])
            else:
                out_write, err_write = placed.streams.writes
                stdin = self._spares.null if context.stdin is None else context.stdin
                spare.start(
                    paths=operation.paths,
                    argv=operation.argv,
                    env=env,
                    cwd=operation.cwd,
                    fds=(stdin, out_write, err_write),
                )
            self._journal.sent(slot)
        except BaseException:
            pump.close()
            if slot:
                self._journal.drop(slot, number)
            self._link.done(number)
            raise
        finally:
            placed.streams.close_writes()
        return begun
