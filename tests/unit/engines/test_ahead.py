from __future__ import annotations

import os
import secrets
from collections.abc import Iterator
from concurrent.futures import Executor, ThreadPoolExecutor
from pathlib import Path
from threading import Event, Semaphore

import pytest

from stockade.engines.oci.ahead import Ahead
from stockade.host import cgroup, netns
from stockade.host.data import native_program
from stockade.host.keeper import Keeper
from stockade.host.mounts import MountHolder
from stockade.terms.fault import Code, failure

WAIT_S = 60.0


@pytest.fixture
def background() -> Iterator[Executor]:
    with ThreadPoolExecutor(1) as made:
        yield made


def namespace(fd: int) -> str:
    return os.readlink(f"/proc/self/fd/{fd}")


def settled(background: Executor) -> None:
    """Everything that was submitted before has been done: there is one worker."""
    background.submit(lambda: None).result(WAIT_S)


def test_each_namespace_is_given_once(
    background: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    made: list[int] = []
    create = netns.create

    def counted() -> int:
        made.append(create())
        return made[-1]

    monkeypatch.setattr(netns, "create", counted)
    ahead = Ahead(background, None)
    ahead.expect()
    ahead.expect()
    settled(background)
    assert len(made) == 1
    first, second = ahead.network(), ahead.network()
    try:
        assert [first, second] == made
        assert len({namespace(first), namespace(second), os.readlink("/proc/self/ns/net")}) == 3
    finally:
        os.close(first)
        os.close(second)
        ahead.close()


def test_a_busy_background_holds_nobody_up(background: Executor) -> None:
    ahead, over = Ahead(background, None), Event()
    background.submit(over.wait, WAIT_S)
    ahead.expect()
    try:
        os.close(ahead.network())
        assert not over.is_set()
    finally:
        over.set()
        ahead.close()


def test_what_failed_ahead_is_done_again(
    background: Executor, monkeypatch: pytest.MonkeyPatch
) -> None:
    create, tries = netns.create, []

    def second_time() -> int:
        tries.append(1)
        if len(tries) == 1:
            raise failure(Code.ENGINE_UNAVAILABLE, "no memory")
        return create()

    monkeypatch.setattr(netns, "create", second_time)
    ahead = Ahead(background, None)
    ahead.expect()
    settled(background)
    os.close(ahead.network())
    assert len(tries) == 2
    ahead.close()


def test_what_nobody_asked_for_is_closed(background: Executor) -> None:
    ahead = Ahead(background, None)
    before = len(os.listdir("/proc/self/fd"))
    ahead.expect()
    settled(background)
    assert len(os.listdir("/proc/self/fd")) == before + 1
    ahead.close()
    assert len(os.listdir("/proc/self/fd")) == before
    ahead.expect()
    settled(background)
    assert len(os.listdir("/proc/self/fd")) == before


class Counted(Keeper):
    """Says when it was written to its group."""

    def __init__(self) -> None:
        unified = cgroup.of_this_host().unified
        super().__init__(native_program("keep"), unified, secrets.token_hex(4))
        self.joined = Semaphore(0)

    def rejoin(self) -> None:
        super().rejoin()
        self.joined.release()


def test_moves_are_kept_quick_for_a_while_and_no_longer(
    background: Executor, tmp_path: Path
) -> None:
    keeper = Counted()
    holder = MountHolder(tmp_path / "mounts", keeper)
    ahead = Ahead(background, keeper)
    try:
        for _ in range(2):
            ahead.expect()
            for _ in range(3):
                assert keeper.joined.acquire(timeout=WAIT_S)
            settled(background)  # it ends by itself: the worker is free again
    finally:
        ahead.close()
        holder.close()


def test_without_its_keeper_nothing_is_tried_again_and_again(
    background: Executor, tmp_path: Path
) -> None:
    keeper = Counted()
    holder = MountHolder(tmp_path / "mounts", keeper)
    ahead = Ahead(background, keeper)
    holder.close()  # the group is gone
    ahead.expect()
    settled(background)
    assert not keeper.joined.acquire(blocking=False)
    os.close(ahead.network())
    ahead.close()
