"""The audit's key and its last checkpoint on the disk."""

from __future__ import annotations

import secrets
import stat
from pathlib import Path

import pytest

from stockade.decide import signatures
from stockade.decide.chain import make_checkpoint
from stockade.ledger.audit_files import (
    CHECKPOINT_FILE,
    KEY_FILE,
    load_checkpoint,
    load_or_create_seed,
    save_checkpoint,
)
from stockade.ledger.keys import load_or_create
from stockade.terms.fault import Code, Failure

SEED = bytes(range(32))
MADE = make_checkpoint(
    3, bytes(32), 5, signatures.public_key(SEED), lambda data: signatures.sign(SEED, data)
)


def test_the_first_start_makes_a_random_key_that_stays(tmp_path: Path) -> None:
    path = tmp_path / KEY_FILE
    made = load_or_create_seed(path, secrets.token_hex)
    assert len(made) == 32
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert load_or_create_seed(path, secrets.token_hex) == made
    assert load_or_create_seed(tmp_path / "other", secrets.token_hex) != made


def test_it_is_no_key_of_tokens(tmp_path: Path) -> None:
    keys = load_or_create(tmp_path / "keys.json", secrets.token_hex)
    seed = load_or_create_seed(tmp_path / KEY_FILE, secrets.token_hex)
    assert seed not in keys.secrets.values()
    with pytest.raises(Failure) as caught:
        load_or_create_seed(tmp_path / "keys.json", secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o666])
def test_a_key_that_others_could_read_is_refused(tmp_path: Path, mode: int) -> None:
    path = tmp_path / KEY_FILE
    load_or_create_seed(path, secrets.token_hex)
    path.chmod(mode)
    with pytest.raises(Failure) as caught:
        load_or_create_seed(path, secrets.token_hex)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert "chmod 0600" in caught.value.fault.message


def test_a_key_behind_a_link_is_refused(tmp_path: Path) -> None:
    load_or_create_seed(tmp_path / "real", secrets.token_hex)
    (tmp_path / KEY_FILE).symlink_to("real")
    with pytest.raises(Failure):
        load_or_create_seed(tmp_path / KEY_FILE, secrets.token_hex)


def test_a_checkpoint_is_read_back_and_none_is_none(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT_FILE
    assert load_checkpoint(path) is None
    save_checkpoint(path, MADE)
    assert load_checkpoint(path) == MADE
    path.write_text("{}")
    with pytest.raises(Failure):
        load_checkpoint(path)
