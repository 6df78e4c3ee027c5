"""What is shown by its name, and what writing needs and keeps."""

from __future__ import annotations

import unicodedata

import pytest

from stockade.terms.invisible import has_invisible, show_invisible, show_invisible_in_path
from stockade.terms.pathname import to_bytes, to_text

BIDIRECTIONAL = "\u061c\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2066\u2067\u2068\u2069"


@pytest.mark.parametrize("char", BIDIRECTIONAL)
def test_every_bidirectional_control_is_shown(char: str) -> None:
    assert show_invisible(f"a{char}b") == (f"a<U+{ord(char):04X}>b", 1)


@pytest.mark.parametrize(
    ("text", "shown", "count"),
    [
        ("a\u200bb\u2060c\u00add", "a<U+200B>b<U+2060>c<U+00AD>d", 3),
        ("\U000e0041\U000e0042", "<U+E0041><U+E0042>", 2),
        ("x\ufeffy", "x<U+FEFF>y", 1),
        ("\ufeffx", "\ufeffx", 0),
        ("a\u200db", "a<U+200D>b", 1),
        ("a\u2028b\x9bc", "a<U+2028>b<U+009B>c", 2),
        ("\ud800", "<U+D800>", 1),
        ("e\u0301 na\u00efve \u4f60\u597d \u05e9\u05dc\u05d5\u05dd\t\n\x1b[0m", None, 0),
        # writing that needs joiners and selectors
        ("\U0001f468\u200d\U0001f469\u200d\U0001f467 \u2764\ufe0f\u200d\U0001f525", None, 0),
        ("\u0645\u06cc\u200c\u062e\u0648\u0627\u0647\u0645", None, 0),
        ("\u0915\u094d\u200d\u0937", None, 0),
        # the same characters as a hidden channel
        ("\u2764\ufe0f\ufe0f\ufe0e", "\u2764\ufe0f<U+FE0F><U+FE0E>", 2),
        ("x\U000e0100\U000e0101", "x<U+E0100><U+E0101>", 2),
        ("\U0001f468\u200d\u200d\u200dA", "\U0001f468<U+200D><U+200D><U+200D>A", 3),
    ],
)
def test_what_is_shown(text: str, shown: str | None, count: int) -> None:
    assert show_invisible(text) == (text if shown is None else shown, count)
    assert has_invisible(text) == (count > 0)


def test_no_format_character_passes_alone() -> None:
    """Every character of Unicode's category "format" and every tag, between two letters. The
    exceptions are drawn: signs of Arabic, Kaithi and Egyptian that enclose a number."""
    drawn = {
        *range(0x600, 0x606), 0x6DD, 0x70F, 0x890, 0x891, 0x8E2, 0x110BD, 0x110CD,
        *range(0x13430, 0x13440), *range(0x1BCA0, 0x1BCA4),
    }  # fmt: skip
    for point in range(0x110000):
        if unicodedata.category(chr(point)) == "Cf" and point not in drawn:
            assert has_invisible(f"a{chr(point)}b"), hex(point)


def test_a_path_shows_them_by_bytes_and_is_accepted_back() -> None:
    raw = "/workspace/a\u202egpj.exe".encode()
    shown = show_invisible_in_path(to_text(raw))
    assert shown == (r"/workspace/a\xe2\x80\xaegpj.exe", 1)
    assert to_bytes(shown[0]) == raw
