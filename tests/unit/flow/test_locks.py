"""Operation locks exclude by key and leave nothing behind."""

from __future__ import annotations

import threading

from stockade.flow.locks import OperationLocks

KEY = ("t", "x", "main")


def test_one_holder_at_a_time_per_key() -> None:
    locks = OperationLocks()
    order: list[str] = []
    started = threading.Event()

    def second() -> None:
        started.set()
        with locks.hold(KEY):
            order.append("second")

    thread = threading.Thread(target=second)
    with locks.hold(KEY) as held:
        assert held
        with locks.hold(("t", "x", "other")) as other:
            assert other
        thread.start()
        assert started.wait(10)
        with locks.hold(KEY, wait=False) as again:
            assert not again
        order.append("first")
    thread.join(10)
    assert order == ["first", "second"]
    assert locks._locks == {}


def test_a_lock_is_free_again_after_an_exception() -> None:
    locks = OperationLocks()
    try:
        with locks.hold(KEY):
            raise KeyError
    except KeyError:
        with locks.hold(KEY, wait=False) as held:
            assert held
    assert locks._locks == {}
