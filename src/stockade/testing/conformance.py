"""What every engine must do, as one list of checks that run against a `World`.

A check is a function of the world; it raises AssertionError. `COMMANDS` are the commands that the
checks run, each with what it prints and how it ends: a real engine executes them with a shell, the
fake is given them as its script, so both are held to the same text.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Final, Protocol

from stockade.terms.call import Capture, ExecOperation
from stockade.terms.claim import Unknown
from stockade.terms.fault import Code, Failure, failure
from stockade.terms.grant import Tier
from stockade.terms.outcome import Captured, End, ExecOutcome
from stockade.terms.patience import CancelSignal, Patience
from stockade.terms.plan import Kind, SandboxPlan
from stockade.terms.ports import (
    ArtifactStore,
    CpuMeter,
    Engine,
    ExecContext,
    LeaseTree,
    Sandbox,
    Tee,
)

SHELLS: Final = (b"/bin/bash", b"/bin/sh")
KEPT: Final = 16 * 1024


@dataclass(frozen=True, slots=True)
class Command:
    """A shell line and what it does. `seconds` is how long it takes, and `cpu_ms` what it uses of
    processor time, when nothing ends it."""

    line: str
    stdout: bytes = b""
    stderr: bytes = b""
    code: int = 0
    signal: int | None = None
    seconds: float = 0.0
    left_running: int = 0
    cpu_ms: int = 0


HELLO: Final = Command("echo hello; echo there >&2", b"hello\n", b"there\n")
EXIT_3: Final = Command("exit 3", code=3)
KILLED: Final = Command("kill -9 $$", signal=9)
FOREVER: Final = Command("echo begun; sleep 3600", b"begun\n", seconds=3600.0)
LONG: Final = Command("head -c 100000 /dev/zero | tr '\\0' a; echo END", b"a" * 100_000 + b"END\n")
SURVIVOR: Final = Command("sleep 3600 >/dev/null 2>&1 & echo ready", b"ready\n", left_running=1)
BUSY: Final = Command(
    "echo begun; while :; do :; done", b"begun\n", seconds=3600.0, cpu_ms=3_600_000
)
COMMANDS: Final = (HELLO, EXIT_3, KILLED, FOREVER, LONG, SURVIVOR, BUSY)


class Allowance:
    """Implements `terms.ports.CpuMeter`: lets a command use `allowed_ms`, and looks often."""

    def __init__(self, allowed_ms: int) -> None:
        self._allowed_ms = allowed_ms
        self.looks = 0

    def more(self, used_ms: int) -> int | None:
        self.looks += 1
        return 5 if used_ms < self._allowed_ms else None


class World(Protocol):
    """One engine with a lease to make sandboxes in."""

    engine: Engine
    artifacts: ArtifactStore

    def lease(self) -> LeaseTree: ...
    def plan(self, kind: Kind) -> tuple[SandboxPlan, str]: ...
    def cancel(self) -> CancelSignal: ...
    def patience(self) -> Patience:
        """With what makes a sandbox: a minute."""

    def let_pass(self, seconds: float) -> None:
        """Let the engine's time go on by so much once a command runs; real time does by itself."""

    def left(self, lease_id: str) -> list[str]:
        """Everything on the host that is the lease's: groups, processes, directories."""


def shell(command: Command, timeout_ms: int = 30_000, artifact_bytes: int = 0) -> ExecOperation:
    return ExecOperation(
        kind=Kind.COMMAND,
        paths=SHELLS,
        argv=(b"sh", b"-c", command.line.encode()),
        env=(),
        cwd=b"/workspace",
        timeout_ms=timeout_ms,
        capture=Capture(KEPT, KEPT, artifact_bytes),
    )


def context(
    world: World,
    lease_id: str,
    cancel: CancelSignal | None = None,
    tee: Tee | None = None,
    cpu: CpuMeter | None = None,
) -> ExecContext:
    return ExecContext(lease_id, cancel or world.cancel(), world.artifacts, tee, cpu=cpu)


def _open(world: World) -> tuple[LeaseTree, Sandbox]:
    tree = world.lease()
    plan, digest = world.plan(Kind.COMMAND)
    return tree, world.engine.create(tree, plan, digest, world.patience())


def _close(world: World, tree: LeaseTree, sandbox: Sandbox) -> None:
    sandbox.close()
    world.engine.release(tree.lease_id)


def _text(captured: Captured) -> bytes:
    return captured.head + captured.tail


def _run(world: World, command: Command, timeout_ms: int = 30_000) -> ExecOutcome:
    tree, sandbox = _open(world)
    try:
        return sandbox.execute(shell(command, timeout_ms), context(world, tree.lease_id))
    finally:
        _close(world, tree, sandbox)


def refusal(act: Callable[[], object]) -> Code | None:
    """The code that `act` is refused with, None when it is not."""
    try:
        act()
    except Failure as error:
        return error.fault.code
    return None


def names_itself(world: World) -> None:
    said = world.engine.describe()
    assert said.name
    assert said.version
    assert said.tier in set(Tier)


def sandbox_carries_the_digest(world: World) -> None:
    tree, sandbox = _open(world)
    try:
        assert sandbox.digest == world.plan(Kind.COMMAND)[1]
        assert sandbox.alive()
    finally:
        _close(world, tree, sandbox)


def both_streams_and_the_code_come_back(world: World) -> None:
    outcome = _run(world, HELLO)
    assert (outcome.end, outcome.value) == (End.EXITED, 0)
    assert _text(outcome.stdout) == HELLO.stdout
    assert _text(outcome.stderr) == HELLO.stderr
    assert outcome.stdout.total_bytes == len(HELLO.stdout)


def exit_code_is_the_programs(world: World) -> None:
    outcome = _run(world, EXIT_3)
    assert (outcome.end, outcome.value) == (End.EXITED, 3)


def own_signal_is_no_exit_code(world: World) -> None:
    outcome = _run(world, KILLED)
    assert (outcome.end, outcome.value) == (End.SIGNALED, 9)


def deadline_ends_the_command(world: World) -> None:
    clock = threading.Thread(target=world.let_pass, args=(0.4,))
    clock.start()
    outcome = _run(world, FOREVER, timeout_ms=300)
    clock.join()
    assert outcome.end is End.DEADLINE
    assert outcome.value is None
    assert _text(outcome.stdout) == FOREVER.stdout


def cancellation_ends_the_command(world: World) -> None:
    tree, sandbox = _open(world)
    cancel = world.cancel()

    def as_soon_as_it_speaks(number: int, data: memoryview) -> None:
        cancel.set(End.CANCELLED)

    try:
        outcome = sandbox.execute(
            shell(FOREVER), context(world, tree.lease_id, cancel, as_soon_as_it_speaks)
        )
        assert outcome.end is End.CANCELLED
        again = sandbox.execute(shell(HELLO), context(world, tree.lease_id))
        assert again.end is End.EXITED
    finally:
        _close(world, tree, sandbox)


def budget_ends_the_command(world: World) -> None:
    tree, sandbox = _open(world)
    clock = threading.Thread(target=world.let_pass, args=(0.3,))
    clock.start()
    try:
        outcome = sandbox.execute(shell(BUSY), context(world, tree.lease_id, cpu=Allowance(200)))
        assert (outcome.end, outcome.value) == (End.BUDGET, None)
        assert _text(outcome.stdout) == BUSY.stdout
        assert outcome.cpu_ms is not None
        assert outcome.cpu_ms >= 200
        again = sandbox.execute(shell(HELLO), context(world, tree.lease_id))
        assert again.end is End.EXITED
    finally:
        clock.join()
        _close(world, tree, sandbox)


def budget_that_suffices_changes_nothing(world: World) -> None:
    tree, sandbox = _open(world)
    allowance = Allowance(60_000)
    try:
        outcome = sandbox.execute(shell(HELLO), context(world, tree.lease_id, cpu=allowance))
        assert (outcome.end, outcome.value) == (End.EXITED, 0)
        assert _text(outcome.stdout) == HELLO.stdout
        assert allowance.looks
    finally:
        _close(world, tree, sandbox)


def nothing_outlives_a_call_with_a_budget(world: World) -> None:
    tree, sandbox = _open(world)
    try:
        outcome = sandbox.execute(
            shell(SURVIVOR), context(world, tree.lease_id, cpu=Allowance(60_000))
        )
        assert (outcome.end, outcome.left_running) == (End.EXITED, 0)
    finally:
        _close(world, tree, sandbox)


def long_output_keeps_both_ends(world: World) -> None:
    outcome = _run(world, LONG)
    assert outcome.stdout.total_bytes == len(LONG.stdout)
    assert outcome.stdout.head == LONG.stdout[:KEPT]
    assert outcome.stdout.tail == LONG.stdout[-KEPT:]


def survivors_are_counted(world: World) -> None:
    outcome = _run(world, SURVIVOR)
    assert outcome.end is End.EXITED
    assert outcome.left_running == SURVIVOR.left_running


def a_command_is_announced_before_it_starts(world: World) -> None:
    tree, sandbox = _open(world)
    names: list[tuple[str, str]] = []

    def refuse(sandbox: str, call: str) -> None:
        raise failure(Code.STORAGE_UNAVAILABLE, "nothing is to run")

    def note(sandbox: str, call: str) -> None:
        names.append((sandbox, call))

    plain = context(world, tree.lease_id)
    try:
        refused = replace(plain, starting=refuse)
        assert refusal(lambda: sandbox.execute(shell(HELLO), refused)) is Code.STORAGE_UNAVAILABLE
        for _ in range(2):
            outcome = sandbox.execute(shell(HELLO), replace(plain, starting=note))
            assert outcome.end is End.EXITED
        assert len(set(names)) == 2
    finally:
        _close(world, tree, sandbox)


def nothing_is_known_of_a_command_that_never_was(world: World) -> None:
    assert world.engine.evidence("sb_00000000", "1") == Unknown()


def closed_sandbox_refuses(world: World) -> None:
    tree, sandbox = _open(world)
    sandbox.close()
    sandbox.close()
    assert not sandbox.alive()
    try:
        refused = refusal(lambda: sandbox.execute(shell(HELLO), context(world, tree.lease_id)))
    finally:
        world.engine.release(tree.lease_id)
    assert refused is Code.SANDBOX_UNAVAILABLE


def stronger_tier_is_refused(world: World) -> None:
    plan, _ = world.plan(Kind.COMMAND)
    stronger = plan.model_copy(update={"tier_min": Tier.GVISOR})
    assert refusal(lambda: world.engine.check(stronger)) is Code.UNENFORCEABLE


def nothing_is_left(world: World) -> None:
    tree, sandbox = _open(world)
    sandbox.execute(shell(SURVIVOR), context(world, tree.lease_id))
    assert world.left(tree.lease_id)
    _close(world, tree, sandbox)
    assert world.left(tree.lease_id) == []


def sweep_spares_live_leases(world: World) -> None:
    tree, sandbox = _open(world)
    try:
        assert world.engine.sweep(frozenset({tree.lease_id})) == ()
        outcome = sandbox.execute(shell(HELLO), context(world, tree.lease_id))
        assert outcome.end is End.EXITED
    finally:
        _close(world, tree, sandbox)


def two_leases_work_in_one_tree(world: World) -> None:
    tree, sandbox = _open(world)
    plan, digest = world.plan(Kind.COMMAND)
    other = replace(tree, lease_id="ls_c0c0c0c0c0c0c0c0")
    try:
        second = world.engine.create(other, plan, digest, world.patience())
        try:
            assert second.execute(shell(HELLO), context(world, other.lease_id)).end is End.EXITED
        finally:
            _close(world, other, second)
        # The end of one leaves the other's sandbox alone.
        assert sandbox.execute(shell(HELLO), context(world, tree.lease_id)).end is End.EXITED
    finally:
        _close(world, tree, sandbox)
    assert world.left(other.lease_id) == []


CHECKS: Final[tuple[Callable[[World], None], ...]] = (
    names_itself,
    sandbox_carries_the_digest,
    both_streams_and_the_code_come_back,
    exit_code_is_the_programs,
    own_signal_is_no_exit_code,
    deadline_ends_the_command,
    cancellation_ends_the_command,
    budget_ends_the_command,
    budget_that_suffices_changes_nothing,
    nothing_outlives_a_call_with_a_budget,
    long_output_keeps_both_ends,
    survivors_are_counted,
    a_command_is_announced_before_it_starts,
    nothing_is_known_of_a_command_that_never_was,
    closed_sandbox_refuses,
    stronger_tier_is_refused,
    nothing_is_left,
    sweep_spares_live_leases,
    two_leases_work_in_one_tree,
)
