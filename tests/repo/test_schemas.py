"""The published schemas are fresh, valid, and compatible with the last released ones."""

from __future__ import annotations

import copy
import importlib.util
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from stockade.terms.fault import Code, Fault
from stockade.tools import catalog
from stockade.tools.shape import fault_result
from tests.unit.tools.support import BASH, frame

HERE = Path(__file__).parents[2] / "docs" / "schema"
RELEASED = HERE / "released" / "v1"
POLICY = Path(__file__).parents[2] / "policy"
Schema = dict[str, Any]


def rendered() -> dict[str, str]:
    spec = importlib.util.spec_from_file_location("make_schemas", HERE / "make_schemas.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    out: dict[str, str] = module.rendered()
    return out


def policy_files() -> list[Path]:
    return sorted(POLICY.glob("*/*.json"))


def load(path: Path) -> Schema:
    value: Schema = json.loads(path.read_text(encoding="utf-8"))
    return value


def breaks(old: Schema, new: Schema, *, sent: bool) -> list[str]:
    """What a client of `old` would stumble over. `sent` says that clients send these values, else
    they receive them. Compatible: a value that clients receive may get new nullable keys and new
    codes, never a new status; one that they send may get new optional keys and wider bounds."""
    found: list[str] = []
    _compare(old, new, old, new, "", sent, found)
    return found


def _resolve(schema: Schema, root: Schema) -> Schema:
    while "$ref" in schema:
        target: Schema = root
        for part in schema["$ref"].removeprefix("#/").split("/"):
            target = target[part]
        schema = target
    return schema


def _compare(
    old: Schema,
    new: Schema,
    old_root: Schema,
    new_root: Schema,
    at: str,
    sent: bool,
    out: list[str],
) -> None:
    old, new = _resolve(old, old_root), _resolve(new, new_root)
    if old.get("type") != new.get("type"):
        out.append(f"{at}: type {old.get('type')} became {new.get('type')}")
        return
    _compare_values(old, new, at, sent, out)
    before, after = old.get("properties", {}), new.get("properties", {})
    for name in before:
        if name not in after:
            out.append(f"{at}/{name}: removed")
        else:
            _compare(before[name], after[name], old_root, new_root, f"{at}/{name}", sent, out)
    if sent:
        added = set(new.get("required", [])) - set(old.get("required", []))
        out += [f"{at}/{name}: became required" for name in sorted(added)]
    else:
        lost = set(old.get("required", [])) - set(new.get("required", []))
        out += [f"{at}/{name}: no longer always present" for name in sorted(lost)]
        for name in sorted(set(after) - set(before)):
            if not _nullable(_resolve(after[name], new_root), new_root):
                out.append(f"{at}/{name}: new and not nullable")
    for key in ("items", "additionalProperties"):
        if isinstance(old.get(key), dict) and isinstance(new.get(key), dict):
            _compare(old[key], new[key], old_root, new_root, f"{at}/{key}", sent, out)
    _compare_choices(old, new, old_root, new_root, at, sent, out)


def _compare_values(old: Schema, new: Schema, at: str, sent: bool, out: list[str]) -> None:
    lost = set(old.get("enum", [])) - set(new.get("enum", []))
    if lost:
        out.append(f"{at}: values removed: {sorted(lost)}")
    if old.get("title") == "Status" and old.get("enum") != new.get("enum"):
        out.append(f"{at}: the statuses changed")
    if old.get("const") != new.get("const"):
        out.append(f"{at}: the constant changed")
    if sent:
        for key, wider in (("maximum", 1), ("maxLength", 1), ("maxItems", 1), ("minimum", -1),
                           ("minLength", -1), ("minItems", -1)):  # fmt: skip
            if key in new and (key not in old or (new[key] - old[key]) * wider < 0):
                out.append(f"{at}: {key} became narrower")
        if new.get("pattern") != old.get("pattern"):
            out.append(f"{at}: the pattern changed")


def _compare_choices(
    old: Schema,
    new: Schema,
    old_root: Schema,
    new_root: Schema,
    at: str,
    sent: bool,
    out: list[str],
) -> None:
    for key in ("anyOf", "oneOf"):
        before = [_resolve(item, old_root) for item in old.get(key, [])]
        after = [_resolve(item, new_root) for item in new.get(key, [])]
        labels = {_label(item): item for item in after}
        for item in before:
            if _label(item) not in labels:
                out.append(f"{at}: the choice {_label(item)} was removed")
            else:
                same = labels[_label(item)]
                _compare(item, same, old_root, new_root, f"{at}/{_label(item)}", sent, out)


def _label(schema: Schema) -> str:
    name = str(schema.get("title") or schema.get("type") or sorted(schema))
    return f"{name} of {_label(schema['items'])}" if "items" in schema else name


def _nullable(schema: Schema, root: Schema) -> bool:
    choices = [_resolve(item, root) for item in schema.get("anyOf", [])]
    return any(item.get("type") == "null" for item in choices)


def released() -> list[str]:
    return sorted(path.name for path in RELEASED.glob("*.json"))


def test_the_committed_schemas_are_fresh() -> None:
    committed = {path.name: path.read_text(encoding="utf-8") for path in HERE.glob("*.json")}
    assert committed == rendered(), "run: make schemas"


@pytest.mark.parametrize("name", released())
def test_a_schema_is_compatible_with_the_released_one(name: str) -> None:
    assert (HERE / name).exists(), "a released schema was removed"
    sent = name not in ("result.json", "codes.json")
    assert breaks(load(RELEASED / name), load(HERE / name), sent=sent) == []


def test_something_was_released() -> None:
    assert {"result.json", "codes.json", "call-request.json"} <= set(released())


@pytest.mark.parametrize("name", sorted(path.name for path in HERE.glob("*.json")))
def test_a_schema_is_valid_json_schema(name: str) -> None:
    jsonschema.Draft202012Validator.check_schema(load(HERE / name))


@pytest.mark.parametrize("code", list(Code))
def test_results_validate_against_the_published_schema(code: Code) -> None:
    wire = json.loads(fault_result(Fault(code, "m"), frame(BASH)).to_json())
    validator = jsonschema.Draft202012Validator(load(HERE / "result.json"))
    validator.validate(wire)
    del wire["audit"]
    assert not validator.is_valid(wire), "every key is always present"


@pytest.mark.parametrize("name", list(catalog.TOOLS))
def test_a_tools_schema_is_closed(name: str) -> None:
    schema = load(HERE / f"tool.{name}.json")
    assert schema["additionalProperties"] is False
    assert {"effect", "targets", "policy", "description"} <= set(schema["x-stockade"])


@pytest.mark.parametrize("file", policy_files(), ids=lambda f: f"{f.parent.name}/{f.stem}")
def test_every_policy_file_validates_against_its_schema(file: Path) -> None:
    schema = load(HERE / f"policy.{file.parent.name}.json")
    validator = jsonschema.Draft202012Validator(schema)
    content = load(file)
    validator.validate(content)
    # It is closed and asks for a reason: what it refuses the program refuses as well.
    assert not validator.is_valid({**content, "surplus": 1})
    assert not validator.is_valid({key: content[key] for key in content if key != "reason"})


def test_the_policy_has_schemas_for_each_kind_of_file() -> None:
    kinds = {path.name for path in POLICY.iterdir()}
    assert kinds == {path.name.split(".")[1] for path in HERE.glob("policy.*.json")}


def test_a_rule_without_a_reason_is_no_rule() -> None:
    content = load(POLICY / "ceilings" / "default.json")
    validator = jsonschema.Draft202012Validator(load(HERE / "policy.ceilings.json"))
    del content["per_lease"]["pids"]["reason"]
    assert not validator.is_valid(content)


def _drop_key(schema: Schema) -> None:
    del schema["properties"]["exit"]


def _drop_required(schema: Schema) -> None:
    schema["required"].remove("audit")


def _add_status(schema: Schema) -> None:
    schema["$defs"]["Status"]["enum"].append("paused")


def _drop_code(schema: Schema) -> None:
    schema["$defs"]["Code"]["enum"].remove("no_match")


def _add_solid_key(schema: Schema) -> None:
    schema["properties"]["extra"] = {"type": "string"}


def _drop_data(schema: Schema) -> None:
    for choice in schema["properties"]["data"]["anyOf"]:
        if "oneOf" in choice:
            choice["oneOf"].pop()


def _retype(schema: Schema) -> None:
    schema["$defs"]["Stream"]["properties"]["total_bytes"]["type"] = "string"


@pytest.mark.parametrize(
    "change",
    [_drop_key, _drop_required, _add_status, _drop_code, _add_solid_key, _drop_data, _retype],
)
def test_an_incompatible_result_is_found(change: Callable[[Schema], None]) -> None:
    old = load(RELEASED / "result.json")
    new = copy.deepcopy(old)
    change(new)
    assert breaks(old, new, sent=False)


def test_a_new_code_and_a_new_nullable_key_are_compatible() -> None:
    old = load(RELEASED / "result.json")
    new = copy.deepcopy(old)
    new["$defs"]["Code"]["enum"].append("new_code")
    new["properties"]["extra"] = {"anyOf": [{"type": "string"}, {"type": "null"}]}
    assert breaks(old, new, sent=False) == []


def _narrow(schema: Schema) -> None:
    schema["properties"]["timeout_ms"]["maximum"] = 60_000


def _require(schema: Schema) -> None:
    schema["required"].append("timeout_ms")


def _rename(schema: Schema) -> None:
    schema["properties"]["cmd"] = schema["properties"].pop("command")


@pytest.mark.parametrize("change", [_narrow, _require, _rename])
def test_an_incompatible_argument_is_found(change: Callable[[Schema], None]) -> None:
    old = load(RELEASED / "tool.bash_execute.json")
    new = copy.deepcopy(old)
    change(new)
    assert breaks(old, new, sent=True)
