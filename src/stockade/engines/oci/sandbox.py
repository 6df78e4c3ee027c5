"""A running sandbox: calls that use one spare each.

A call ends by its exit report (plus a drain), its deadline, its cancellation, or the death of the
guest. In the latter three the call's group is killed until the kernel says that it is empty, and
only then is there an outcome. A spare that dies before it read its command started nothing: the
next one is tried.
"""

from __future__ import annotations

import os
import select
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from stockade.engines.oci.held import Streams, template_of
from stockade.engines.oci.spares import BUSY_SPARES, Placed, Spares
from stockade.engines.oci.watchdog import Watchdog
from stockade.host.anchors import Anchors
from stockade.host.guest_link import ExecFailed, Exited, GuestLink
from stockade.host.lease_groups import SandboxGroups
from stockade.host.pump import Collector, Pump
from stockade.terms.call import ExecOperation
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.ports import ExecContext

_KILL_TIMEOUT_S: Final = 10.0
# A command may have killed all that wait (`kill -9 -1`).
_TRIES: Final = BUSY_SPARES + 2


class OciSandbox:
    """Implements `terms.ports.Sandbox`. `owner` is the host id, of user and group, that the user
    inside is; `on_close` removes what the engine made for it."""

    def __init__(
        self,
        *,
        name: str,
        digest: str,
        env: Sequence[tuple[str, str]],
        owner: int,
        link: GuestLink,
        groups: SandboxGroups,
        spares: Spares,
        anchors: Anchors,
        on_close: Callable[[], None],
    ) -> None:
        self._name = name
        self._digest = digest
        self._env = {name.encode(): value.encode() for name, value in env}
        self._plain_env = tuple(self._env.items())
        self._owner = owner
        self._link = link
        self._groups = groups
        self._spares = spares
        self._anchors = anchors
        self._on_close = on_close
        self._lock = threading.Lock()
        self._running = 0
        self._overlapped = False
        self._closed = False
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)

    @property
    def digest(self) -> str:
        return self._digest

    def alive(self) -> bool:
        """Also False when what it has mounted is no longer at its place (host.anchors)."""
        return self._answers() and self._anchors.hold()

    def _answers(self) -> bool:
        if self._closed:
            return False
        poller = select.poll()
        poller.register(self._link.fileno(), select.POLLIN)
        # The guest never speaks unasked: readable means that it is gone.
        return not any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))

    def execute(self, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        deadline = time.monotonic() + operation.timeout_ms / 1000
        with self._lock:
            self._running += 1
            self._overlapped = self._overlapped or self._running > 1
        try:
            for _ in range(_TRIES):
                outcome = self._try(operation, context, deadline)
                if outcome is not None:
                    return outcome
        finally:
            with self._lock:
                self._running -= 1
                if not self._running:
                    self._overlapped = False
        raise failure(
            Code.SANDBOX_UNAVAILABLE,
            f"{_TRIES} prepared processes in turn died before they read the command; nothing ran",
        )

    def close(self) -> None:
        with self._lock:
            if self._closed:
                return
            self._closed = True
        confirmed = self._groups.kill(_KILL_TIMEOUT_S)
        self._link.close()
        self._spares.close()
        self._anchors.close()
        os.close(self._null)
        self._on_close()
        if not confirmed:
            raise failure(Code.SANDBOX_LOST, "processes of the sandbox could not be confirmed dead")

    def _try(
        self, operation: ExecOperation, context: ExecContext, deadline: float
    ) -> ExecOutcome | None:
        """None when the spare died without having read its command: nothing ran."""
        env = self._variables(operation)
        own_stdin = context.stdin is not None
        placed = self._spares.take(template_of(operation, env, own_stdin=own_stdin))
        try:
            return self._run(placed, operation, env, context, deadline)
        except Failure as error:
            if error.fault.code is Code.SANDBOX_UNAVAILABLE and self._answers():
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
        started = time.monotonic()
        counters = self._groups.counters
        oom_before, refused_before = counters.oom_kills(), counters.pids_refused()
        collectors, pump = self._start(placed, operation, env, context)
        report: Exited | ExecFailed | None = None

        def on_control() -> bool:
            nonlocal report
            report = placed.spare.receive()
            return report is not None

        killed_ms: int | None = None
        try:
            how = self._pumped(pump, placed, context, deadline, on_control)
            if how != "ended" or context.cpu is not None:
                # With a budget also what a command that ended left: nobody would look at it.
                at = time.monotonic()
                if not placed.group.kill(_KILL_TIMEOUT_S):
                    how = "lost"
                if how != "ended":
                    killed_ms = int((time.monotonic() - at) * 1000)
            pump.drain()
        except BaseException:
            for collector in collectors:
                collector.finish()
            raise
        finally:
            pump.close()
        end, value, errno = _verdict(how, report, context)
        if end is End.LOST:
            self._groups.kill(_KILL_TIMEOUT_S)
        left = placed.group.members() if end in (End.EXITED, End.SIGNALED) else 0
        alone = self._running == 1 and not self._overlapped
        return ExecOutcome(
            end=end,
            value=value,
            stdout=collectors[0].finish(),
            stderr=collectors[1].finish(),
            wall_ms=int((time.monotonic() - started) * 1000),
            cpu_ms=placed.group.cpu_ms(),
            peak_memory_bytes=counters.peak_bytes() if alone else None,
            oom_kills=counters.oom_kills() - oom_before,
            pids_refused=counters.pids_refused() - refused_before,
            left_running=left,
            kill_confirmed_ms=killed_ms,
            errno=errno,
        )

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
    ) -> tuple[tuple[Collector, Collector], Pump]:
        """Give the spare its command; it holds the only writing ends of the pipes then."""
        out = self._collector(1, "stdout", operation, context)
        err = self._collector(2, "stderr", operation, context)
        streams = placed.held.streams if placed.held is not None else Streams(self._owner)
        out_read, err_read = streams.take()
        pump = Pump({out_read: out, err_read: err}, placed.spare.fileno(), context.cancel)
        if not self._overlapped:
            self._groups.counters.start_peak()
        try:
            if context.starting is not None:
                context.starting(self._name, str(placed.spare.id))
            if placed.held is not None:
                placed.spare.release(operation.argv[-1])
            else:
                out_write, err_write = streams.writes
                stdin = self._null if context.stdin is None else context.stdin
                placed.spare.start(
                    paths=operation.paths,
                    argv=operation.argv,
                    env=env,
                    cwd=operation.cwd,
                    fds=(stdin, out_write, err_write),
                )
        except BaseException:
            pump.close()
            raise
        finally:
            streams.close_writes()
        return (out, err), pump

    def _collector(
        self, number: int, name: str, operation: ExecOperation, context: ExecContext
    ) -> Collector:
        capture = operation.capture
        sink = (
            context.artifacts.open(
                context.lease_id,
                name,
                capture.head_bytes + capture.tail_bytes,
                capture.artifact_bytes,
            )
            if capture.artifact_bytes
            else None
        )
        return Collector(number, capture, sink, context.tee)


def _verdict(
    how: str, report: Exited | ExecFailed | None, context: ExecContext
) -> tuple[End, int | None, int | None]:
    """(end, exit code or signal, errno)."""
    if how == "deadline":
        return End.DEADLINE, None, None
    if how == "budget":
        return End.BUDGET, None, None
    if how == "cancelled":
        return context.cancel.reason() or End.CANCELLED, None, None
    if isinstance(report, ExecFailed):
        return End.NOT_FOUND, None, report.errno
    if how == "lost" or report is None:
        return End.LOST, None, None
    if report.signal is not None:
        return End.SIGNALED, report.signal, None
    return End.EXITED, report.code, None
