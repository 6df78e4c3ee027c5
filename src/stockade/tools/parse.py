"""A JSON object to a tool's argument model, or one clear fault.

Models are strict. Two kinds of benign variation are put right and reported as coerced: a whole
number written as a string (`-?[0-9]+` and nothing else, CASES B07) for an integer, and "true" or
"false" for a flag. What is left wrong gives one fault, in this order: unknown fields, missing ones,
then the first value that is refused. A fault names the field and what is valid, and shows at most
60 characters of the value.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any, Final, TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, failure
from stockade.tools.arguments import NO_CHANGE, TOO_LARGE
from stockade.tools.definition import Tool
from stockade.tools.terminal import visible

M = TypeVar("M", bound=Model)

# Sixteen digits hold every integer of I-JSON; longer ones are refused, not converted.
_INTEGER: Final = re.compile(r"-?[0-9]{1,16}")
_FLAGS: Final = {"true": True, "false": False}
_MAX_SHOWN_CHARS: Final = 60
_MAX_NAMED: Final = 10


def parse_arguments(
    tool: Tool[M, Any],  # what the tool makes of an outcome does not matter here
    arguments: object,
) -> tuple[M, tuple[str, ...]]:
    """The checked arguments and the names of the coerced ones. Raises Failure (`invalid`)."""
    return parse_model(tool.arguments, arguments, f"arguments of {tool.name}")


def parse_model(model: type[M], value: object, what: str) -> tuple[M, tuple[str, ...]]:
    """`value` as `model`; `what` names it in messages. Raises Failure (`invalid`)."""
    if not isinstance(value, Mapping):
        raise failure(Code.INVALID_ARGUMENT, f"the {what} must be one JSON object", field="")
    fields = dict(value)
    coerced = _coerce(model, fields)
    try:
        return model.model_validate(fields), coerced
    except ValidationError as error:
        raise _failure(model, error.errors(include_url=False), what) from None


def _coerce(model: type[Model], fields: dict[str, object]) -> tuple[str, ...]:
    """Put benign variation right in `fields`; gives the names of what was changed."""
    coerced: list[str] = []
    for name, info in model.model_fields.items():
        value = fields.get(name)
        if not isinstance(value, str):
            continue
        if info.annotation is int and _INTEGER.fullmatch(value):
            fields[name] = int(value)
        elif info.annotation is bool and value in _FLAGS:
            fields[name] = _FLAGS[value]
        else:
            continue
        coerced.append(name)
    return tuple(coerced)


def _failure(model: type[Model], errors: list[ErrorDetails], what: str) -> Failure:
    valid = tuple(model.model_fields)
    unknown = [_shown_name(e["loc"]) for e in errors if e["type"] == "extra_forbidden"]
    if unknown:
        return failure(
            Code.UNKNOWN_FIELD,
            f"the {what} have no field {', '.join(unknown[:_MAX_NAMED])}; "
            f"valid are {', '.join(valid)}",
            unknown=tuple(unknown[:_MAX_NAMED]),
            valid=valid,
        )
    missing = [_shown_name(e["loc"]) for e in errors if e["type"] == "missing"]
    if missing:
        return failure(
            Code.MISSING_FIELD,
            f"the {what} need {', '.join(missing)}",
            missing=tuple(missing),
            valid=valid,
        )
    first = errors[0]
    field = _shown_name(first["loc"])
    code = {TOO_LARGE: Code.ARGUMENT_TOO_LARGE, NO_CHANGE: Code.NO_CHANGE}.get(
        first["type"], Code.INVALID_ARGUMENT
    )
    reason = _reason(first, model)
    if not field:
        return failure(code, reason)  # about several fields at once
    # A ValueError's text is a sentence of its own.
    between = ": " if first["type"] == "value_error" else " "
    return failure(code, f"{field}{between}{reason}", field=field)


def _reason(error: ErrorDetails, model: type[Model]) -> str:
    context = error.get("ctx", {})
    match error["type"]:
        case "greater_than_equal" | "less_than_equal":
            return f"must be {_range(error, model)}, not {_shown(error['input'])}"
        case "int_type" | "int_parsing" | "int_from_float" | "int_parsing_size":
            return f"must be a whole number {_range(error, model)}, not {_shown(error['input'])}"
        case "string_type":
            return f"must be a string, not {_shown(error['input'])}"
        case "string_unicode":
            return "must be valid Unicode, without lone surrogates"
        case "bool_type" | "bool_parsing":
            return f"must be true or false, not {_shown(error['input'])}"
        # A bound beside a validator of ours is pydantic's general one, whatever the type.
        case "string_too_short" | "too_short" if isinstance(error["input"], str):
            return f"must have at least {context['min_length']} character(s)"
        case "string_too_long" | "too_long" if isinstance(error["input"], str):
            return f"must have at most {context['max_length']} characters"
        case "string_pattern_mismatch":
            return f"must match {context['pattern']}, not {_shown(error['input'])}"
        case "too_short" | "too_long":
            return "has too few items" if error["type"] == "too_short" else "has too many items"
        case "value_error":
            return str(context["error"])
        case kind if kind in (TOO_LARGE, NO_CHANGE):
            return error["msg"]
        case _:
            return f"is not valid: {_shown(error['input'])}"


def _range(error: ErrorDetails, model: type[Model]) -> str:
    name = error["loc"][0] if error["loc"] else ""
    bounds = model.model_json_schema()["properties"].get(name, {})
    return f"from {bounds.get('minimum', 'any')} to {bounds.get('maximum', 'any')}"


def _shown(value: object) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "true" if value else "false"
    text = repr(value) if isinstance(value, str | int | float) else type(value).__name__
    return visible(text if len(text) <= _MAX_SHOWN_CHARS else text[:_MAX_SHOWN_CHARS] + "…")


def _shown_name(location: tuple[int | str, ...]) -> str:
    name = ".".join(str(part) for part in location)
    return visible(name if len(name) <= _MAX_SHOWN_CHARS else name[:_MAX_SHOWN_CHARS] + "…")
