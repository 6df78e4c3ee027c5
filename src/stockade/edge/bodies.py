"""Bodies and queries: strict JSON, then a closed model, each refusal with a code and a place.

The value that was sent is never repeated in a message: it may be large, secret or hostile.
"""

from __future__ import annotations

from typing import TypeVar

from pydantic import ValidationError
from pydantic_core import ErrorDetails

from stockade.decide.canonical import parse_strict
from stockade.edge.exchange import MAX_BODY_BYTES
from stockade.terms.base import Model
from stockade.terms.fault import Code, Failure, failure

Body = TypeVar("Body", bound=Model)


def read_body(model: type[Body], data: bytes) -> Body:
    """The checked body. Raises Failure(malformed_json, body_too_large, unknown_field,
    missing_field, invalid_argument). No body at all is an empty object."""
    return check(model, parse_strict(data or b"{}", MAX_BODY_BYTES))


def check(model: type[Body], value: object) -> Body:
    """`value` as `model`. Raises Failure with the first thing that is wrong, most basic first."""
    try:
        return model.model_validate(value)
    except ValidationError as error:
        raise _explain(model, error) from None


def whole_number(name: str, text: str) -> int:
    """A field of a query. Raises Failure(invalid_argument)."""
    if not (text.isascii() and text.isdigit() and len(text) <= 16):
        raise failure(Code.INVALID_ARGUMENT, f"{name[:64]!a} is not a whole number", field=name)
    return int(text)


def _explain(model: type[Model], error: ValidationError) -> Failure:
    found = error.errors(include_url=False, include_context=False, include_input=False)
    unknown = [entry for entry in found if entry["type"] == "extra_forbidden"]
    missing = [entry for entry in found if entry["type"] == "missing"]
    valid = tuple(model.model_fields)
    if unknown:
        names = tuple(_place(entry)[:64] for entry in unknown[:8])
        return failure(
            Code.UNKNOWN_FIELD,
            f"unknown field {', '.join(ascii(name) for name in names)}; "
            f"valid are {', '.join(valid) or 'none'}",
            fields=names,
            valid=valid,
        )
    if missing:
        names = tuple(_place(entry) for entry in missing)
        return failure(
            Code.MISSING_FIELD, f"missing field {', '.join(names)}", fields=names, valid=valid
        )
    return _first(found[0])


def invalid(error: ValidationError) -> Failure:
    """Failure(invalid_argument) for the first thing that is wrong with a model that was made of
    arguments, and not read."""
    return _first(error.errors(include_url=False, include_context=False, include_input=False)[0])


def _first(entry: ErrorDetails) -> Failure:
    place, message = _place(entry)[:256], entry["msg"]
    if entry["type"] in ("model_type", "dict_type"):
        message = "not a JSON object"
    where = f"{place!a}: " if place else "the body: "
    return failure(Code.INVALID_ARGUMENT, f"{where}{message}", field=place)


def _place(entry: ErrorDetails) -> str:
    return ".".join(str(part) for part in entry["loc"])
