from __future__ import annotations

import secrets
from pathlib import Path

import pytest

from stockade.host import instance
from stockade.terms.fault import Code, Failure


def test_id_stays_and_the_lock_is_exclusive(tmp_path: Path) -> None:
    state = tmp_path / "state"
    first = instance.acquire(state, secrets.token_hex)
    assert instance.alive(state)
    with pytest.raises(Failure) as caught:
        instance.acquire(state, secrets.token_hex)
    assert caught.value.fault.code is Code.BUSY
    first.release()
    assert not instance.alive(state)
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
    assert not instance.alive(tmp_path / "c")


def test_unusable_directory_is_a_failure(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(Failure) as caught:
        instance.acquire(tmp_path / "file" / "state", secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
