"""A running sandbox: spares that wait in their cgroups, and calls that use one each.

A spare is a child of the guest that was forked and moved into a cgroup of its own ahead of time, so
that starting a command is one message and no instruction of it runs outside its group. After each
call the spare is replaced in the background and the used group removed; what a finished command
left running keeps its group until the sandbox closes.

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
from collections import deque
from collections.abc import Callable, Sequence
from concurrent.futures import Executor
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from stockade.host import cgroup
from stockade.host.guest_link import ExecFailed, Exited, GuestLink, Spare
from stockade.host.lease_groups import SandboxGroups
from stockade.host.pump import Collector, Pump
from stockade.terms.call import ExecOperation
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.ports import ExecContext

SPARES: Final = 2
_TAKE_TIMEOUT_S: Final = 10.0
_KILL_TIMEOUT_S: Final = 10.0
_TRIES: Final = 4


@dataclass(frozen=True, slots=True)
class Placed:
    """A spare in its own group."""

    spare: Spare
    group: Path


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
        background: Executor,
        on_close: Callable[[], None],
    ) -> None:
        self._name = name
        self._digest = digest
        self._env = {name.encode(): value.encode() for name, value in env}
        self._link = link
        self._groups = groups
        self._background = background
        self._on_close = on_close
        self._changed = threading.Condition()
        self._spares: deque[Placed] = deque()
        self._coming = 0
        self._calls = 0
        self._running = 0
        self._overlapped = False
        self._closed = False
        self._null = os.open("/dev/null", os.O_RDWR | os.O_CLOEXEC)
        self._trouble: str | None = None

    @property
    def digest(self) -> str:
        return self._digest

    def alive(self) -> bool:
        if self._closed:
            return False
        poller = select.poll()
        poller.register(self._link.fileno(), select.POLLIN)
        # The guest never speaks unasked: readable means that it is gone.
        return not any(event & (select.POLLHUP | select.POLLERR) for _, event in poller.poll(0))

    def prepare(self) -> None:
        """Make the first spare now and the others in the background."""
        self._add_spare()
        self._refill()

    def execute(self, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        deadline = time.monotonic() + operation.timeout_ms / 1000
        with self._changed:
            self._running += 1
            self._overlapped = self._overlapped or self._running > 1
        try:
            for _ in range(_TRIES):
                outcome = self._try(operation, context, deadline)
                if outcome is not None:
                    return outcome
        finally:
            with self._changed:
                self._running -= 1
                if not self._running:
                    self._overlapped = False
        raise failure(
            Code.SANDBOX_UNAVAILABLE,
            f"{_TRIES} prepared processes in turn died before they read the command; nothing ran",
        )

    def close(self) -> None:
        with self._changed:
            if self._closed:
                return
            self._closed = True
            spares, self._spares = list(self._spares), deque()
            self._changed.notify_all()
        confirmed = self._groups.kill(_KILL_TIMEOUT_S)
        for placed in spares:
            placed.spare.close()
        self._link.close()
        with self._changed:
            self._changed.wait_for(lambda: not self._coming, _KILL_TIMEOUT_S)
        os.close(self._null)
        self._on_close()
        if not confirmed:
            raise failure(Code.SANDBOX_LOST, "processes of the sandbox could not be confirmed dead")

    def _try(
        self, operation: ExecOperation, context: ExecContext, deadline: float
    ) -> ExecOutcome | None:
        """None when the spare died without having read its command: nothing ran."""
        placed = self._take()
        try:
            return self._run(placed, operation, context, deadline)
        except Failure as error:
            if error.fault.code is Code.SANDBOX_UNAVAILABLE and self.alive():
                return None
            raise
        finally:
            placed.spare.close()
            self._background.submit(self._tidy, placed.group)

    def _run(
        self, placed: Placed, operation: ExecOperation, context: ExecContext, deadline: float
    ) -> ExecOutcome:
        started = time.monotonic()
        oom_before, refused_before = self._groups.oom_kills(), self._groups.pids_refused()
        collectors, pump = self._start(placed, operation, context)
        report: Exited | ExecFailed | None = None

        def on_control() -> bool:
            nonlocal report
            report = placed.spare.receive()
            return report is not None

        killed_ms: int | None = None
        try:
            try:
                how = pump.run(deadline, on_control)
            except Failure as error:
                if error.fault.code is not Code.SANDBOX_LOST:
                    raise
                how = "lost"
            if how != "ended":
                at = time.monotonic()
                if not cgroup.kill(placed.group, _KILL_TIMEOUT_S):
                    how = "lost"
                killed_ms = int((time.monotonic() - at) * 1000)
            pump.drain()
        finally:
            pump.close()
        end, value, errno = _verdict(how, report, context)
        if end is End.LOST:
            self._trouble = "the guest died during a call"
            self._groups.kill(_KILL_TIMEOUT_S)
        left = cgroup.members(placed.group) if end in (End.EXITED, End.SIGNALED) else 0
        alone = self._running == 1 and not self._overlapped
        return ExecOutcome(
            end=end,
            value=value,
            stdout=collectors[0].finish(),
            stderr=collectors[1].finish(),
            wall_ms=int((time.monotonic() - started) * 1000),
            cpu_ms=cgroup.cpu_ms(placed.group),
            peak_memory_bytes=self._groups.peak_bytes() if alone else None,
            oom_kills=self._groups.oom_kills() - oom_before,
            pids_refused=self._groups.pids_refused() - refused_before,
            left_running=left,
            kill_confirmed_ms=killed_ms,
            errno=errno,
        )

    def _start(
        self, placed: Placed, operation: ExecOperation, context: ExecContext
    ) -> tuple[tuple[Collector, Collector], Pump]:
        """Open the pipes and send the command; the spare's ends are closed here."""
        capture = operation.capture
        collectors = []
        for number, name in ((1, "stdout"), (2, "stderr")):
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
            collectors.append(Collector(number, capture, sink, context.tee))
        out_read, out_write = os.pipe2(os.O_CLOEXEC)
        err_read, err_write = os.pipe2(os.O_CLOEXEC)
        pump = Pump(
            {out_read: collectors[0], err_read: collectors[1]},
            placed.spare.fileno(),
            context.cancel,
        )
        if not self._overlapped:
            self._groups.start_peak()
        stdin = self._null if context.stdin is None else context.stdin
        try:
            placed.spare.start(
                paths=operation.paths,
                argv=operation.argv,
                env=tuple((self._env | dict(operation.env)).items()),
                cwd=operation.cwd,
                fds=(stdin, out_write, err_write),
            )
        except BaseException:
            pump.close()
            raise
        finally:
            os.close(out_write)
            os.close(err_write)
        return (collectors[0], collectors[1]), pump

    def _take(self) -> Placed:
        with self._changed:
            self._refill_locked()
            ready = self._changed.wait_for(
                lambda: self._spares or self._closed or not self._coming, _TAKE_TIMEOUT_S
            )
            if self._spares:
                placed = self._spares.popleft()
                self._refill_locked()
                return placed
        detail = self._trouble or ("it does not answer" if not ready else "it is closed")
        raise failure(Code.SANDBOX_UNAVAILABLE, f"the sandbox is not usable: {detail}; nothing ran")

    def _refill(self) -> None:
        with self._changed:
            self._refill_locked()

    def _refill_locked(self) -> None:
        while not self._closed and len(self._spares) + self._coming < SPARES:
            self._coming += 1
            self._background.submit(self._add_in_background)

    def _add_in_background(self) -> None:
        try:
            self._add_spare()
        except (Failure, OSError) as error:
            self._trouble = str(error)
        finally:
            with self._changed:
                self._coming -= 1
                self._changed.notify_all()

    def _add_spare(self) -> None:
        with self._changed:
            self._calls += 1
            number = self._calls
        spare = self._link.prefork(number, _TAKE_TIMEOUT_S)
        try:
            group = self._groups.place(spare.pid, f"call-{number}")
        except OSError as error:
            spare.close()
            raise failure(
                Code.SANDBOX_UNAVAILABLE, f"a process could not be placed in its cgroup: {error}"
            ) from error
        with self._changed:
            if not self._closed:
                self._spares.append(Placed(spare, group))
                self._changed.notify_all()
                return
        spare.close()

    def _tidy(self, group: Path) -> None:
        """Remove a used group; one with survivors stays until the sandbox closes."""
        if not cgroup.populated(group):
            try:
                group.rmdir()
            except OSError as error:
                self._trouble = f"a call's cgroup could not be removed: {error}"


def _verdict(
    how: str, report: Exited | ExecFailed | None, context: ExecContext
) -> tuple[End, int | None, int | None]:
    """(end, exit code or signal, errno)."""
    if how == "deadline":
        return End.DEADLINE, None, None
    if how == "cancelled":
        return context.cancel.reason() or End.CANCELLED, None, None
    if isinstance(report, ExecFailed):
        return End.NOT_FOUND, None, report.errno
    if how == "lost" or report is None:
        return End.LOST, None, None
    if report.signal is not None:
        return End.SIGNALED, report.signal, None
    return End.EXITED, report.code, None
