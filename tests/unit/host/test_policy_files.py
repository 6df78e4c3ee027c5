"""Loading the policy directory: all of it or nothing, and the file at fault is named."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from stockade.host.data import data_directory
from stockade.host.policy_files import load_policy
from stockade.terms.fault import Code, Failure


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    return Path(shutil.copytree(data_directory("policy"), tmp_path / "policy"))


def _message(directory: Path) -> str:
    with pytest.raises(Failure) as caught:
        load_policy(directory)
    assert caught.value.fault.code is Code.INTERNAL
    return caught.value.fault.message


def test_the_shipped_directory_loads(copy: Path) -> None:
    assert load_policy(copy) == load_policy()


def test_a_bad_file_is_named(copy: Path) -> None:
    file = copy / "grants" / "agent.json"
    file.write_bytes(file.read_bytes().replace(b'"read"', b'"reads"', 1))
    assert "grants/agent.json: scope.read" in _message(copy)


@pytest.mark.parametrize(
    ("place", "value", "said"),
    [
        ("tools", ["bash"], "tools: there is no tool bash"),
        (
            "checks",
            [{"kind": "pattern", "tool": "bash", "argument": "command", "pattern": "x"}],
            "checks: there is no tool bash",
        ),
        (
            "checks",
            [
                {
                    "kind": "range",
                    "tool": "file_view",
                    "argument": "size",
                    "minimum": 0,
                    "maximum": 9,
                }
            ],
            "checks: file_view has no argument size; it has path, offset, limit",
        ),
        (
            "approve",
            [{"tool": "edit", "argument": None, "pattern": None}],
            "approve: there is no tool edit",
        ),
    ],
)
@pytest.mark.parametrize("file", ["grants/agent.json", "ceilings/small.json"])
def test_a_misspelled_tool_or_argument_is_refused(
    copy: Path, file: str, place: str, value: object, said: str
) -> None:
    data = json.loads((copy / file).read_text())
    data[place]["value"] = value
    (copy / file).write_text(json.dumps(data))
    assert f"{file}: {said}" in _message(copy)


def test_a_price_of_no_tool_is_refused(copy: Path) -> None:
    file = copy / "ceilings" / "default.json"
    data = json.loads(file.read_text())
    data["prices"]["call"]["value"] = {"bash_execute": 5}
    file.write_text(json.dumps(data))
    assert load_policy(copy).ceiling("default").price_table().call("bash_execute") == 5
    data["prices"]["call"]["value"] = {"bash_exec": 5}
    file.write_text(json.dumps(data))
    assert "ceilings/default.json: prices.call: there is no tool bash_exec" in _message(copy)


def test_a_name_other_than_the_file_s_is_refused(copy: Path) -> None:
    (copy / "grants" / "agent.json").rename(copy / "grants" / "root.json")
    assert "grants/root.json: the name inside is 'agent'" in _message(copy)


def test_a_stray_file_is_refused(copy: Path) -> None:
    (copy / "grants" / "agent.json~").write_text("{}")
    assert "grants/agent.json~" in _message(copy)


def test_a_missing_part_is_refused(copy: Path) -> None:
    shutil.rmtree(copy / "seccomp")
    assert "policy/seccomp" in _message(copy)
    (copy / "seccomp").mkdir()
    assert "unknown seccomp list" in _message(copy)


def test_a_directory_in_place_of_a_file_is_refused(copy: Path) -> None:
    (copy / "grants" / "dir.json").mkdir()
    assert "grants/dir.json" in _message(copy)


def test_an_endless_file_is_not_read_to_its_end(copy: Path) -> None:
    (copy / "grants" / "agent.json").unlink()
    (copy / "grants" / "agent.json").symlink_to("/dev/zero")
    assert "at most 1048576" in _message(copy)
