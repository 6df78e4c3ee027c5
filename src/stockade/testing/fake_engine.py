"""An engine that runs nothing: each command's outcome is written down beforehand.

A `Script` is looked up by the last word of the argument vector, which for a shell is the command
itself; a command without one prints nothing and exits 0. Output goes through the same bounds and
the same artifact store as a real one's, time is the manual clock's, deadline and cancellation hold.
What a lease's sandboxes share is a directory below the engine's own, so that a test sees what is
left behind. It is no sandbox and enforces nothing, hence it has no wall that a test could rely on.
"""

from __future__ import annotations

import os
import threading
from collections.abc import Set as AbstractSet
from dataclasses import dataclass

from stockade.host.cancel import EventfdCancel
from stockade.terms.call import ExecOperation
from stockade.terms.claim import Evidence, Unknown
from stockade.terms.fault import Code, Failure, Fault, failure
from stockade.terms.grant import Tier
from stockade.terms.outcome import Captured, End, ExecOutcome
from stockade.terms.patience import Patience
from stockade.terms.plan import SandboxPlan
from stockade.terms.ports import ExecContext, LeaseTree
from stockade.terms.result import EngineRef
from stockade.testing.clock import ManualClock
from stockade.testing.faults import Point, unarmed


@dataclass(frozen=True, slots=True)
class Script:
    """One command's outcome. It prints, takes `takes_s` and uses `cpu_ms` evenly, then exits with `code`, or dies by
    `signal`, or takes the sandbox with it (`lost`). `refused` is raised before anything starts, and
    `unread` when the process that was given it has died without reading it."""

    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0
    signal: int | None = None
    takes_s: float = 0.0
    cpu_ms: int = 0
    lost: bool = False
    left_running: int = 0
    refused: Fault | None = None
    unread: Fault | None = None


class FakeEngine:
    """Implements `terms.ports.Engine`. Points: engine.create, engine.evidence, engine.release,
    sandbox.execute, sandbox.close; each before the step. `left` is what `evidence` answers with."""

    def __init__(self, directory: str, clock: ManualClock, point: Point = unarmed) -> None:
        self.directory = directory
        self._clock = clock
        self.point = point
        self.scripts: dict[bytes, Script] = {}
        self.created: list[FakeSandbox] = []
        # What an earlier process left, by the names of sandbox and call.
        self.left: dict[tuple[str, str], Evidence] = {}
        self.forgotten: list[tuple[str, str]] = []
        self.expected = 0
        os.makedirs(directory, exist_ok=True)

    def describe(self) -> EngineRef:
        return EngineRef(name="fake", version="1", tier=Tier.CONTAINER)

    def check(self, plan: SandboxPlan) -> None:
        if plan.tier_min is not Tier.CONTAINER:
            raise failure(Code.UNENFORCEABLE, "the fake has no stronger tier", rule="tier_min")
        if plan.connect:
            raise failure(Code.UNENFORCEABLE, "the fake has no network", rule="connect")

    def expect(self) -> None:
        self.expected += 1

    def create(
        self, tree: LeaseTree, plan: SandboxPlan, digest: str, patience: Patience
    ) -> FakeSandbox:
        self.point("engine.create")
        self.check(plan)
        os.makedirs(os.path.join(self.directory, tree.lease_id), exist_ok=True)
        name = f"sandbox-{len(self.created)}"
        sandbox = FakeSandbox(self, self._clock, tree.lease_id, digest, name)
        self.created.append(sandbox)
        return sandbox

    def evidence(self, sandbox: str, call: str) -> Evidence:
        self.point("engine.evidence")
        return self.left.get((sandbox, call), Unknown())

    def forget(self, sandbox: str, call: str) -> None:
        self.forgotten.append((sandbox, call))

    def release(self, lease_id: str) -> None:
        self.point("engine.release")
        shared = os.path.join(self.directory, lease_id)
        if os.path.isdir(shared):
            os.rmdir(shared)

    def sweep(self, live: AbstractSet[str]) -> tuple[str, ...]:
        for lease_id in os.listdir(self.directory):
            if lease_id not in live:
                self.release(lease_id)
        return ()

    def close(self) -> None:
        for sandbox in self.created:
            sandbox.close()


class FakeSandbox:
    """Implements `terms.ports.Sandbox`."""

    def __init__(
        self, engine: FakeEngine, clock: ManualClock, lease_id: str, digest: str, name: str
    ) -> None:
        self.lease_id = lease_id
        self.name = name
        self.started: list[bytes] = []
        self._engine = engine
        self._clock = clock
        self._digest = digest
        self._dead = EventfdCancel()
        self._changed = threading.Condition()
        self._running = 0

    @property
    def digest(self) -> str:
        return self._digest

    def alive(self) -> bool:
        return self._dead.reason() is None

    def execute(self, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        self._engine.point("sandbox.execute")
        script = self._engine.scripts.get(operation.argv[-1], Script())
        with self._changed:
            if not self.alive():
                raise failure(Code.SANDBOX_UNAVAILABLE, "the sandbox is closed")
            if script.refused is not None:
                raise Failure(script.refused)
            if context.starting is not None:
                context.starting(self.name, str(len(self.started)))
            if script.unread is not None:
                raise Failure(script.unread)
            self.started.append(operation.argv[-1])
            self._running += 1
        try:
            return self._run(script, operation, context)
        finally:
            with self._changed:
                self._running -= 1
                self._changed.notify_all()

    def close(self) -> None:
        self._engine.point("sandbox.close")
        with self._changed:
            if self.alive():
                self._dead.set(End.LOST)
            self._changed.wait_for(lambda: self._running == 0)
        self._dead.close()

    def busy(self) -> bool:
        return False

    def leave(self) -> None:
        """The fake's sandboxes end with their process."""
        self.close()

    def _run(self, script: Script, operation: ExecOperation, context: ExecContext) -> ExecOutcome:
        started = self._clock()
        deadline = started + operation.timeout_ms / 1000
        finished = started + script.takes_s
        stdout = self._captured(1, script.stdout, operation, context)
        stderr = self._captured(2, script.stderr, operation, context)
        cancel, dead = context.cancel.fileno(), self._dead.fileno()
        until, in_budget = min(deadline, finished), True
        while True:
            look = until
            if context.cpu is not None:
                more = context.cpu.more(self._used_ms(script, started))
                if more is None:
                    in_budget = False
                    break
                look = min(until, self._clock() + more / 1000)
            interrupt = self._clock.wait_until(look, cancel, dead)
            if interrupt is not None or self._clock() >= until:
                break
        value: int | None = None
        if not in_budget:
            end = End.BUDGET
        elif interrupt == cancel:
            end = context.cancel.reason() or End.CANCELLED
        elif interrupt == dead:
            end = End.LOST
        elif deadline < finished:
            end = End.DEADLINE
        elif script.lost:
            self._dead.set(End.LOST)
            end = End.LOST
        elif script.signal is not None:
            end, value = End.SIGNALED, script.signal
        else:
            end, value = End.EXITED, script.code
        return ExecOutcome(
            end=end,
            value=value,
            stdout=stdout,
            stderr=stderr,
            wall_ms=round((self._clock() - started) * 1000),
            cpu_ms=self._used_ms(script, started),
            left_running=script.left_running if value is not None and not context.cpu else 0,
            kill_confirmed_ms=0 if end is End.DEADLINE else None,
        )

    def _used_ms(self, script: Script, started: float) -> int:
        passed = self._clock() - started
        return (
            script.cpu_ms
            if passed >= script.takes_s
            else int(script.cpu_ms * passed / script.takes_s)
        )

    def _captured(
        self, number: int, data: bytes, operation: ExecOperation, context: ExecContext
    ) -> Captured:
        capture = operation.capture
        name = {1: "stdout", 2: "stderr"}[number]
        sink = context.artifacts.open(
            context.lease_id,
            name,
            capture.head_bytes + capture.tail_bytes,
            capture.artifact_bytes,
        )
        if data:
            sink.write(data)
            if context.tee is not None:
                context.tee(number, memoryview(data))
        head, rest = data[: capture.head_bytes], data[capture.head_bytes :]
        tail = rest[max(0, len(rest) - capture.tail_bytes) :]
        return Captured(head, tail, len(data), sink.finish())
