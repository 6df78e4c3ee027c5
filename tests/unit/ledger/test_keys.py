"""The key file: who may not have it, and that it is replaced as a whole or not at all."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

import pytest

from stockade.ledger.keys import FIRST_KID, load_or_create, save
from stockade.terms.authority import MAX_KEYS, RootKeys
from stockade.terms.fault import Code, Failure
from stockade.testing.faults import Faults, die, raising

OLD = RootKeys("k1", {"k1": bytes(range(32))})
NEW = RootKeys("k2", {**OLD.secrets, "k2": bytes(range(1, 33))})
POINTS = ("keys.written", "keys.synced", "keys.renamed")


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "keys.json"


def read(path: Path) -> RootKeys:
    def never(size: int) -> str:
        raise AssertionError("a key was made")

    return load_or_create(path, never)


def refused(path: Path) -> str:
    with pytest.raises(Failure) as caught:
        read(path)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    return caught.value.fault.message


def test_the_first_start_makes_one_random_key_that_stays(path: Path) -> None:
    made = load_or_create(path, secrets.token_hex)
    assert (made.current, set(made.secrets)) == (FIRST_KID, {FIRST_KID})
    assert stat.S_IMODE(path.stat().st_mode) == 0o600
    assert read(path) == made
    other = load_or_create(path.with_name("other.json"), secrets.token_hex)
    assert other.secrets != made.secrets


def test_what_was_saved_is_read_back_in_its_order(path: Path) -> None:
    save(path, NEW)
    assert read(path) == NEW
    assert list(read(path).secrets) == ["k1", "k2"]
    assert os.listdir(path.parent) == [path.name]


def test_no_repr_shows_a_secret() -> None:
    assert repr(OLD) == "RootKeys(current='k1')"


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o610, 0o602, 0o601])
def test_a_file_that_others_could_use_is_refused(path: Path, mode: int) -> None:
    save(path, OLD)
    path.chmod(mode)
    assert f"{mode:04o}" in refused(path)
    path.chmod(0o600)
    assert read(path) == OLD


def test_a_file_of_another_user_is_refused(path: Path) -> None:
    save(path, OLD)
    os.chown(path, 4242, -1)
    assert "4242" in refused(path)


def test_a_symbolic_link_is_refused(path: Path) -> None:
    save(path.with_name("real.json"), OLD)
    path.symlink_to("real.json")
    refused(path)


def test_what_is_no_regular_file_is_refused(path: Path) -> None:
    os.mkfifo(path, 0o600)
    assert "regular" in refused(path)


@pytest.mark.parametrize(
    "content",
    [
        "",
        "{}",
        '{"version":1,"current":"k1","keys":{}}',
        '{"version":1,"current":"k2","keys":{"k1":"' + "0" * 64 + '"}}',
        '{"version":1,"current":"k1","keys":{"k1":"' + "0" * 62 + '"}}',
        '{"version":2,"current":"k1","keys":{"k1":"' + "0" * 64 + '"}}',
        '{"version":1,"current":"k1","keys":{"k1":"' + "0" * 64 + '"},"more":1}',
    ],
)
def test_a_file_that_is_none_is_refused_and_left_alone(path: Path, content: str) -> None:
    path.write_text(content)
    path.chmod(0o600)
    assert "not a key file" in refused(path)
    assert path.read_text() == content


def test_more_keys_than_can_be_are_not_written(path: Path) -> None:
    save(path, OLD)
    many = {f"k{n}": bytes(32) for n in range(MAX_KEYS + 1)}
    with pytest.raises(ValueError, match="at most"):
        save(path, RootKeys("k0", many))
    assert read(path) == OLD


def killed_at(name: str, work: Callable[[Faults], None]) -> None:
    """Run `work` in a process that ends at the point `name`, as by a kill."""
    child = os.fork()
    if child == 0:
        faults = Faults()
        faults.arm(name, die)
        work(faults)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status), "the point was not passed"


@pytest.mark.parametrize("name", POINTS)
def test_a_kill_between_any_two_steps_leaves_the_old_or_the_new_keys(path: Path, name: str) -> None:
    save(path, OLD)
    killed_at(name, lambda faults: save(path, NEW, faults.point))
    assert read(path) == (NEW if name == "keys.renamed" else OLD)
    # What the killed one left is in nobody's way.
    save(path, NEW)
    assert read(path) == NEW
    assert os.listdir(path.parent) == [path.name]


def test_the_steps_are_those_that_are_tested(path: Path) -> None:
    faults = Faults()
    save(path, OLD, faults.point)
    assert tuple(faults.seen) == POINTS


def test_a_full_disk_leaves_the_old_keys(path: Path) -> None:
    save(path, OLD)
    faults = Faults()
    faults.arm("keys.written", raising(OSError(28, "No space left on device")))
    with pytest.raises(Failure) as caught:
        save(path, NEW, faults.point)
    assert caught.value.fault.code is Code.STORAGE_UNAVAILABLE
    assert read(path) == OLD


def test_a_link_planted_in_the_new_files_place_is_not_followed(path: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("untouched")
    path.with_name("keys.json.new").symlink_to(victim)
    save(path, OLD)
    assert victim.read_text() == "untouched"
    assert read(path) == OLD
