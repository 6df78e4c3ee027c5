"""The fake engine keeps the promises of the port: deadline, cancellation, bounds, confirmed end."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from stockade.host.cancel import EventfdCancel
from stockade.terms.call import Capture, ExecOperation
from stockade.terms.fault import Code, Failure, Fault
from stockade.terms.outcome import End, ExecOutcome
from stockade.terms.plan import Kind
from stockade.terms.ports import ExecContext
from stockade.testing.clock import ManualClock
from stockade.testing.fake_engine import FakeEngine, FakeSandbox, Script
from stockade.testing.house import House, open_house


@pytest.fixture
def house(tmp_path: Path) -> Iterator[House]:
    opened = open_house(str(tmp_path))
    yield opened
    opened.close()


@pytest.fixture
def cancel() -> Iterator[EventfdCancel]:
    made = EventfdCancel()
    yield made
    made.close()


LEASE = "ls_0000000000000001"


@pytest.fixture
def sandbox(house: House) -> FakeSandbox:
    return FakeSandbox(house.engine, house.clock, LEASE, "d", "s")


def operation(command: bytes, timeout_ms: int = 1000) -> ExecOperation:
    return ExecOperation(
        kind=Kind.COMMAND,
        paths=(b"/bin/sh",),
        argv=(b"sh", b"-c", command),
        env=(),
        cwd=b"/workspace",
        timeout_ms=timeout_ms,
        capture=Capture(head_bytes=4, tail_bytes=4, artifact_bytes=100),
    )


def context(house: House, cancel: EventfdCancel) -> ExecContext:
    return ExecContext(lease_id=LEASE, cancel=cancel, artifacts=house.artifacts)


def when_waiting(
    clock: ManualClock, run: Callable[[], ExecOutcome], act: Callable[[], None]
) -> ExecOutcome:
    """Start `run`, `act` once it waits, and give its outcome."""
    outcomes: list[ExecOutcome] = []
    thread = threading.Thread(target=lambda: outcomes.append(run()))
    thread.start()
    while not clock.waiting():
        thread.join(0.001)
    act()
    thread.join(10)
    return outcomes[0]


def test_output_is_bounded_and_the_rest_is_an_artifact(
    house: House, sandbox: FakeSandbox, cancel: EventfdCancel
) -> None:
    house.engine.scripts[b"go"] = Script(stdout=b"0123456789ab", stderr=b"e", code=3)
    outcome = sandbox.execute(operation(b"go"), context(house, cancel))
    assert (outcome.end, outcome.value) == (End.EXITED, 3)
    assert (outcome.stdout.head, outcome.stdout.tail) == (b"0123", b"89ab")
    assert outcome.stdout.artifact is not None
    kept = house.artifacts.read(LEASE, outcome.stdout.artifact.id, 0, 99)
    assert kept == b"0123456789ab"
    assert (outcome.stderr.head, outcome.stderr.artifact) == (b"e", None)


def test_an_unwritten_command_exits_0_and_a_signal_is_a_signal(
    house: House, sandbox: FakeSandbox, cancel: EventfdCancel
) -> None:
    house.engine.scripts[b"die"] = Script(signal=9)
    plain = sandbox.execute(operation(b":"), context(house, cancel))
    assert (plain.end, plain.value) == (End.EXITED, 0)
    died = sandbox.execute(operation(b"die"), context(house, cancel))
    assert (died.end, died.value) == (End.SIGNALED, 9)


def test_deadline_cancellation_and_close_end_a_call(
    house: House, sandbox: FakeSandbox, cancel: EventfdCancel
) -> None:
    house.engine.scripts[b"long"] = Script(takes_s=60)

    def run() -> ExecOutcome:
        return sandbox.execute(operation(b"long", 5000), context(house, cancel))

    late = when_waiting(house.clock, run, lambda: house.clock.advance(5))
    assert (late.end, late.value, late.wall_ms) == (End.DEADLINE, None, 5000)
    lost = when_waiting(house.clock, run, sandbox.close)
    assert (lost.end, lost.value) == (End.LOST, None)
    assert not sandbox.alive()
    with pytest.raises(Failure) as caught:
        run()
    assert caught.value.fault.code is Code.SANDBOX_UNAVAILABLE
    other = FakeSandbox(house.engine, house.clock, LEASE, "e", "s2")
    ended = when_waiting(
        house.clock,
        lambda: other.execute(operation(b"long"), context(house, cancel)),
        lambda: cancel.set(End.LEASE_EXPIRED),
    )
    assert (ended.end, ended.value) == (End.LEASE_EXPIRED, None)
    other.close()


def test_a_lost_sandbox_and_a_refused_start(
    house: House, sandbox: FakeSandbox, cancel: EventfdCancel
) -> None:
    fault = Fault(Code.SANDBOX_UNAVAILABLE, "no spare")
    house.engine.scripts[b"no"] = Script(refused=fault)
    house.engine.scripts[b"boom"] = Script(lost=True)
    with pytest.raises(Failure) as caught:
        sandbox.execute(operation(b"no"), context(house, cancel))
    assert caught.value.fault is fault
    assert sandbox.alive()
    assert sandbox.execute(operation(b"boom"), context(house, cancel)).end is End.LOST
    assert not sandbox.alive()


def test_the_sweep_asks_after_it_has_listed(tmp_path: Path) -> None:
    engine = FakeEngine(str(tmp_path / "engine"), ManualClock())
    (tmp_path / "engine" / LEASE).mkdir()
    engine.sweep(frozenset({LEASE}))
    assert (tmp_path / "engine" / LEASE).is_dir()
    engine.sweep(frozenset())
    assert not (tmp_path / "engine" / LEASE).exists()
