"""The daemon keeps to one processor; what it runs for others does not (host/interpreter.py)."""

from __future__ import annotations

import gc
import mmap
import os
import threading
from pathlib import Path

import pytest

from stockade.host import interpreter
from tests.daemons import Daemon, daemon, output


def test_threads_that_carry_calls_out_share_one_processor_and_commands_have_all() -> None:
    allowed = os.sched_getaffinity(0)
    with daemon() as server, server.connect() as stockade, stockade.lease() as lease:
        for _ in range(8):  # with a process of the first moment, and with ones that waited
            assert int(output(lease, "nproc")) == len(allowed)
        # The lease's share is one of all processors, though a bound thread has set it.
        assert max(_quotas(server)) == 100 * min(2000, 1000 * len(allowed) - 500)
        one = {max(allowed)}
        threads = [int(task.name) for task in Path(f"/proc/{server.pid}/task").iterdir()]
        bound = [thread for thread in threads if os.sched_getaffinity(thread) == one]
        free = [thread for thread in threads if os.sched_getaffinity(thread) == allowed]
        assert server.pid in bound
        # The main thread, the acceptor, one connection, one that makes processes.
        assert len(bound) >= 4
        # Those of before: of the mounts, of the sweeper.
        assert len(bound) + len(free) == len(threads)


def _quotas(server: Daemon) -> list[int]:
    """What its groups may use of each period of 100 ms, in microseconds."""
    files = [group / name for group in server.groups() for name in ("cpu.cfs_quota_us", "cpu.max")]
    words = [file.read_text().split()[0] for file in files if file.exists()]
    return [int(word) for word in words if word.isdecimal()]


def test_threads_of_a_bound_one_are_bound_to_the_same() -> None:
    allowed = os.sched_getaffinity(0)
    found: list[set[int]] = []

    def inner() -> None:
        interpreter.stay()
        found.append(os.sched_getaffinity(0))

    def outer() -> None:
        inner()
        thread = threading.Thread(target=inner)
        thread.start()
        thread.join()

    thread = threading.Thread(target=outer)
    thread.start()
    thread.join()
    assert found[0] == found[1] == {max(allowed)}
    assert os.sched_getaffinity(0) == allowed


def test_a_file_that_is_mapped_may_have_any_name(tmp_path: Path) -> None:
    name = os.fsencode(tmp_path) + b"/\xff \xfe"
    with open(name, "w+b") as file:
        file.truncate(mmap.PAGESIZE)
        with mmap.mmap(file.fileno(), 0, flags=mmap.MAP_PRIVATE):
            interpreter._collapse()


def test_it_serves_where_the_kernel_shows_no_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(*_: object, **__: object) -> None:
        raise FileNotFoundError

    monkeypatch.setattr(interpreter, "open", missing, raising=False)
    monkeypatch.setattr(interpreter, "stay", lambda: None)
    monkeypatch.setattr(gc, "freeze", lambda: None)
    interpreter.settle()
