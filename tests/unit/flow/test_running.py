from __future__ import annotations

import os
import threading

import pytest

from stockade.flow.running import Running
from stockade.host.cancel import EventfdCancel
from stockade.terms.fault import Code
from stockade.terms.outcome import End
from stockade.testing.house import code_of


@pytest.fixture
def running() -> Running:
    return Running(EventfdCancel)


def enter(running: Running, request: str = "rq", parallel: int = 2) -> None:
    with running.enter("ls", request, "call", parallel):
        pass


def test_parallel_limit_is_busy_and_frees_its_places(running: Running) -> None:
    with running.enter("ls", "a", None, 2), running.enter("ls", "b", None, 2):
        assert code_of(lambda: enter(running)) is Code.BUSY
        with running.enter("other", "c", None, 1):
            pass
    enter(running)


def test_none_at_all_is_no_matter_of_waiting(running: Running) -> None:
    assert code_of(lambda: enter(running, parallel=0)) is Code.RIGHT_NOT_GRANTED


def test_cancel_reaches_by_call_id_and_request_id_within_the_lease(running: Running) -> None:
    with running.enter("ls", "a", "one", 8) as first, running.enter("ls", "b", "two", 8) as second:
        assert running.cancel("other", "one") == 0
        assert running.cancel("ls", "one") == 1
        assert running.cancel("ls", "b") == 1
        assert (first.reason(), second.reason()) == (End.CANCELLED, End.CANCELLED)


def test_cancel_with_a_turn_reaches_the_call_of_that_turn_only(running: Running) -> None:
    with (
        running.enter("ls", "a", "1", 8, 1) as first,
        running.enter("ls", "b", "1", 8, 2) as second,
    ):
        assert running.cancel("ls", "1", 3) == 0
        assert running.cancel("ls", "1", 2) == 1
        assert (first.reason(), second.reason()) == (None, End.CANCELLED)
        assert running.cancel("ls", "1") == 2


def test_closed_ends_calls_and_lets_none_in(running: Running) -> None:
    inside, released = threading.Event(), threading.Event()

    def call() -> None:
        with running.enter("ls", "a", None, 8) as cancel:
            inside.set()
            while cancel.reason() is None:
                pass
        released.set()

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(10)
    with running.closed("ls", End.LEASE_EXPIRED, 10):
        assert released.wait(10)
        assert code_of(lambda: enter(running)) is Code.BUSY
    enter(running)
    thread.join()


def test_closed_ends_no_call_of_another_lease(running: Running) -> None:
    with running.enter("other", "a", None, 8) as elsewhere:
        with running.closed("ls", End.CANCELLED, 10):
            assert elsewhere.reason() is None
        assert elsewhere.reason() is None


def test_a_lease_is_closed_until_the_last_of_two_has_opened_it(running: Running) -> None:
    with running.closed("ls", End.CANCELLED, 10):
        with running.idle(["ls"]):
            assert code_of(lambda: enter(running)) is Code.BUSY
        assert code_of(lambda: enter(running)) is Code.BUSY
    enter(running)


class Unheard(EventfdCancel):
    """Its call can't be told."""

    def set(self, reason: End) -> None:
        raise OSError(f"no way to say {reason}")


def test_a_lease_that_could_not_be_closed_is_open_again() -> None:
    running = Running(Unheard)

    def close() -> None:
        with running.closed("ls", End.CANCELLED, 10):
            raise AssertionError("entered")

    with running.enter("ls", "a", None, 8), pytest.raises(OSError, match="no way"):
        close()
    enter(running)


def test_the_signal_of_a_call_that_left_holds_no_descriptor(running: Running) -> None:
    with running.enter("ls", "a", None, 8) as signal:
        descriptor = signal.fileno()
        os.fstat(descriptor)
    with pytest.raises(OSError, match="Bad file"):
        os.fstat(descriptor)


def test_closed_gives_up_on_a_call_that_does_not_end(running: Running) -> None:
    def close() -> None:
        with running.closed("ls", End.CANCELLED, 0.01):
            raise AssertionError("entered")

    with running.enter("ls", "a", None, 8):
        assert code_of(close) is Code.BUSY
    enter(running)


def test_drain_refuses_new_calls_and_cancels_what_stays(running: Running) -> None:
    inside = threading.Event()
    reasons: list[End | None] = []

    def call() -> None:
        with running.enter("ls", "a", None, 8) as cancel:
            inside.set()
            while cancel.reason() is None:
                pass
            reasons.append(cancel.reason())

    thread = threading.Thread(target=call)
    thread.start()
    assert inside.wait(10)
    assert running.drain(0.5)
    assert running.drain(0)
    assert code_of(lambda: enter(running)) is Code.SHUTTING_DOWN
    thread.join()
    assert reasons == [End.CANCELLED]


def test_drain_says_that_a_call_did_not_end(running: Running) -> None:
    with running.enter("ls", "a", None, 8) as cancel:
        assert not running.drain(0.01)
        assert cancel.reason() is End.CANCELLED
    assert running.drain(0.01)
