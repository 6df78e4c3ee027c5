from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.host.cancel import EventfdCancel
from stockade.host.pump import Collector, Pump
from stockade.terms.base import MAX_SECONDS
from stockade.terms.call import Capture
from stockade.terms.outcome import End


@given(st.lists(st.binary(max_size=40), max_size=12), st.integers(0, 20), st.integers(0, 20))
def test_collector_keeps_exactly_the_two_ends(chunks: list[bytes], head: int, tail: int) -> None:
    collector = Collector(1, Capture(head, tail, 0), None, None)
    for chunk in chunks:
        collector.add(memoryview(chunk))
    whole = b"".join(chunks)
    kept = collector.finish()
    assert kept.total_bytes == len(whole)
    assert kept.head == whole[:head]
    rest = whole[head:]
    assert kept.tail == (rest[-tail:] if tail else b"")


@pytest.fixture
def cancel() -> Iterator[EventfdCancel]:
    made = EventfdCancel()
    yield made
    made.close()


class Pipes:
    def __init__(self, cancel: EventfdCancel) -> None:
        self.out_read, self.out_write = os.pipe()
        self.control_read, self.control_write = os.pipe()
        self.out = Collector(1, Capture(16, 16, 0), None, None)
        self.pump = Pump({self.out_read: self.out}, self.control_read, cancel)

    def close(self) -> None:
        self.pump.close()
        for fd in (self.out_write, self.control_read, self.control_write):
            os.close(fd)


@pytest.fixture
def pipes(cancel: EventfdCancel) -> Iterator[Pipes]:
    made = Pipes(cancel)
    yield made
    made.close()


def soon() -> float:
    return time.monotonic() + 20


def test_ends_with_the_report_and_drains_what_is_there(pipes: Pipes) -> None:
    os.write(pipes.out_write, b"last words")
    os.write(pipes.control_write, b"x")
    assert pipes.pump.run(soon(), lambda: True) == "ended"
    pipes.pump.drain(0.05)
    assert pipes.out.finish().head == b"last words"


def test_what_was_killed_is_not_waited_for_whoever_has_its_pipes_open(pipes: Pipes) -> None:
    os.write(pipes.out_write, b"last words")
    began = time.monotonic()
    pipes.pump.drain(600.0, wait=False)
    assert time.monotonic() - began < 300
    assert pipes.out.finish().head == b"last words"


def test_deadline_in_the_past_is_a_deadline(pipes: Pipes) -> None:
    assert pipes.pump.run(time.monotonic() - 1, lambda: True) == "deadline"


def test_a_limit_of_a_hundred_years_is_waited_for(pipes: Pipes) -> None:
    os.write(pipes.control_write, b"x")
    assert pipes.pump.run(time.monotonic() + MAX_SECONDS, lambda: True) == "ended"


def test_cancellation_wakes_the_pump(pipes: Pipes, cancel: EventfdCancel) -> None:
    threading.Thread(target=cancel.set, args=(End.CANCELLED,)).start()
    assert pipes.pump.run(soon(), lambda: True) == "cancelled"
    assert cancel.reason() is End.CANCELLED


def test_first_reason_wins(cancel: EventfdCancel) -> None:
    cancel.set(End.LEASE_EXPIRED)
    cancel.set(End.CANCELLED)
    assert cancel.reason() is End.LEASE_EXPIRED


def test_noise_on_the_control_socket_does_not_end_the_call(pipes: Pipes) -> None:
    said = iter([False, False, True])
    os.write(pipes.control_write, b"xyz")
    assert pipes.pump.run(soon(), lambda: next(said)) == "ended"


def test_memory_stays_bounded_by_the_limits(cancel: EventfdCancel) -> None:
    collector = Collector(1, Capture(1000, 1000, 0), None, None)
    block = memoryview(bytes(256 * 1024))
    for _ in range(400):
        collector.add(block)
    assert collector.total == 400 * 256 * 1024
    assert len(collector._tail) <= 1000
