"""The manual clock moves when told, and wakes those who wait for it."""

from __future__ import annotations

import os
import threading

import pytest

from stockade.testing.clock import ManualClock


def test_a_waiter_wakes_when_its_time_has_come_and_not_before() -> None:
    clock = ManualClock(100.0)
    woken = threading.Event()

    def wait() -> None:
        assert clock.wait_until(110.0) is None
        woken.set()

    thread = threading.Thread(target=wait)
    thread.start()
    while not clock.waiting():
        thread.join(0.001)
    clock.advance(9.5)
    assert clock.waiting() == 1
    assert not woken.is_set()
    clock.advance(0.5)
    thread.join(10)
    assert woken.is_set()
    assert clock() == 110.0
    assert clock.waiting() == 0


def test_a_time_that_has_passed_is_no_wait() -> None:
    clock = ManualClock(100.0)
    assert clock.wait_until(100.0) is None


def test_an_interrupt_ends_the_wait_and_is_named() -> None:
    clock = ManualClock()
    quiet, loud = os.eventfd(0), os.eventfd(1)
    try:
        assert clock.wait_until(float("inf"), quiet, loud) == loud
    finally:
        os.close(quiet)
        os.close(loud)


def test_time_does_not_go_back() -> None:
    with pytest.raises(ValueError):
        ManualClock().advance(-1)
