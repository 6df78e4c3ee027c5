"""Names as text and back."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.terms.pathname import MAX_PATH_BYTES, absolute, to_bytes, to_text

names = st.binary(min_size=1, max_size=80).filter(lambda raw: 0 not in raw)


@given(names)
def test_every_name_has_a_text_that_leads_back_to_it(raw: bytes) -> None:
    assert to_bytes(to_text(raw)) == raw


@given(names, names)
def test_two_names_never_have_one_text(a: bytes, b: bytes) -> None:
    assert (to_text(a) == to_text(b)) is (a == b)


@given(names)
def test_a_shown_name_has_no_control_characters_and_is_unicode(raw: bytes) -> None:
    shown = to_text(raw)
    shown.encode("utf-8")
    assert all(char >= " " and char != "\x7f" for char in shown)


@given(st.text(max_size=40))
def test_any_text_is_a_name_or_a_value_error(text: str) -> None:
    try:
        raw = to_bytes(text)
    except ValueError:
        return
    assert raw
    assert 0 not in raw
    assert to_bytes(to_text(raw)) == raw


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        (b"a\xff", "a\\xff"),
        (b"a\nb", "a\\x0ab"),
        (b"a\\b", "a\\x5cb"),
        ("é€😀".encode(), "é€😀"),
        (b"a b:c-d", "a b:c-d"),
        (b"\x7f", "\\x7f"),
        (b"\xed\xa0\x80", "\\xed\\xa0\\x80"),
    ],
)
def test_the_one_text_of_a_name(raw: bytes, shown: str) -> None:
    assert to_text(raw) == shown
    assert to_bytes(shown) == raw


@pytest.mark.parametrize(
    "text",
    ["", "\0", "a\nb", "a\x7f", "a\\b", "a\\xZZ", "a\\x0", "\\x00", "a\\xFF", "\ud800", "a\\"],
)
def test_what_is_no_name_is_refused(text: str) -> None:
    with pytest.raises(ValueError):
        to_bytes(text)


def test_the_bound_is_in_bytes() -> None:
    assert len(to_bytes("é" * (MAX_PATH_BYTES // 2))) == MAX_PATH_BYTES
    with pytest.raises(ValueError):
        to_bytes("é" * (MAX_PATH_BYTES // 2) + "a")


def test_relative_means_below_the_workspace() -> None:
    assert absolute(b"a/b") == b"/workspace/a/b"
    assert absolute(b"/tmp/a") == b"/tmp/a"
    assert absolute(b"..") == b"/workspace/.."
