from __future__ import annotations

import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.host.file_match import (
    COUNT_LIMIT,
    Near,
    as_written,
    find_overlapping,
    find_separate,
    lines_of,
    near_miss,
)

SMALL = st.binary(max_size=40).map(lambda raw: bytes(b"ab\n\r"[byte % 4] for byte in raw))


@given(content=SMALL, old=SMALL.filter(bool))
def test_overlapping_matches_are_every_position(content: bytes, old: bytes) -> None:
    every = [at for at in range(len(content)) if content.startswith(old, at)]
    assert find_overlapping(content, old) == (every, False)


@given(content=SMALL, old=SMALL.filter(bool))
def test_separate_matches_are_what_replace_replaces(content: bytes, old: bytes) -> None:
    places = [match.start() for match in re.finditer(re.escape(old), content)]
    assert find_separate(content, old, 1000) == places
    assert find_separate(content, old, 2) == places[:2]


@given(content=SMALL, old=SMALL.filter(bool))
def test_line_numbers_count_the_newlines_before(content: bytes, old: bytes) -> None:
    places, _ = find_overlapping(content, old)
    assert lines_of(content, places) == tuple(content[:at].count(b"\n") + 1 for at in places)


def test_counting_ends_early_where_it_would_not_end() -> None:
    assert find_overlapping(b"a" * 100_000, b"aa") == (list(range(COUNT_LIMIT)), True)
    places, more = find_overlapping(b"a" * (2 << 20), b"a" * (1 << 20))
    assert (len(places), more) == (64, True)


@pytest.mark.parametrize(
    ("content", "old", "expected"),
    [
        (b"a\r\nb\r\n", b"a\nb", b"a\r\nb"),
        (b"a\r\nb\r\n", b"a\r\nb", b"a\r\nb"),
        (b"a\r\nb\n", b"a\nb", b"a\nb"),
        (b"a\nb\n", b"a\nb", b"a\nb"),
        (b"ab", b"a\nb", b"a\nb"),
        (b"a\rb\r", b"a\nb", b"a\nb"),
    ],
)
def test_line_feeds_mean_crlf_only_where_every_line_has_it(
    content: bytes, old: bytes, expected: bytes
) -> None:
    assert as_written(content, old, b"x") == (expected, b"x")


def test_the_new_text_is_translated_along_and_a_cr_in_it_stops_both() -> None:
    assert as_written(b"a\r\n", b"a", b"b\nc") == (b"a", b"b\r\nc")
    assert as_written(b"a\r\n", b"a\n", b"b\r") == (b"a\n", b"b\r")


@pytest.mark.parametrize(
    ("content", "old", "near"),
    [
        (b"x\na\r\nb\r\n", b"a\nb\n", Near("line_endings", 2, "a")),
        (b"x\n\tif a:\n\t\tb\n", b"    if a:\n        b", Near("whitespace", 2, "\tif a:")),
        (b"x\nfoo(a,  b) \n", b"foo(a, b)\n", Near("whitespace", 2, "foo(a,  b) ")),
        (b"Def Main\n", b"def main", Near("case", 1, "Def Main")),
        (b"one\ntwo\nthree\n", b"two\nfour\n", Near("similar_line", 2, "two")),
        (
            b"one\nself.value = 1 \xff\n",
            b"self.valeu = 1",
            Near("similar_line", 2, r"self.value = 1 \xff"),
        ),
        (b"x\n// caf\xe9\n", "// caf\ufffd".encode(), Near("undecodable", 2, r"// caf\xe9")),
        (b"x\na\xff\xfeb\n", "a\ufffd\ufffdb".encode(), Near("undecodable", 2, r"a\xff\xfeb")),
        ("x\na\u202eb c\n".encode(), b"a<U+202E>b c", Near("invisible", 2, "a\u202eb c")),
        ("x\na\u200bb c\n".encode(), b"ab c", Near("invisible", 2, "a\u200bb c")),
        (b"one\ntwo\n", b"completely different", None),
        (b"a\xff\xfeb\n", b"ab", None),
        (b"", b"a", None),
        (b"a\n", b"\n\n\n", None),
    ],
)
def test_a_near_miss_names_what_differs_and_where(
    content: bytes, old: bytes, near: Near | None
) -> None:
    assert near_miss(content, old) == near
