from __future__ import annotations

import json
import struct

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.decide.canonical import MAX_DEPTH, Json, canonical, digest, parse_strict
from stockade.terms.base import MAX_INTEGER
from stockade.terms.fault import Code, Failure


def code_of(data: bytes, *, floats: bool = True) -> Code | None:
    try:
        parse_strict(data, 1 << 20, floats=floats)
    except Failure as error:
        return error.fault.code
    return None


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"{",
        b"{} {}",
        b"{'a': 1}",
        b'{"a": 1,}',
        b'{"a": 1, "a": 1}',
        b'{"a": 1, "\\u0061": 1}',
        b'[{"x": {"y": 0, "y": 0}}]',
        b"NaN",
        b"[Infinity]",
        b"-Infinity",
        b"1e999",
        b"-1e999",
        b"01",
        b"+1",
        b"9007199254740992",
        b"-9007199254740992",
        b"1" * 5000,
        b'"\\ud800"',
        b'["\\udc00\\ud800"]',
        b'{"\\ud800": 1}',
        b'"\xed\xa0\x80"',
        b'"\xff"',
        b'\xef\xbb\xbf"a"',
        b'"\x00"',
        b'"a\nb"',
        '{"a": 1}'.encode("utf-16"),
    ],
)
def test_what_two_readers_could_read_differently_is_refused(data: bytes) -> None:
    assert code_of(data) is Code.MALFORMED_JSON


@pytest.mark.parametrize(
    ("data", "value"),
    [
        (b' {"a": [1, -0, null, true]} ', {"a": [1, 0, None, True]}),
        (b"9007199254740991", MAX_INTEGER),
        (b"-9007199254740991", -MAX_INTEGER),
        (b"1.5", 1.5),
        (b'"\\ud83d\\ude00"', "😀"),
        ('"é\u2028"'.encode(), "é\u2028"),
    ],
)
def test_plain_json_is_read(data: bytes, value: object) -> None:
    assert parse_strict(data, 100) == value


def test_floats_can_be_refused() -> None:
    assert [code_of(data, floats=False) for data in (b"1.0", b"1e2", b"[1E0]", b"12")] == [
        Code.MALFORMED_JSON,
        Code.MALFORMED_JSON,
        Code.MALFORMED_JSON,
        None,
    ]


def test_size_is_checked_before_anything_else() -> None:
    assert parse_strict(b'"12"', 4) == "12"
    with pytest.raises(Failure) as caught:
        parse_strict(b"\xff" * 5, 4)
    assert caught.value.fault.code is Code.BODY_TOO_LARGE
    assert caught.value.fault.details == {"bytes": 5, "max_bytes": 4}


@pytest.mark.parametrize(("open_", "close"), [(b"[", b"]"), (b'{"a":', b"}")])
def test_depth_is_bounded_exactly(open_: bytes, close: bytes) -> None:
    assert code_of(open_ * MAX_DEPTH + b"1" + close * MAX_DEPTH) is None
    deeper = MAX_DEPTH + 1
    assert code_of(open_ * deeper + b"1" + close * deeper) is Code.MALFORMED_JSON
    assert code_of(open_ * 200_000) is Code.MALFORMED_JSON
    # An escape has the value walked through, whatever number of brackets there is.
    escaped = b'"\\u0061"'
    assert code_of(open_ * MAX_DEPTH + escaped + close * MAX_DEPTH) is None
    assert code_of(open_ * deeper + escaped + close * deeper) is Code.MALFORMED_JSON


def test_brackets_in_strings_are_not_depth() -> None:
    assert parse_strict(json.dumps("[{" * 500).encode(), 2000) == "[{" * 500
    assert parse_strict(b"[" + b"[]," * 500 + b"[]]", 4000) == [[]] * 501


def test_messages_do_not_repeat_the_input() -> None:
    with pytest.raises(Failure) as caught:
        parse_strict(b'{"secret-value": 1, "secret-value": 2}', 100)
    assert "secret" not in str(caught.value)


def test_canonical_is_rfc_8785() -> None:
    # The number, string and sorting samples of the RFC, sections 3.2.2 and 3.2.3.
    numbers = [333333333.33333329, 1e30, 4.50, 2e-3, 0.000000000000000000000000001]
    assert canonical(numbers) == b"[333333333.3333333,1e+30,4.5,0.002,1e-27]"
    text = '\u20ac$\u000f\nA\'B"\\"/'
    assert canonical(text) == b'"\xe2\x82\xac$\\u000f\\nA\'B\\"\\\\\\"/"'
    keys = {"\u20ac": 5, "\r": 1, "\ufb33": 7, "1": 2, "\U0001f600": 6, "\u0080": 3, "\u00f6": 4}
    parsed = json.loads(canonical(keys))
    assert list(parsed.values()) == [1, 2, 3, 4, 5, 6, 7]


@pytest.mark.parametrize("value", [float("nan"), float("inf"), MAX_INTEGER + 1, "\ud800"])
def test_what_has_no_canonical_form_is_refused(value: float | str) -> None:
    with pytest.raises(Failure) as caught:
        canonical({"a": [value]})
    assert caught.value.fault.code is Code.MALFORMED_JSON
    with pytest.raises(Failure):
        canonical({"\ud800": 1})


def test_digest_names_the_value_and_not_its_spelling() -> None:
    a = parse_strict(b'{"b": 1, "a": [1.0, "x"]}', 100)
    b = parse_strict(b'{"a":[1,"\\u0078"],"b":1}', 100)
    assert digest(a) == digest(b)
    assert digest({}) == "44136fa355b3678a1146ad16f7e8649e94fb4fc21fe77e8310c060f61caaff8a"
    assert digest({"a": 1}) != digest({"a": "1"})


# A double of 2^53 and more is written without a fraction, which the strict reader refuses.
SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-MAX_INTEGER, MAX_INTEGER)
    | st.floats(-MAX_INTEGER, MAX_INTEGER)
    | st.text()
)
VALUES = st.recursive(
    SCALARS, lambda x: st.lists(x, max_size=4) | st.dictionaries(st.text(), x, max_size=4)
)


@given(VALUES)
def test_canonical_bytes_are_a_fixed_point_of_reading_and_writing(value: Json) -> None:
    raw = canonical(value)
    assert canonical(parse_strict(raw, 1 << 20)) == raw


@given(st.binary(max_size=200))
def test_any_bytes_are_read_or_refused(data: bytes) -> None:
    assert code_of(data) in (None, Code.MALFORMED_JSON)


@given(st.floats(allow_nan=False, allow_infinity=False))
def test_a_double_survives_its_canonical_form(value: float) -> None:
    read = float(json.loads(canonical(value)))
    assert struct.pack("d", read) == struct.pack("d", value + 0.0 if value else 0.0)
