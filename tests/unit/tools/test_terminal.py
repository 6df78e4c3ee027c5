"""Terminal output as a person would see it at the end."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stockade.tools.terminal import rendered


def test_b21_progress_frames_are_overwritten_colours_dropped_crlf_is_a_newline() -> None:
    frames = "".join(f"\r\x1b[32m{n:>3}%\x1b[0m" for n in range(101))
    text = "\x1b[?25l" + frames + "\x1b[?25h\r\nfirst\r\nsecond\r\ndone\n"
    assert rendered(text) == "100%\nfirst\nsecond\ndone\n"


@pytest.mark.parametrize(
    ("raw", "shown"),
    [
        ("longer\rab", "abnger"),
        ("longer\r\x1b[Kab", "ab"),
        ("longer\x1b[2K\rab", "ab"),
        ("abc\x1b[2Kd", "   d"),
        ("abc\x1b[1K", ""),
        ("abcdef\b\b\x1b[1Kx", "    xf"),
        ("abcdef\b\b\b\x1b[Kx", "abcx"),
        ("abcdef\b\b\b\x1b[0Kx", "abcx"),
        ("a\b\b\bxy", "xy"),
        ("abc\b \b", "ab "),
        ("abc\b\bX", "aXc"),
        ("\x1b[1;31merror\x1b[m: x", "error: x"),
        ("\x1b]0;title\x07text", "text"),
        ("\x1b]8;;http://a\x1b\\link\x1b]8;;\x1b\\", "link"),
        ("\x1b(Bplain", "plain"),
        ("nul\0bell\x07", "nul\u2400bell\u2407"),
        ("tab\tstays", "tab\tstays"),
        ("lone \x1b", "lone \u241b"),
        ("c1 \x9b31m", "c1 <U+009B>31m"),
        ("", ""),
    ],
)
def test_codes(raw: str, shown: str) -> None:
    assert rendered(raw) == shown


@given(st.text(alphabet="ab\r\n\b\x1b[2K0m;\0", max_size=60))
def test_nothing_invisible_is_left(raw: str) -> None:
    shown = rendered(raw)
    assert all(char >= " " or char in "\n\t" for char in shown)


@given(st.text(alphabet=st.characters(min_codepoint=32, max_codepoint=126), max_size=60))
def test_plain_text_is_left_alone(raw: str) -> None:
    assert rendered(raw) == raw
