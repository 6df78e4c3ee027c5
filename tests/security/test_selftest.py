"""`stockade selftest`: every attempt is held and has a control that works; a wall that is gone is seen."""

from __future__ import annotations

import ast
import re
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
from pydantic import JsonValue

from stockade.command import Native
from stockade.edge.cli.main import main
from stockade.edge.selftest import Row, SelftestReport, Verdict
from stockade.host.data import native_program
from stockade.selftest import catalogue, house
from stockade.selftest.catalogue import ATTEMPTS, chosen
from stockade.selftest.run import judged
from stockade.selftest.scene import Facts
from tests.worlds import OciWorld

ROOT = Path(__file__).parents[2]
SRC = ROOT / "src" / "stockade"
COMMAND = "from stockade.command import main; main()"
TIMEOUT_S = 300
NAMED = re.compile(r"`selftest:([a-z0-9_]+)`")
GROUPS = {"files", "processes", "kernel", "network", "other leases", "daemon", "resources"}


@pytest.fixture(scope="module")
def done() -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, "-c", COMMAND, "selftest", "--json"],
        capture_output=True,
        text=True,
        timeout=TIMEOUT_S,
        check=False,
    )


@pytest.fixture(scope="module")
def rows(done: subprocess.CompletedProcess[str]) -> dict[str, Row]:
    report = SelftestReport.model_validate_json(done.stdout)
    return {row.name: row for row in report.attempts}


@pytest.mark.parametrize("name", [attempt.name for attempt in chosen(None)])
def test_the_attempt_is_held_and_works_without_the_defence(rows: dict[str, Row], name: str) -> None:
    row = rows[name]
    assert row.result is Verdict.HELD, row.evidence
    assert "control won: " in row.evidence
    assert row.attack
    assert row.defence
    assert row.control


def test_at_least_eighty_over_all_groups_and_the_command_exits_with_0(
    done: subprocess.CompletedProcess[str], rows: dict[str, Row]
) -> None:
    assert done.returncode == 0, done.stderr
    assert done.stderr == ""
    assert len(rows) >= 80
    assert {row.group for row in rows.values()} == GROUPS
    assert min(sum(row.group == group for row in rows.values()) for group in GROUPS) >= 10


def broken_by_nothing(config: JsonValue, facts: Facts) -> JsonValue:
    raise ValueError("this scene can't be made")


class Broken(Native):
    """A catalogue with one wall gone, one control that keeps it, and one scene that can't be."""

    def selftest(self, only: str | None) -> SelftestReport:
        sound = {attempt.name: attempt for attempt in ATTEMPTS}
        gone = sound["read_only_write"]
        kept = sound["read_only_create"]
        untried = sound["noexec_tmp"]
        return SelftestReport(
            attempts=tuple(
                judged(
                    [
                        replace(gone, scene=replace(gone.control, name="gone")),
                        replace(kept, control=replace(kept.scene, name="kept")),
                        replace(
                            untried,
                            scene=replace(untried.scene, name="none", amend=broken_by_nothing),
                        ),
                        sound["read_only_chmod"],
                    ]
                )
            )
        )


def test_a_broken_defence_a_control_that_fails_and_an_untried_attempt_are_seen(
    capfd: pytest.CaptureFixture[str],
) -> None:
    assert main(Broken(), ["selftest", "--json"]) == 1
    report = SelftestReport.model_validate_json(capfd.readouterr().out)
    assert {row.name: row.result for row in report.attempts} == {
        "read_only_write": Verdict.BROKEN,
        "read_only_create": Verdict.NO_CONTROL,
        "noexec_tmp": Verdict.COULD_NOT_TRY,
        "read_only_chmod": Verdict.HELD,
    }


def test_a_denied_path_that_is_not_denied_is_seen_by_its_attempts(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """The fault is in what is attacked, not in the catalogue: the launcher gets no denial."""
    monkeypatch.setattr("stockade.engines.oci.staging.tree_mounts", lambda plan: list(plan.trees))
    attempts = [item for item in ATTEMPTS if item.name in ("deny_absent", "deny_remove")]
    assert [row.result for row in judged(attempts)] == [Verdict.BROKEN, Verdict.BROKEN]


def test_nothing_is_left_behind() -> None:
    with house.opened() as made:
        states = [Path(made.facts[name]) for name in ("state", "daemon_state")]
        instances = [(state / "lock").read_text() for state in states]
        bait = Path(f"/proc/{made.facts['bait_pid']}")
        assert bait.exists()
        assert groups(instances) != []
    assert [state for state in states if state.exists()] == []
    assert groups(instances) == []
    assert not bait.exists()


def groups(instances: list[str]) -> list[Path]:
    return [
        group
        for instance in instances
        for pattern in (f"*/stockade-{instance}", f"stockade-{instance}")
        for group in Path("/sys/fs/cgroup").glob(pattern)
    ]


def test_only_the_selftest_can_take_a_wall_away() -> None:
    """`amend` is no setting: nothing else names it, and nobody but the command imports the package."""
    named, importing = set(), set()
    for file in SRC.rglob("*.py"):
        path = file.relative_to(SRC)
        for node in ast.walk(ast.parse(file.read_text("utf-8"))):
            if "amend" in names(node):
                named.add(path.parts[0] if path.parts[0] == "selftest" else str(path))
            if any(name.startswith("stockade.selftest") for name in modules(node)):
                importing.add(path.parts[0])
    assert named == {"selftest", "engines/oci/launching.py"}
    assert importing == {"selftest", "command.py"}


def names(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.keyword(arg=str(name)) | ast.Attribute(attr=name) | ast.Name(id=name):
            yield name
        case ast.arg(arg=name) | ast.Constant(value=str(name)):
            yield name


def modules(node: ast.AST) -> Iterator[str]:
    match node:
        case ast.ImportFrom(module=str(module), names=aliases):
            yield from (f"{module}.{alias.name}" for alias in aliases)
        case ast.Import(names=aliases):
            yield from (alias.name for alias in aliases)


def test_no_other_sandbox_has_programs_of_the_selftest(oci_world: OciWorld) -> None:
    given = {path.name for path in (oci_world.state / "toolbox").rglob("*")}
    assert "guest" in given
    assert given & {"attack", "guest-control"} == set()
    # Positive control: the names are right.
    assert native_program("attack").is_file()
    assert native_program("guest-control").is_file()


def test_every_attempt_that_a_document_names_exists() -> None:
    known = {attempt.name for attempt in ATTEMPTS}
    pages = [*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md")]
    named = {name for page in pages for name in NAMED.findall(page.read_text("utf-8"))}
    assert named - known == set()
    threats = set(NAMED.findall((ROOT / "docs" / "threat-model.md").read_text("utf-8")))
    assert {item.group for item in catalogue.ATTEMPTS if item.name in threats} == GROUPS
