"""Arguments: what is put right, what is refused, and with which words."""

from __future__ import annotations

import math
from typing import Any

import pytest

from stockade.terms.call import EditOperation, ExecOperation
from stockade.terms.fault import Code, Failure, Fault, Status
from stockade.terms.outcome import End
from stockade.terms.result import Warn
from stockade.tools import catalog
from stockade.tools.definition import AnyTool, CallLimits
from stockade.tools.shape import shape_result
from tests.unit.tools.support import BASH, EDIT, GREP, LIMITS, RUN, VIEW, ended, frame


def refused(tool: AnyTool, arguments: object) -> Fault:
    with pytest.raises(Failure) as caught:
        catalog.parse_arguments(tool, arguments)
    fault = caught.value.fault
    assert "pydantic" not in fault.message
    assert "Traceback" not in fault.message
    assert len(fault.message) < 500
    return fault


@pytest.mark.parametrize(
    "value",
    [60, 0, -1, 1e12, None, "5_000", "5000.0", " 5000 ", math.nan, True, "٥٠٠٠", "+5000", "", [5000],
     300_001, 10**400, "9" * 5000, 5000.0],
)  # fmt: skip
def test_b07_a_timeout_that_is_no_whole_number_in_range_is_refused(value: object) -> None:
    fault = refused(BASH, {"command": ":", "timeout_ms": value})
    assert fault.code is Code.INVALID_ARGUMENT
    assert fault.details["field"] == "timeout_ms"
    assert "1000 to 300000" in fault.message


def test_b07_digits_in_a_string_are_coerced_with_a_warning() -> None:
    arguments, coerced = catalog.parse_arguments(BASH, {"command": ":", "timeout_ms": "5000"})
    assert arguments.timeout_ms == 5000
    assert coerced == ("timeout_ms",)
    shaped = BASH.shape(arguments, ended(End.EXITED, 0))
    result = shape_result(shaped, frame(BASH, coerced=coerced), None, 5000)
    assert [w.code for w in result.warnings] == [Warn.COERCED]


def test_b07_a_default_exists_and_the_applied_limit_is_reported() -> None:
    arguments, coerced = catalog.parse_arguments(BASH, {"command": ":"})
    assert coerced == ()
    operation = BASH.operation(arguments, CallLimits(wall_limit_ms=7000, artifact_bytes=0))
    assert isinstance(operation, ExecOperation)
    assert operation.timeout_ms == 7000
    outcome = ended(End.EXITED, 0)
    shaped = BASH.shape(arguments, outcome)
    result = shape_result(shaped, frame(BASH), outcome, operation.timeout_ms)
    assert result.usage is not None
    assert result.usage.wall_limit_ms == 7000
    assert [(w.code, "7000" in w.message) for w in result.warnings] == [(Warn.CLAMPED, True)]


def test_flags_are_coerced_only_from_the_two_json_words() -> None:
    base = {"path": "a", "old_str": "x", "new_str": "y"}
    arguments, coerced = catalog.parse_arguments(EDIT, {**base, "allow_multiple": "true"})
    assert arguments.allow_multiple is True
    assert coerced == ("allow_multiple",)
    for value in ("True", "yes", "1", 1, 0, None, ""):
        fault = refused(EDIT, {**base, "allow_multiple": value})
        assert fault.details["field"] == "allow_multiple"


def test_unknown_fields_are_refused_by_name_and_the_valid_ones_listed() -> None:
    fault = refused(VIEW, {"path": "a", "ofset": 3, "limits": 1})
    assert fault.code is Code.UNKNOWN_FIELD
    assert fault.details == {"unknown": ("ofset", "limits"), "valid": ("path", "offset", "limit")}


def test_an_unknown_field_name_is_shown_short_and_without_control_characters() -> None:
    fault = refused(VIEW, {"path": "a", "\x1b[31m" + "x" * 10_000: 1})
    assert "\x1b" not in fault.message


def test_missing_fields_are_named() -> None:
    fault = refused(EDIT, {"path": "a"})
    assert fault.code is Code.MISSING_FIELD
    assert fault.details["missing"] == ("old_str", "new_str")


@pytest.mark.parametrize("value", [None, [], "x", 3])
def test_arguments_that_are_no_object_are_refused(value: object) -> None:
    assert refused(BASH, value).code is Code.INVALID_ARGUMENT


@pytest.mark.parametrize(
    ("tool", "arguments", "field"),
    [
        (BASH, {"command": ""}, "command"),
        (BASH, {"command": "a\0b"}, "command"),
        (BASH, {"command": 5}, "command"),
        (BASH, {"command": "\ud800"}, "command"),
        (VIEW, {"path": ""}, "path"),
        (VIEW, {"path": "a\0"}, "path"),
        (VIEW, {"path": "a" * 5000}, "path"),
        (VIEW, {"path": "a\\b"}, "path"),
        (VIEW, {"path": "a", "offset": 0}, "offset"),
        (VIEW, {"path": "a", "limit": 501}, "limit"),
        (EDIT, {"path": "a", "old_str": "", "new_str": "x"}, "old_str"),
        (EDIT, {"path": "a", "old_str": "x", "new_str": "y", "expected_version": "1"},
         "expected_version"),
        (GREP, {"path": "a", "pattern": ""}, "pattern"),
        (GREP, {"path": "a", "pattern": "x" * 513}, "pattern"),
        (GREP, {"path": "a", "pattern": "x", "glob": "y" * 257}, "glob"),
        (RUN, {"argv": []}, "argv"),
        (RUN, {"argv": ["a", 5]}, "argv.1"),
        (RUN, {"argv": ["a", "b\0"]}, "argv.1"),
        (RUN, {"argv": "ls"}, "argv"),
    ],
)  # fmt: skip
def test_a_bad_value_is_an_invalid_argument_that_names_its_field(
    tool: AnyTool, arguments: dict[str, Any], field: str
) -> None:
    fault = refused(tool, arguments)
    assert fault.code is Code.INVALID_ARGUMENT
    assert fault.status is Status.INVALID
    assert fault.details["field"] == field
    assert field in fault.message


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"path": ""}, "path: the path is empty"),
        (
            {"path": "a\\b"},
            r"path: a backslash in a path must be written \x5c, another byte as \xNN",
        ),
        ({"path": "a", "limit": 0}, "limit must be from 1 to 500, not 0"),
    ],
)
def test_a_reason_is_a_sentence(arguments: dict[str, Any], message: str) -> None:
    assert refused(VIEW, arguments).message == message


def test_a_reason_about_several_fields_names_none() -> None:
    fault = refused(EDIT, {"path": "a", "old_str": "x", "new_str": "x"})
    assert (fault.code, fault.details) == (Code.NO_CHANGE, {})
    assert fault.message.startswith("old_str and new_str are equal")


def test_b22_a_command_above_its_bound_is_too_large_with_a_way_out() -> None:
    catalog.parse_arguments(BASH, {"command": "é" * 8192})
    fault = refused(BASH, {"command": "x" * 8193})
    assert fault.code is Code.ARGUMENT_TOO_LARGE
    assert "file" in fault.message


@pytest.mark.parametrize(("size", "fits"), [(131_071, True), (131_072, False), (3 << 20, False)])
def test_b22_one_argument_has_at_most_131071_bytes(size: int, fits: bool) -> None:
    if fits:
        arguments, _ = catalog.parse_arguments(RUN, {"argv": ["true", "x" * size]})
        operation = RUN.operation(arguments, LIMITS)
        assert isinstance(operation, ExecOperation)
        assert len(operation.argv[1]) == size
    else:
        fault = refused(RUN, {"argv": ["true", "x" * size]})
        assert fault.code is Code.ARGUMENT_TOO_LARGE
        assert "131071" in fault.message
        assert fault.details["field"] == "argv"


def test_b22_bytes_count_not_characters() -> None:
    assert refused(RUN, {"argv": ["true", "é" * 70_000]}).code is Code.ARGUMENT_TOO_LARGE


@pytest.mark.parametrize("program", ["/" + "a/" * 2048 + "a", "./" + "é" * 2048])
def test_a_program_has_no_longer_path_than_there_is(program: str) -> None:
    fault = refused(RUN, {"argv": [program]})
    assert fault.code is Code.INVALID_ARGUMENT
    assert len(fault.message) < 100


def test_b22_all_arguments_have_at_most_2_mib() -> None:
    catalog.parse_arguments(RUN, {"argv": ["x" * 131_000] * 15})
    assert refused(RUN, {"argv": ["x" * 131_000] * 17}).code is Code.ARGUMENT_TOO_LARGE


def test_b22_edits_of_200_kib_each_are_taken_and_1_mib_is_the_bound() -> None:
    arguments, _ = catalog.parse_arguments(
        EDIT, {"path": "a", "old_str": "x" * 204_800, "new_str": "y" * 204_800}
    )
    operation = EDIT.operation(arguments, LIMITS)
    assert isinstance(operation, EditOperation)
    assert len(operation.old) == len(operation.new) == 204_800
    fault = refused(EDIT, {"path": "a", "old_str": "é" * 524_289, "new_str": ""})
    assert fault.code is Code.ARGUMENT_TOO_LARGE


def test_an_edit_that_changes_nothing_is_named_as_such() -> None:
    assert refused(EDIT, {"path": "a", "old_str": "x", "new_str": "x"}).code is Code.NO_CHANGE


def test_an_unknown_tool_lists_the_valid_ones() -> None:
    with pytest.raises(Failure) as caught:
        catalog.get("bash")
    assert caught.value.fault.code is Code.UNKNOWN_TOOL
    assert caught.value.fault.details["valid"] == tuple(catalog.TOOLS)


def test_argument_models_are_closed_frozen_and_bounded() -> None:
    for tool in catalog.TOOLS.values():
        schema = tool.input_schema
        assert schema["additionalProperties"] is False
        assert tool.arguments.model_config["frozen"] is True
        properties = schema["properties"]
        assert isinstance(properties, dict)
        for name, part in properties.items():
            assert isinstance(part, dict)
            kinds = part.get("anyOf", [part])
            assert isinstance(kinds, list)
            for kind in kinds:
                assert isinstance(kind, dict)
                if kind.get("type") == "string" and name != "expected_version":
                    assert "maxLength" in kind, (tool.name, name)
                if kind.get("type") == "integer":
                    assert "maximum" in kind, (tool.name, name)
