"""Ctrl-C during a call: the call is cancelled and its end awaited, then the command ends.

The call runs in a thread of its own, because an exception must not be raised in the middle of it:
embedded, that thread is the runtime itself. The main thread only waits, and is what signals
interrupt.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable
from types import FrameType
from typing import Final, Generic, NoReturn, TypeVar

from stockade.edge.cli.output import explain, say
from stockade.edge.client.lease import Lease
from stockade.edge.client.results import StockadeError

T = TypeVar("T")

# Ending a tree takes milliseconds; a daemon that hangs must not hold the terminal for ever.
_AWAIT_END_S: Final = 10.0


class Interrupted(Exception):
    """A signal ended the command; `status` is the exit status for it."""

    def __init__(self, number: int) -> None:
        super().__init__(f"interrupted by signal {number}")
        self.status = 128 + number


class _Outcome(Generic[T]):
    def __init__(self) -> None:
        self.values: list[T] = []
        self.error: BaseException | None = None


def interruptible(work: Callable[[], T], cancel: Callable[[], None]) -> T:
    """`work()`, or Interrupted after `cancel()` on SIGINT or SIGTERM. Main thread only."""
    outcome: _Outcome[T] = _Outcome()
    done = threading.Event()

    def target() -> None:
        try:
            outcome.values.append(work())
        except BaseException as error:  # carried to the thread that waits
            outcome.error = error
        finally:
            done.set()

    worker = threading.Thread(target=target, name="stockade-call", daemon=True)
    before = signal.signal(signal.SIGINT, _raise), signal.signal(signal.SIGTERM, _raise)
    try:
        worker.start()
        done.wait()
    except Interrupted:
        cancel()
        done.wait(_AWAIT_END_S)
        raise
    finally:
        signal.signal(signal.SIGINT, before[0])
        signal.signal(signal.SIGTERM, before[1])
    if outcome.error is not None:
        raise outcome.error
    return outcome.values[0]


def end_call(lease: Lease, call_id: str, turn: int | None = None, what: str = "call") -> None:
    """Cancel a call, or say why it may go on."""
    try:
        lease.cancel(call_id, turn)
    except StockadeError as error:
        say(f"the {what} may still run: {explain(error.error)}")


def _raise(number: int, _frame: FrameType | None) -> NoReturn:
    raise Interrupted(number)
