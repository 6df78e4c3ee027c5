from __future__ import annotations

from threading import Barrier, Event, Thread

from stockade.host.file_locks import FileLocks


def test_one_path_is_held_by_one_thread_and_the_table_is_empty_afterwards() -> None:
    locks = FileLocks()
    start = Barrier(8)
    inside = 0
    most = 0

    def work() -> None:
        nonlocal inside, most
        start.wait()
        for _ in range(200):
            with locks.hold(b"/workspace/f"):
                inside += 1
                most = max(most, inside)
                inside -= 1

    threads = [Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert most == 1
    assert len(locks) == 0


def test_another_path_does_not_wait() -> None:
    locks = FileLocks()
    done = Event()

    def work() -> None:
        with locks.hold(b"/workspace/b"):
            done.set()

    with locks.hold(b"/workspace/a"):
        thread = Thread(target=work)
        thread.start()
        assert done.wait(10)
        thread.join()


def test_an_error_in_the_block_frees_the_lock() -> None:
    locks = FileLocks()
    try:
        with locks.hold(b"/workspace/a"):
            raise KeyError
    except KeyError:
        pass
    with locks.hold(b"/workspace/a"):
        assert len(locks) == 1
    assert len(locks) == 0
