"""Strict reading of JSON, and the one canonical form that is signed and digested.

`parse_strict` is the only reader of JSON that comes from outside: it refuses everything that two
readers could understand differently (duplicate keys, NaN, lone surrogates, integers that a
double does not hold exactly). `canonical` writes RFC 8785; equal values have equal bytes, so a
digest of them names the value.

The standard reader does the work. Depth and surrogates are checked by a walk over the value that
is made only when the text holds enough brackets, or an escape, for the check to be able to fail:
a large body is mostly strings, and the counts run at the speed of memory.
"""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping, Sequence
from typing import Final, NoReturn, TypeAlias, cast

import rfc8785

from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Code, Failure, failure

Json: TypeAlias = "bool | int | float | str | list[Json] | dict[str, Json] | None"
# What can be written: the same values, as a caller may hold them (covariant, so dict[str, int] is
# one). At run time sequences are lists or tuples and mappings are dicts.
JsonLike: TypeAlias = (
    "bool | int | float | str | Sequence[JsonLike] | Mapping[str, JsonLike] | None"
)

MAX_DEPTH: Final = 64
# 16 digits and a sign hold every exact integer; int() of more is quadratic, so it is not tried.
_MAX_DIGITS: Final = 17
_CLOSED: Final = json.JSONEncoder(
    sort_keys=True, separators=(",", ":"), ensure_ascii=False, check_circular=False
).encode


def parse_strict(data: bytes, max_bytes: int, *, floats: bool = True) -> Json:
    """Read one JSON value of at most `max_bytes` bytes of UTF-8.

    With `floats=False` any number with a fraction or an exponent is refused. Raises
    Failure(body_too_large) or Failure(malformed_json); the message never repeats the input.
    """
    if len(data) > max_bytes:
        raise failure(
            Code.BODY_TOO_LARGE,
            f"the body has {len(data)} bytes; at most {max_bytes} are read",
            bytes=len(data),
            max_bytes=max_bytes,
        )
    try:
        text = data.decode("utf-8")
        value = cast(
            Json,
            (_WITH_FLOATS if floats else _WITHOUT_FLOATS).decode(text),
        )
    except UnicodeDecodeError as error:
        raise _malformed(f"the text is not UTF-8 at byte {error.start}") from None
    except json.JSONDecodeError as error:
        raise _malformed(
            f"not JSON at line {error.lineno}, column {error.colno}: {error.msg}"
        ) from None
    except RecursionError:
        raise _malformed(f"nested deeper than {MAX_DEPTH}") from None
    if "\\u" in text or text.count("[") + text.count("{") > MAX_DEPTH:
        _walk(value)
    return value


def canonical(value: JsonLike) -> bytes:
    """RFC 8785 bytes of `value`. Raises Failure(malformed_json) for what has no such form: NaN,
    infinities, lone surrogates, integers beyond 2^53-1."""
    try:
        return rfc8785.dumps(value)
    except (rfc8785.CanonicalizationError, UnicodeEncodeError) as error:
        raise _malformed(f"the value has no canonical form: {type(error).__name__}") from error


def canonical_closed(value: JsonLike) -> bytes:
    """The bytes of `canonical` in a sixth of the time, for a value whose objects have ASCII names,
    which holds no floats, and whose strings and integers `canonical` takes. A law in tests/laws
    says so; what is signed or digested is written by the reference."""
    return _CLOSED(value).encode("utf-8")


def digest(value: JsonLike) -> str:
    """SHA-256 of the canonical bytes in lower-case hex, 64 characters."""
    return hashlib.sha256(canonical(value)).hexdigest()


def _object(pairs: list[tuple[str, Json]]) -> dict[str, Json]:
    members = dict(pairs)
    if len(members) != len(pairs):
        raise _malformed("an object names the same key twice")
    return members


def _integer(digits: str) -> int:
    if len(digits) <= _MAX_DIGITS:
        value = int(digits)
        if -MAX_INTEGER <= value <= MAX_INTEGER:
            return value
    raise _malformed("an integer is beyond 2^53-1")


def _float(digits: str) -> float:
    value = float(digits)
    if not math.isfinite(value):
        raise _malformed("a number is too large for a double")
    return value


def _no_float(_digits: str) -> NoReturn:
    raise _malformed("a number is not a plain integer")


def _constant(name: str) -> NoReturn:
    raise _malformed(f"{name} is not JSON")


# Made once: `json.loads` makes a reader for each text that it is given hooks with.
_WITH_FLOATS, _WITHOUT_FLOATS = (
    json.JSONDecoder(
        object_pairs_hook=_object,
        parse_int=_integer,
        parse_float=of_floats,
        parse_constant=_constant,
    )
    for of_floats in (_float, _no_float)
)


def _walk(root: Json) -> None:
    level: list[Json] = [root]
    for _ in range(MAX_DEPTH + 1):
        below: list[Json] = []
        for value in level:
            if isinstance(value, str):
                _check_text(value)
            elif isinstance(value, list):
                below.extend(value)
            elif isinstance(value, dict):
                below.extend(value)
                below.extend(value.values())
        if not below:
            return
        level = below
    raise _malformed(f"nested deeper than {MAX_DEPTH}")


def _check_text(text: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise _malformed("a string holds half of a surrogate pair") from None


def _malformed(message: str) -> Failure:
    return failure(Code.MALFORMED_JSON, message)
