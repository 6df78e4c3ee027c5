from __future__ import annotations

import base64
import json
from pathlib import Path

from stockade.engines.oci.filters import Filters, section_of, with_program
from stockade.engines.oci.spec import Json

RULES: Json = {"defaultAction": "SCMP_ACT_ERRNO", "syscalls": [{"names": ["read"]}]}
CONFIG: Json = {"hostname": "x", "linux": {"namespaces": [], "seccomp": RULES}}
PROGRAM = bytes(range(16))


def kept(path: Path, data: bytes) -> str | None:
    filters = Filters()
    section = section_of(CONFIG)
    assert section is not None
    assert filters.known(section) is None
    (path / "seccomp.bpf").write_bytes(data)
    filters.keep(section, path / "seccomp.bpf")
    return filters.known(section)


def test_what_was_compiled_is_known_for_the_very_same_section(tmp_path: Path) -> None:
    filters = Filters()
    (tmp_path / "bpf").write_bytes(PROGRAM)
    section = section_of(CONFIG)
    assert section is not None
    filters.keep(section, tmp_path / "bpf")
    assert base64.b64decode(filters.known(section) or "") == PROGRAM
    other = section_of({"linux": {"seccomp": {"defaultAction": "SCMP_ACT_ERRNO"}}})
    assert other != section
    assert filters.known(other) is None


def test_a_configuration_without_a_filter_gets_none() -> None:
    assert section_of({"linux": {}}) is None
    assert section_of({}) is None
    assert Filters().known(None) is None


def test_only_whole_programs_are_kept(tmp_path: Path) -> None:
    assert kept(tmp_path, PROGRAM) is not None
    for bad in (b"", PROGRAM[:-1], bytes(8 * 4097)):
        assert kept(tmp_path, bad) is None
    filters = Filters()
    filters.keep("x", tmp_path / "absent")
    assert filters.known("x") is None


def test_who_ignores_the_program_finds_a_rule_that_kills() -> None:
    before = json.dumps(CONFIG)
    made = with_program(CONFIG, "QUJD")
    assert made == {
        "hostname": "x",
        "linux": {"namespaces": [], "seccomp": {"defaultAction": "SCMP_ACT_KILL_PROCESS"}},
        "annotations": {"run.oci.seccomp_bpf_data": "QUJD"},
    }
    # The rules are shared by all sandboxes.
    assert json.dumps(CONFIG) == before


def test_other_annotations_stay() -> None:
    made = with_program({"linux": {}, "annotations": {"a": "b"}}, "QUJD")
    assert isinstance(made, dict)
    assert made["annotations"] == {"a": "b", "run.oci.seccomp_bpf_data": "QUJD"}


def test_after_a_failure_nothing_is_given_any_more(tmp_path: Path) -> None:
    filters = Filters()
    (tmp_path / "bpf").write_bytes(PROGRAM)
    filters.keep("section", tmp_path / "bpf")
    filters.distrust()
    assert filters.known("section") is None
    filters.keep("section", tmp_path / "bpf")
    assert filters.known("section") is None
