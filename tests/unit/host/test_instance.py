from __future__ import annotations

import os
import secrets
from pathlib import Path

import pytest

from stockade.host import instance
from stockade.terms.fault import Code, Failure


def test_id_stays_and_the_lock_is_exclusive(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = instance.acquire(state, secrets.token_hex)
    with pytest.raises(Failure) as caught:
        instance.acquire(state, secrets.token_hex)
    assert caught.value.fault.code is Code.BUSY
    first.release()
    second = instance.acquire(state, secrets.token_hex)
    assert second.id == first.id
    second.release()


def test_other_directory_is_another_instance(tmp_path: Path) -> None:
    ids = set()
    for name in ("a", "b"):
        made = instance.acquire(tmp_path / name, secrets.token_hex)
        ids.add(made.id)
        made.release()
    assert len(ids) == 2


def test_unusable_directory_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as caught:
        instance.acquire(tmp_path / "file" / "state", secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


def test_another_users_directory_is_refused(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    os.chown(state, 61_000, -1)
    with pytest.raises(Failure, match="belongs to user 61000") as caught:
        instance.acquire(state, secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert list(state.iterdir()) == []


def test_a_lock_that_is_a_link_is_refused(tmp_path: Path) -> None:
    target = tmp_path / "target"
    state = tmp_path / "state"
    state.mkdir()
    (state / "lock").symlink_to(target)
    with pytest.raises(Failure) as caught:
        instance.acquire(state, secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert not target.exists()
